"""One row of the peer table: what is known of a peer, from its heartbeats and from what others say of it.

Everything in a heartbeat is the peer's own claim; the verdicts on its groups are what learners counted. Strings and numbers are
cleaned on the way in. `lost` has one rule, `status`: told so by a roster, or silent for longer than the run's patience.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dashboard.text import clean, number
from swarm.identity import human_name
from swarm.types import Beat, PeerId, Role

MOVING = (Role.SAMPLER, Role.LEARNER, Role.EVALUATOR)
"""Roles that use the policy, so that a version lag means something."""


@dataclass(slots=True)
class Peer:
    id: PeerId
    name: str = ""
    role: Role = Role.OBSERVER
    state: str = ""
    version: int = 0
    since: float | None = None
    """Unix seconds of its start, by its own clock."""
    heard: float = 0.0
    """Unix seconds of the last heartbeat, by the receiver's clock; of its last event for a peer without heartbeats."""
    beating: bool = False
    """It was heard by a heartbeat: silence means something."""
    gone: str = ""
    """`lost` or `left`; empty while nobody said so."""
    introduced: bool = False
    """A Started event was folded."""
    order: tuple[int, int] = (-1, -1)
    """(incarnation, sequence number) of the newest heartbeat."""
    credit: int = 0
    inbox: int = 0
    done: int = 0
    refused: int = 0
    rate: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    lag: dict[str, float] = field(default_factory=dict)
    hardware: str = ""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Groups of this sampler by verdict, counted by the learners."""
    revision: int = 0

    def __post_init__(self) -> None:
        self.name = self.name or human_name(self.id)

    def hear(self, beat: Beat, at: float) -> bool:
        """Take a heartbeat that its receiver got at `at`. False when it is older than what is known."""
        self.heard = max(self.heard, at) if self.beating else at
        self.beating = True
        if (beat.incarnation, beat.seq) <= self.order:
            return False
        self.order = (beat.incarnation, beat.seq)
        self.name = clean(beat.name) or human_name(self.id)
        self.role, self.state, self.hardware = beat.role, clean(beat.state), clean(beat.hardware, 80)
        self.since = number(beat.incarnation / 1000)
        self.version, self.credit, self.inbox, self.done, self.refused = (
            int(number(count)) for count in (beat.version, beat.credit, beat.inbox, beat.done, beat.refused)
        )
        self.rate, self.tokens, self.busy = number(beat.rate), number(beat.tokens), number(beat.busy, high=1.0)
        lag = beat.lag
        causes = {"download": lag.download, "queue": lag.queue, "generation": lag.generation, "upload": lag.upload}
        self.lag = {cause: number(seconds) for cause, seconds in (causes | {"inbox": lag.inbox}).items()}
        return True

    def status(self, now: float, patience: float) -> str:
        """`alive`, `lost` or `left`."""
        return self.gone or ("lost" if self.beating and now - self.heard > patience else "alive")

    def row(self, now: float, patience: float, newest: int, released: float | None) -> dict[str, object]:
        """As JSON. `newest` is the newest version, `released` when the version it uses was released."""
        moving = self.role in MOVING
        return {
            "id": self.id, "name": self.name, "role": str(self.role), "state": self.state, "hardware": self.hardware,
            "status": self.status(now, patience), "gone": self.gone, "beating": self.beating, "heard": self.heard,
            "silent": max(now - self.heard, 0.0), "since": self.since, "version": self.version if moving else None,
            "lag_versions": max(newest - self.version, 0) if moving else None,
            "lag_seconds": max(now - released, 0.0) if moving and released is not None else None,
            "released": released if moving else None, "lag_causes": self.lag, "credit": self.credit, "inbox": self.inbox,
            "done": self.done, "refused": self.refused, "rate": self.rate, "tokens": self.tokens, "busy": self.busy,
            "verdicts": dict(self.verdicts),
        }  # fmt: skip
