"""A chat template is a program that comes with a run's model: it is tried in a fork first.

    folder's tokenizer --try_template--> nothing, or ModelError

jinja's sandbox reaches no file, no module and no more than 100,000 numbers of one `range`; loops in loops and
the length of what is written have no limit there. The fork has a deadline and a limit of memory.

Not handled: a template that is harmless for the tried conversation and not for another one. What it writes
for that one is held to LONGEST characters (swarm.learn.tokenization), its time is not.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

from swarm.learn.pretrained import ModelError
from swarm.process import Child, Lost, Pipe

SECONDS = 10.0
"""Room for a fork on a busy machine: the template itself takes milliseconds."""

MEMORY = 512 << 20
"""Bytes of address space beyond those of the process that forks: jinja and a template need some megabytes."""

LONGEST = 1 << 20
"""Characters that a template may write beside the conversation's own."""


def try_template(write: Callable[[], object], where: str) -> None:
    """Call `write`, which renders a conversation, in a fork; what it raises there is for who calls it here.
    Raises ModelError where it needs more than SECONDS or MEMORY."""
    child = Child(lambda: _tried(write), limit=1)
    try:
        spent = child.receive(SECONDS) != b"+"
    except Lost as lost:
        raise ModelError(
            f"the chat template in {where} is refused: trying it in a process of its own, it {lost}"
        ) from None
    finally:
        child.end()
    if spent:
        raise ModelError(
            f"the chat template in {where} is refused: it needs more than {MEMORY >> 20} MiB for a short"
            " question"
        )


def _tried(write: Callable[[], object]) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    pipe = Pipe()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        write()
    except MemoryError:
        pipe.send(b"-")
    except Exception:  # the caller's own call raises it again, where it has its sentence
        pipe.send(b"+")
    else:
        pipe.send(b"+")
