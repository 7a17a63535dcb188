"""Writes docs/join.md: what a joiner's terminal shows, from the first second to the leave.

    swarm start demo, a learner <- swarm join WORD in a pseudo terminal: what it prints, and when -> join.md

python docs/join.py        a minute; needs the installed program
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

PAGE = Path(__file__).with_name("join.md")
SWARM = [sys.executable, "-m", "peers.cli"]
COLUMNS, ROWS = 150, 40
WORKS = 12.0
"""Seconds that the joiner gives groups before it is asked to leave."""

SHOWN = 3.0
"""Seconds between two pictures of the line that changes in place."""

UP = "\x1b[1A"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

TEXT = """# A join, as the terminal shows it

Seconds since Enter at the left. The line with `>` changes in place, once a second; here it is shown every
{shown:.0f} s. Packages were on the disk, a seed and a learner on the same two cores. `python docs/join.py`
made this page.

```text
$ swarm join swarm1...
{lines}
```
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with program(run, "start", "demo", "--folder", str(run), "--set", "peer.listen.host=127.0.0.1"):
            learner = word(run, "learner")
            with program(run, "join", learner, "--folder", f"{folder}/learner"):
                lines = joined(word(run, "sampler"), Path(folder) / "helper")
    shown = "\n".join(f"{at:5.1f} {mark} {said}".rstrip() for at, mark, said in lines)
    PAGE.write_text(TEXT.format(shown=SHOWN, lines=shown.replace(folder, "~")))


@contextmanager
def program(run: Path, *words: str) -> Iterator[None]:
    with subprocess.Popen([*SWARM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)


def word(run: Path, role: str) -> str:
    while not (path := run / "invites" / role).exists():
        time.sleep(0.1)
    return path.read_text().strip()


def joined(invite: str, folder: Path) -> list[tuple[float, str, str]]:
    """(seconds, `>` for the line that changes, text), until the joiner has left."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, told, gives, rest = time.monotonic(), -SHOWN, 0.0, ""
    found: list[tuple[float, str, str]] = []
    words = [*SWARM, "join", invite, "--folder", str(folder)]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        while said := more(ours):
            at = time.monotonic() - began
            *whole, rest = (rest + said).replace("\r\n", "\n").split("\n")
            for line in whole:
                if UP in line:  # the line that changes is wiped out at the end
                    found.pop()
                found += [(at, " ", text)] if (text := plain(line)) else []
            if "\x1b" in rest and (text := plain(rest)) and at - told >= SHOWN:
                told = at
                found.append((at, ">", text))
            text = plain(rest)
            gives = gives or (at if "admitted" in text and " 0 admitted" not in text else 0.0)
            if gives and at - gives > WORKS:
                gives = float("inf")
                process.send_signal(signal.SIGINT)
        if UP in rest:
            found.pop()
    return found


def more(terminal: int) -> str:
    """What was printed since; nothing once the other side has closed it."""
    select.select([terminal], [], [])
    try:
        return os.read(terminal, 1 << 16).decode(errors="replace")
    except OSError:
        return ""


def plain(line: str) -> str:
    """What is to be seen of a line that may have been written several times."""
    return CONTROL.sub("", re.split(r"\r|\x1b\[2K", line)[-1]).strip()


if __name__ == "__main__":
    main()
