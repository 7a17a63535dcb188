"""Who takes part in an averaging round of the memory network, from the call to the outcome.

Not handled: who meets whom, and what they get (swarm.net.memory.rounds).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from swarm.core.gradient_checks.norm_screening import Claim, Usual
from swarm.core.gradient_checks.opposition import Opposition
from swarm.net.memory.means import Hands
from swarm.net.ports import Average, RoundLost
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch


class Said(NamedTuple):
    """What a member says beside its tensors: see the Averager port."""

    marks: bytes = b""
    against: frozenset[PeerId] = frozenset()
    key: int = 0
    hands: Hands | None = None
    """What it hands out in place of the means that it reduces."""


class Kept(NamedTuple):
    """What a member remembers of its rounds."""

    usual: Usual
    presences: Opposition
    """Of its part in each reducer's means."""


class Waits(NamedTuple):
    """How long a member waits; see the Averager port."""

    deadline: float
    patience: float


@dataclass(eq=False)
class Seat:
    """A peer in a meeting, from its call to its outcome."""

    peer: PeerId
    tensors: Sequence[torch.Tensor]
    claim: Claim
    kept: Kept
    expects: frozenset[PeerId]
    said: Said
    window: float
    """Loop time until which it waits for others."""

    def __post_init__(self) -> None:
        self.awaits = self.expects
        """Those of them that are not known to be gone."""
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        self.outcome: asyncio.Future[Average | None] = loop.create_future()

    def settle(self, outcome: Average | RoundLost | None) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, RoundLost):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
