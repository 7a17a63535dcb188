"""Row `join`: seconds from the start of `swarm join` until its first output, until it has joined, and until a
learner has admitted a group of it; in an empty folder, in the same folder again, and by an invite most of
whose addresses are silent.

The joined swarm runs and trains (1 seed, 1 learner, 1 sampler), on the processor time that the joiner leaves:
elsewhere it would have machines of its own. The joiner's output is read as it comes: its first line, `joined
run ...`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from lab.figures.table import Figure, Say
from lab.swarms.local_swarm import LocalSwarm, end, start
from swarm import events
from swarm.membership import invite
from swarm.membership.identity import Keyring, open_key
from swarm.protocol import Role
from swarm.types import Verdict

TIMES = 3
LEAST = 19
"""Nice value of processes that run only on an idle processor."""

SILENT = invite.ADDRESSES - 1
"""Addresses of an invite that accept a connection and send nothing, beside one that answers."""


class Join(NamedTuple):
    """Seconds from its start."""

    line: float
    joined: float
    accepted: float


def measure(say: Say, times: int = TIMES) -> list[Figure]:
    with LocalSwarm() as home, tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        home.join(Role.LEARNER)
        home.join(Role.SAMPLER)
        home.until(
            "the first step",
            lambda: any(isinstance(event, events.Trained) for event in home.events("learner-1")),
        )
        for process in home.processes.values():
            _step_back(process.pid)
        whole = home.words(Role.SAMPLER, Path())[1]
        first = [_join(home, Path(folder) / f"first-{number}", whole) for number in range(times)]
        say(f"in an empty folder: {_said(first)}")
        again = [_join(home, Path(folder) / f"first-{number}", whole) for number in range(times)]
        say(f"in the same folder again: {_said(again)}")
        with _silent(whole) as word:
            mostly = [_join(home, Path(folder) / f"silent-{number}", word) for number in range(times)]
        say(f"{SILENT} of {SILENT + 1} addresses silent: {_said(mostly)}")
    return [
        _figure("to its first line", [one.line for one in first]),
        _figure("until it has joined", [one.joined for one in first]),
        _figure("to its first accepted group", [one.accepted for one in first], f"median of {times}"),
        _figure("  the same, the run's files and a version being there", [one.accepted for one in again]),
        _figure("  of it until it has joined", [one.joined for one in again]),
        Figure.of_turns(
            [one.joined for one in mostly],
            [one.joined for one in first],
            row="join",
            what=f"  until it has joined, {SILENT} of {SILENT + 1} addresses silent",
            unit="s",
            against="all answer",
        ),
    ]


def _figure(what: str, seconds: list[float], note: str = "") -> Figure:
    return Figure.of_turns(seconds, row="join", what=f"`swarm join` {what}", unit="s", note=note)


def _said(joins: list[Join]) -> str:
    return ", ".join(f"{one.line:.1f} {one.joined:.1f} {one.accepted:.1f} s" for one in joins)


def _join(home: LocalSwarm, path: Path, word: str) -> Join:
    """One join, from an idle moment; the joiner leaves again."""
    peer_folder = path / "peers" / "sampler-1"
    words = home.words(Role.SAMPLER, path)
    words[1] = word
    heard, to_print = os.pipe()
    began = time.time()
    process = start(words, to_print)
    os.close(to_print)
    lines: list[tuple[float, str]] = []
    reading = threading.Thread(target=_read, args=(heard, lines))
    reading.start()
    try:
        home.until("the joiner's key", (peer_folder / "key").exists)
        me = open_key(peer_folder / "key").me
        home.until("the joiner's first accepted group", lambda: _admitted(home, me, began) is not None)
        accepted = _admitted(home, me, began)
    finally:
        end([process])
        reading.join()
    assert accepted is not None
    joined = next(at for at, line in lines if line.startswith("joined run"))
    return Join(lines[0][0] - began, joined - began, accepted - began)


def _read(heard: int, lines: list[tuple[float, str]]) -> None:
    with open(heard) as said:
        for line in said:
            lines.append((time.time(), line))


@contextlib.contextmanager
def _silent(word: str) -> Iterator[str]:
    """The invite with addresses that accept connections and never send anything."""
    whole = invite.read(word, time.time())
    with contextlib.ExitStack() as open_ones:
        silent = []
        for _ in range(SILENT):
            listener = open_ones.enter_context(socket.create_server(("127.0.0.1", 0)))
            silent.append(f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/p2p/{Keyring.new().me}")
        yield invite.make(whole.run, [*silent, whole.addresses[0]], Role.SAMPLER)


def _admitted(home: LocalSwarm, sampler: str, since: float) -> float | None:
    for event in home.events("learner-1"):
        if (
            isinstance(event, events.Judged)
            and event.sampler == sampler
            and event.verdict is Verdict.ADMIT
            and event.at >= since
        ):
            return event.at
    return None


def _step_back(pid: int) -> None:
    """Let a process, and all below it, run only on an idle processor. Linux weighs sessions, and each of ours
    is in one of its own (man 7 sched, the autogroup feature); where it has no such feature nothing
    changes."""
    me = psutil.Process(pid)
    for process in (me, *me.children(recursive=True)):
        weight = Path(f"/proc/{process.pid}/autogroup")
        if weight.exists():
            weight.write_text(str(LEAST))
