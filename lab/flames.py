"""A flame graph of a peer: the CPU of all its processes, by called functions.

    a peer's process --py-spy--> stacks of all Python threads below it --Tree--> SVG

Each process is as wide as the CPU seconds that the kernel counts for it; its stacks divide that. A program
without Python, such as p2pd, is a box. Stacks of waiting threads are left out by the function that they wait
in (WAITS), since a kernel may call such a thread running. Frames narrower than THIN have no box of their own.
py-spy has to be allowed to read other processes: as root, or with ptrace.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lab.figures import processor_time
from lab.figures.table import Unmeasured, number

RATE = 100
"""Stacks a second."""

WAITS = frozenset(
    {
        "_worker (concurrent/futures/thread.py)",
        "_start_all (swarm/processes/start.py)",
        "Popen._try_wait (subprocess.py)",
        "EpollSelector.select (selectors.py)",
        "PollSelector.select (selectors.py)",
        "Pipe._exactly (swarm/processes/process.py)",
        "Condition.wait (threading.py)",
    }
)

WIDTH, ROW, LETTER = 1200.0, 15, 6.2
"""Pixels: of the picture, of a box's height, of a letter."""

THIN = 0.8
"""Pixels."""

LINE = re.compile(r":\d+\)$")
"""Of a frame's file: that on which its function begins."""

Stack = tuple[str, ...]


class ProfiledProcess(NamedTuple):
    name: str
    cpu: float
    """Seconds."""
    stacks: Mapping[Stack, int]
    """Outermost frame first, without the process -> times seen."""


class Tree:
    """CPU seconds of a call and of those that it made."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: dict[str, Tree] = {}

    def add(self, stack: Iterable[str], seconds: float) -> None:
        self.seconds += seconds
        at = self
        for frame in stack:
            at = at.calls.setdefault(frame, Tree())
            at.seconds += seconds

    def depth(self) -> int:
        return 1 + max((call.depth() for call in self.calls.values()), default=0)


def record(pid: int, seconds: int, scratch: Path) -> list[ProfiledProcess]:
    """Watch a process and all below it. Raises Unmeasured."""
    beside = Path(sys.executable).with_name("py-spy")
    if (spy := str(beside) if beside.exists() else shutil.which("py-spy")) is None:
        raise Unmeasured("py-spy is not installed: pip install py-spy")
    raw = scratch / f"{pid}.raw"
    words = ["record", "-f", "raw", "-F", "-t", "-s", "-r", str(RATE), "-d", str(seconds), "-p", str(pid)]
    before = processor_time.of(pid)
    done = subprocess.run([spy, *words, "-o", str(raw)], capture_output=True, text=True, check=False)
    after = processor_time.of(pid)
    if done.returncode:
        raise Unmeasured(f"py-spy: {done.stderr.strip()[-300:]}")
    stacks = read(raw.read_text().splitlines())
    began = {one: spent.seconds for one, spent in before.items()}
    return [
        ProfiledProcess(spent.name, spent.seconds - began.get(one, 0.0), stacks.get(one, {}))
        for one, spent in after.items()
    ]


def read(lines: Iterable[str]) -> dict[int, dict[Stack, int]]:
    """Lines such as `process 7:"..";process 8:"..";thread (9): name;f (file:3);g (file:9) 12` -> process ->
    stack -> times, without those that wait."""
    found: dict[int, dict[Stack, int]] = {}
    for line in lines:
        text, _, times = line.rpartition(" ")
        frames = [LINE.sub(")", frame) for frame in text.split(";")]
        inner = max(place for place, frame in enumerate(frames) if frame.startswith("process "))
        if frames[-1] in WAITS:
            continue
        pid = int(frames[inner].removeprefix("process ").partition(":")[0])
        thread = frames[inner + 1].partition(": ")[2]
        stacks, stack = found.setdefault(pid, {}), (thread, *frames[inner + 2 :])
        stacks[stack] = stacks.get(stack, 0) + int(times)
    return found


def tree(processes: Iterable[ProfiledProcess]) -> Tree:
    root = Tree()
    for process in processes:
        if not (seen := sum(process.stacks.values())):
            root.add((process.name,), process.cpu)
        for stack, times in process.stacks.items():
            root.add((process.name, *stack), process.cpu * times / seen)
    return root


def draw(path: Path, title: str, processes: Iterable[ProfiledProcess], seconds: float) -> Path:
    """`seconds`: how long they were watched."""
    root = tree(processes)
    height = (root.depth() + 2) * ROW
    said = html.escape(f"{title}: {number(root.seconds / seconds)} CPU seconds a second")
    body = "".join(_boxes(root, 0.0, WIDTH / max(root.seconds, 1e-9), height - ROW, seconds))
    frame = f'viewBox="0 0 {WIDTH:.0f} {height}" font-family="monospace" font-size="10"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>\n<text x="4" y="12" font-size="12">{said}</text>'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}\n{body}</svg>\n")
    return path


def _boxes(node: Tree, left: float, scale: float, top: int, seconds: float) -> Iterator[str]:
    """One box for each call of `node`, the widest first, and those of its calls above it."""
    for name, call in sorted(node.calls.items(), key=lambda item: -item[1].seconds):
        width = call.seconds * scale
        if width < THIN:
            return
        said = html.escape(f"{name}: {number(1000 * call.seconds / seconds)} ms a second")
        letters = int(width / LETTER)
        text = html.escape(name[:letters]) if letters > 3 else ""
        place = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}"'
        box = f'<rect {place} fill="hsl({20 + sum(name.encode()) % 40},80%,70%)"/>'
        label = f'<text x="{left + 2:.1f}" y="{top + ROW - 4}">{text}</text>' if text else ""
        yield f"<g><title>{said}</title>{box}{label}</g>\n"
        yield from _boxes(call, left, scale, top - ROW, seconds)
        left += width
