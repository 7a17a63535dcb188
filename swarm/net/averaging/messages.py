"""Messages between a peer and its averager process, through their pipe."""

from __future__ import annotations

import msgspec

from swarm.core.gradient_checks.step_recipe import MeanRecipe


class AveragerMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Between a peer and its averager process."""


class Order(AveragerMessage):
    version: int
    weight: float
    usual: float
    """See swarm.core.gradient_checks.norm_screening.AnnouncedNorm."""
    uplink: int
    """Bytes per second; 0: not known."""
    peers: tuple[str, ...]
    seconds: float
    """Until the deadline."""
    marks: bytes
    """Of the groups that the tensors are of."""
    weights: str
    """Of the version."""
    patience: float = 0.0
    """Seconds that others are waited for beyond `averaging.match`."""
    against: tuple[str, ...] = ()
    key: int = 0
    """See the Averager port."""


class Gone(AveragerMessage):
    """The round that forms waits for these no longer."""

    peers: tuple[str, ...]


class Leave(AveragerMessage):
    pass


class Listening(AveragerMessage):
    """The process's address at p2pd: its handlers are removed by it when it is dead."""

    address: str


class AveragerReady(AveragerMessage):
    me: str


class GroupFormed(AveragerMessage):
    """A group has formed."""

    seconds: float
    """That its round may take from now on."""


class RoundEnded(AveragerMessage):
    lost: str = ""
    """Why the round was lost; empty when it was not."""
    not_finite: bool = False
    """It was lost since my own tensors are not finite."""
    members: tuple[str, ...] = ()
    """Empty: no other member came."""
    exchanged: dict[str, int] = {}
    """Bytes of parts to and from each other member."""
    norms: dict[str, float] = {}
    """Each member's announced norm."""
    scaled: dict[str, float] = {}
    """Share of a gradient that was scaled down, by member."""
    false: tuple[str, ...] = ()
    """Members that reduced nothing, since most others doubt their means."""
    through: tuple[str, ...] = ()
    """Members to which p2pd carried parts."""
    named: dict[str, tuple[str, ...]] = {}
    """Members -> those that have proof against them."""
    marks: dict[str, bytes] = {}
    """Announced marks of each member whose gradient counts."""
    spans: tuple[tuple[int, int], ...] = ()
    sketches: dict[str, bytes] = {}
    """See swarm.net.averaging.sketch; float64."""
    recipe: MeanRecipe | None = None


FromParent = Order | Gone | Leave
FromChild = Listening | AveragerReady | GroupFormed | RoundEnded
encode = msgspec.msgpack.encode
