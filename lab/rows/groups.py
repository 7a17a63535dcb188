"""Row `groups`: groups that one learner admits over real streams, against the same frames over a bare TCP
socket and over ZMQ's push/pull.

    two processes of senders, each with a node of its own ==frames==> server, in one of five ways:
        LearnerInbox.receive | the same without the log on the disk | a handler that acknowledges
        bare TCP | ZMQ, which has a thread of its own at both ends and acknowledges nothing

The ways take turns and carry the same bytes with the same number in flight. The difference of "admitted" and
"acknowledged" is the cost of admission (signature, shape, rewards recomputed, journal, log on the disk); the
difference to TCP is that of p2pd and Mail. Frames are the demo's (8 x 6 tokens, 0.8 KiB), of 4 and 250 KiB.
The CPU seconds are those of the server and of all senders, p2pd's included, on both sides.

The log is synced once for all groups that arrived meanwhile, so its cost is the wait for one fsync, shared by
the groups under way: with fsyncs of 4 ms one sender had 0.40 of the groups/s without the log with 4 of them
under way, 0.67 with 16, 0.84 with 48. A sampler does not stop for a receipt: it sends finished groups at
once, up to a thousand, and samples on meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median

from lab.figures.table import Figure, Gap, Line, Say, Unmeasured
from lab.swarms.partner import Partner, ask_all

SENDERS = (1, 4, 16)
SIZES: Mapping[int, int] = {0: 2000, 90: 1000, 7300: 48}
"""Tokens of a completion (0: the demo's answers) -> groups of a pass: a second or two at the learner."""

PASSES = 3
REPEAT = {"admit": 1, "memory": 1, "mail": 2, "tcp": 4, "zmq": 16}
"""A group is admitted once; the faster ways carry the same frames again, so that their time is long enough to
measure."""

TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of the processor that the kernel counts in: a short turn of a quiet machine takes none."""

PROCESSES = 2
"""Of senders: a single one may be slower than the server."""


@dataclass
class PassRates:
    """One way's groups a second, and a CPU second, of each pass."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(
    say: Say, senders: Sequence[int] = SENDERS, sizes: Mapping[int, int] = SIZES, passes: int = PASSES
) -> list[Line]:
    """Each number of senders sends the smallest groups; four of them at most larger ones."""
    from peers.build.model import base_model
    from swarm.settings.config import Run

    model = str(base_model.folder(Run()))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-bench-"))

        def started(module: str, name: str, **setup: object) -> Partner:
            home = Path(folder) / name
            home.mkdir()
            return stack.enter_context(Partner(module, {"folder": str(home), "model": model, **setup}))

        server = started("lab.processes.admission_server", "server")
        told = server.receive()
        loads = [
            started("lab.processes.load_senders", f"senders-{number}", server=told)
            for number in range(PROCESSES)
        ]
        for load in loads:
            load.receive()
        figures: list[Line] = []
        if not told["zmq"]:
            figures.append(Gap(row="groups", why="ZMQ: pyzmq is not installed: `make bench` installs it"))
        ways = [way for way in REPEAT if told["zmq"] or way != "zmq"]
        for tokens, frames in sizes.items():
            for count in senders if not tokens else (min(4, max(senders)),):
                say(f"{count} senders, {frames} groups of 8 x {tokens or 6} tokens")
                figures += _figures(server, loads, ways, count, frames, tokens, passes)
    return figures


def _figures(
    server: Partner,
    loads: Sequence[Partner],
    ways: Sequence[str],
    senders: int,
    frames: int,
    tokens: int,
    passes: int,
) -> Iterator[Figure]:
    halves = [(senders + 1) // 2, senders // 2]
    busy = [(load, half) for load, half in zip(loads, halves, strict=True) if half]
    active = [load for load, _ in busy]
    ask_all(active, [{"do": "join", "senders": half} for _, half in busy])
    turns = {way: PassRates() for way in ways}
    size = 0.0
    for number in range(passes):
        each = [{"do": "seal", "senders": half, "frames": frames * half // senders} for _, half in busy]
        sealed = ask_all(active, [{**one, "tokens": tokens} for one in each])
        count = sum(one["frames"] for one in sealed)
        size = sum(one["bytes"] for one in sealed) / count
        for way in sorted(ways, reverse=number % 2 == 1):  # none always follows the same other one
            _turn(server, active, way, count, turns[way])
    admitted, memory, mail, tcp = (turns[way] for way in ("admit", "memory", "mail", "tcp"))
    rates = f"{median(admitted.wall):.0f} against {median(memory.wall):.0f} groups/s"
    who = f"{senders} sender{'s' if senders > 1 else ''}, groups of 8 x {tokens or 6} tokens"
    volume = f"{median(admitted.wall) * size / 1e6:.2f} MB/s against {median(tcp.wall) * size / 1e6:.2f}"
    under_way = f"{size / 1024:.1f} KiB a group, {volume}, {4 * senders} under way, median of {passes}"
    yield _against(f"admitted, {who}", admitted, "bare TCP", tcp, under_way)
    if "zmq" in turns:
        yield _against(f"admitted, {who}", admitted, "ZMQ push/pull", turns["zmq"], "no receipts there")
    yield Figure.of_turns(
        map(truediv, admitted.wall, memory.wall),
        row="groups",
        what=f"admitted, of those without a log on the disk, {who}",
        unit="of the rate without it",
        note=f"{rates}, median of {passes} turns",
    )
    yield _against(
        f"acknowledged only, {who}", mail, "bare TCP", tcp, "Mail with a handler that does nothing"
    )


def _turn(server: Partner, loads: Sequence[Partner], way: str, frames: int, turns: PassRates) -> None:
    repeat = REPEAT[way]
    partners, groups = (server, *loads), frames * repeat
    cpu, began = sum(partner.cpu() for partner in partners), time.perf_counter()
    sent = ask_all(loads, [{"do": "send", "way": way, "repeat": repeat}] * len(loads))
    if way == "zmq":
        server.ask(do="pulled", frames=groups)
    seconds, cpu = time.perf_counter() - began, sum(partner.cpu() for partner in partners) - cpu
    if (missing := groups - sum(one["admitted"] for one in sent)) != 0:
        why = "; ".join(why for one in sent for why in one["refused"])
        raise Unmeasured(f"{missing} of {groups} groups were not admitted, this is no rate of groups: {why}")
    turns.wall.append(groups / seconds)
    turns.cpu.append(groups / max(cpu, TICK))


def _against(what: str, ours: PassRates, against: str, theirs: PassRates, note: str) -> Figure:
    return Figure.of_turns(
        ours.wall,
        theirs.wall,
        row="groups",
        what=what,
        unit="groups/s",
        against=against,
        note=note,
        cpu=median(ours.cpu),
        other_cpu=median(theirs.cpu),
    )
