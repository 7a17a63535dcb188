"""Row `relay`: what a connection over a third peer costs beside a direct one: seconds of a small answer, MB/s
of large ones, and the relay's processor time.

    asker --- direct ----------------> answerer           real nodes on loopback, a process each
    asker --- relay (its p2pd, its loop) ---> answerer    the same two; the answerer does not listen

Not handled here: lines, of which a relay's carries all twice.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.figures.table import Figure
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

SMALL, LARGE = 10, 4 << 20
"""Bytes of an answer: an acknowledgement, and the largest frame of mail."""

TIMES, COPIES = 200, 50
"""Small answers, whose middle one counts; large ones, one after the other."""


def measure(say: Say) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as made, _node(Path(made), "relay", []) as relay:
        way = relay.hear()["addresses"][:1]
        told = {}
        for how, dial_only in (("direct", False), ("over a relay", True)):
            say(how)
            with _node(Path(made), f"answerer {how}", way, dial_only) as answerer:
                there = answerer.hear() if not dial_only else answerer.hear() and answerer.ask(do="reserve")
                with _node(Path(made), f"asker {how}", way) as asker:
                    asker.hear()
                    asker.ask(do="met", peer=there["me"], addresses=there["addresses"])
                    before = relay.ask(do="cpu")["cpu"]
                    small = asker.ask(do="take", peer=there["me"], size=SMALL, times=TIMES)
                    large = asker.ask(do="take", peer=there["me"], size=LARGE, times=COPIES)
                    told[how] = small, large, relay.ask(do="cpu")["cpu"] - before
    return _figures(*told.values())


def _node(folder: Path, name: str, bootstrap: list[str], dial_only: bool = False) -> Partner:
    own = folder / name.replace(" ", "-")
    own.mkdir()
    setup = {"folder": str(own), "bootstrap": bootstrap, "dial_only": dial_only}
    return Partner("lab.processes.relayed", setup)


def _figures(direct: tuple[Answer, Answer, float], over: tuple[Answer, Answer, float]) -> list[Figure]:
    sent = COPIES * LARGE / 1e6

    def figure(what: str, unit: str, value: float, other: float, note: str = "") -> Figure:
        return Figure("relay", what, value, unit, against="direct", other=other, note=note)

    relayed, dialled = ([1000 * seconds for seconds in told[0]["seconds"]] for told in (over, direct))
    return [
        Figure.of_turns(
            relayed,
            dialled,
            row="relay",
            what="a small answer over a relay",
            unit="ms",
            against="direct",
            note=f"{SMALL} bytes, the middle one of {TIMES}",
        ),
        figure(
            "large answers over a relay",
            "MB/s",
            sent / sum(over[1]["seconds"]),
            sent / sum(direct[1]["seconds"]),
            f"{COPIES} of {LARGE >> 20} MiB, one after the other",
        ),
        figure(
            "processor time of the relay for 1 GB",
            "s",
            1000 * over[2] / sent,
            1000 * direct[2] / sent,
            "its p2pd and its Python",
        ),
    ]
