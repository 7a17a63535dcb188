"""Links between the peers of one process: the interface that a network uses, and which peers can dial which.

Not handled here: how long a message takes (swarm.sim.links), the messages (swarm.net.memory.network).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from swarm.types import PeerId


class Passage(Protocol):
    """A message on its way."""

    @property
    def until(self) -> float:
        """Loop seconds until when its bytes arrive, or arrived; infinite while unknown."""
        ...

    def cancel(self) -> None:
        """It is no longer awaited: it takes no share of a line from now on."""
        ...


class Links(Protocol):
    """A network's view of its links (swarm.sim.links implements it)."""

    @property
    def whole(self) -> bool:
        """No fault is set anywhere: nothing else need be asked for the pairs of a fan-out."""
        ...

    def seconds(self, sender: PeerId, receiver: PeerId, size: int) -> float: ...

    def flow(
        self,
        sender: PeerId,
        receiver: PeerId,
        size: int,
        arrived: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None] = ...,
    ) -> Passage | None:
        """Carry a message beside others. None where it passes as if it were alone, in `seconds`.

        `departed` is called when its last byte has left, `arrived` when all of it is there; or `lost` when it
        never will be, with whether the connection broke.
        """
        ...

    def uplink(self, peer: PeerId) -> int:
        """Bytes per second of a peer's uplink; 0: not measured."""
        ...

    def crash(self, peer: PeerId) -> None:
        """Drop all messages under way from and to a peer."""
        ...

    def open(self, sender: PeerId, receiver: PeerId) -> bool:
        """False while messages are lost."""
        ...

    def when_released(self, sender: PeerId, receiver: PeerId, deliver: Callable[[], None]) -> bool:
        """True when the pair is held and `deliver` was kept for its release."""
        ...


class Alone(NamedTuple):
    """A message that passes as if it were alone: when it arrives is known."""

    until: float

    def cancel(self) -> None:
        """It has no share of a line."""


class Dials:
    """Peers that cannot be dialled: a peer that such a one has called itself can call it over the same
    connection."""

    def __init__(self) -> None:
        self._of: dict[PeerId, dict[PeerId, None]] = {}

    def add(self, peer: PeerId) -> None:
        self._of[peer] = {}

    def reaches(self, sender: PeerId, receiver: PeerId) -> bool:
        """False when there is no way from `sender` to `receiver`."""
        return receiver not in self._of or sender in self._of[receiver]

    def connect(self, sender: PeerId, receiver: PeerId) -> None:
        """A message of `sender` has arrived, so there is a connection."""
        if sender in self._of:
            self._of[sender][receiver] = None

    def crash(self, peer: PeerId) -> None:
        self._of.pop(peer, None)
        for called in self._of.values():
            called.pop(peer, None)
