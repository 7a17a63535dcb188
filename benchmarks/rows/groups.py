"""Row `groups`: groups that one learner admits over real streams, against the same frames over a bare TCP
socket.

    load_senders (senders with nodes of their own) ==frames==> server, in one of four ways:
        LearnerInbox.receive | the same without the log on the disk | a handler that acknowledges | bare TCP

The ways take turns and carry the same bytes with the same number in flight. The difference of "admitted" and
"acknowledged" is the cost of admission (signature, shape, rewards recomputed, journal, log on the disk); the
difference to TCP is that of p2pd and Mail. Small frames are the demo's (G=8, 6 tokens), large ones 256 KiB.

The log is synced once for all groups that arrived meanwhile, so its cost is the wait for one fsync, shared by
the groups under way: with fsyncs of 4 ms one sender had 0.40 of the groups/s without the log with 4 of them
under way, 0.67 with 16, 0.84 with 48. A sampler does not stop for a receipt: it sends whatever its engine has
finished, up to a thousand groups at once, and samples on meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from operator import truediv
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.partner import Partner
from benchmarks.table import Figure, Unmeasured

if TYPE_CHECKING:
    from benchmarks import Say

SENDERS = (1, 4, 16)
SMALL = 2000
"""Groups a pass: two seconds at the learner."""

LARGE, LARGE_TOKENS = 48, 7300
"""A frame of 8 x 7300 tokens is about 256 KiB after compression."""

PASSES = 3
REPEAT = {"admit": 1, "memory": 1, "mail": 2, "tcp": 4}
"""A group is admitted once; the faster ways carry the same frames again, so that their time is long enough to
measure."""


def measure(
    say: Say, senders: Sequence[int] = SENDERS, small: int = SMALL, large: int = LARGE, passes: int = PASSES
) -> list[Figure]:
    from peers.build import base_model
    from swarm.config import Run

    model = str(base_model.folder(Run()))
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        home = {name: Path(folder) / name for name in ("server", "senders")}
        for path in home.values():
            path.mkdir()
        with Partner(
            "benchmarks.processes.admission_server", {"folder": str(home["server"]), "model": model}
        ) as server:
            setup = {"folder": str(home["senders"]), "model": model, "server": server.hear()}
            with Partner("benchmarks.processes.load_senders", setup) as load:
                load.hear()
                figures: list[Figure] = []
                for count in senders:
                    say(f"{count} senders, small groups")
                    figures += _figures(load, count, small, 0, passes)
                if large:
                    say("4 senders, large groups")
                    figures += _figures(load, min(4, max(senders)), large, LARGE_TOKENS, passes)
    return figures


def _figures(load: Partner, senders: int, frames: int, tokens: int, passes: int) -> Iterator[Figure]:
    load.ask(do="join", senders=senders)
    rates: dict[str, list[float]] = {way: [] for way in REPEAT}
    size = 0.0
    for number in range(passes):
        sealed = load.ask(do="seal", senders=senders, frames=frames, tokens=tokens)
        size = sealed["bytes"] / sealed["frames"]
        for way in sorted(REPEAT, reverse=number % 2 == 1):  # none is always the one that comes after another
            repeat = REPEAT[way]
            sent = load.ask(do="send", way=way, repeat=repeat)
            groups = sealed["frames"] * repeat
            if sent["admitted"] != groups:
                raise Unmeasured(
                    f"{groups - sent['admitted']} of {groups} groups were not admitted: this is no rate of"
                    " groups"
                )
            rates[way].append(groups / sent["seconds"])
    admitted, memory, mail, tcp = (median(rates[way]) for way in REPEAT)
    who = f"{senders} sender{'s' if senders > 1 else ''}, {size / 1024:.1f} KiB a group"
    volume = f"{admitted * size / 1e6:.2f} MB/s against {tcp * size / 1e6:.2f}"
    yield Figure(
        row="groups",
        what=f"admitted, {who}",
        value=admitted,
        unit="groups/s",
        against="bare TCP",
        other=tcp,
        note=f"{volume}, {4 * senders} under way, median of {passes}",
    )
    yield Figure(
        row="groups",
        what=f"admitted, of those without a log on the disk, {who}",
        value=median(map(truediv, rates["admit"], rates["memory"])),
        unit="",
        note=f"{admitted:.0f} against {memory:.0f} groups/s, median of {passes} turns",
    )
    yield Figure(
        row="groups",
        what=f"acknowledged only, {who}",
        value=mail,
        unit="groups/s",
        against="bare TCP",
        other=tcp,
        note="Mail with a handler that does nothing",
    )
