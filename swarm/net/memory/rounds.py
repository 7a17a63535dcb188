"""Averaging rounds among the peers of one process: their members, their results, how they break.

    first comer --(match window, or all expected members are there)--> exchange over the links
        --> the weighted mean, or RoundLost

In come tensors and weights, out comes one mean, computed once and copied to every member: identical bytes.
Weights are decided as among real learners (swarm.core.gradient_checks.norm_screening), and so are reducers'
shares (swarm.core.agreement.shares), and reducers that reduce nothing since they handed out something else
(swarm.core.gradient_checks.reducer_checks); here no peer can announce another norm or line than its own. Two
peers meet only when each expects the other, for the same version, over an open link, and one can dial the
other. Between members that share lines with others, parts and means go both ways at once, as in a butterfly
that reduces parts as they come; elsewhere a round takes twice the slowest link of a ring. A member that is
lost during the exchange (crash, cut link, deadline) breaks the round for all: every member keeps its tensors.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

from swarm.core.agreement import shares
from swarm.core.gradient_checks.inner_products import InnerProducts
from swarm.core.gradient_checks.majority import minority, named_by_most
from swarm.core.gradient_checks.norm_screening import (
    Allowance,
    AnnouncedNorm,
    ScreenedWeight,
    Usual,
    largest_mean_norm,
    once,
    screened_weights,
)
from swarm.core.gradient_checks.reducer_checks import Presences, presence
from swarm.net.memory.links import Dials, Links, Passage
from swarm.net.ports import Average, NotFinite, RoundLost
from swarm.settings.config import Averaging
from swarm.types import PeerId

if TYPE_CHECKING:
    import torch

    from swarm.net.averaging.sketch import Sketches

Hands = Callable[[PeerId, "torch.Tensor"], "torch.Tensor"]
"""A member, the mean of the values that I reduce -> what I hand to it instead."""


class MemberAnnouncements(NamedTuple):
    """A member's announcements beside its tensors: see the Averager port."""

    marks: bytes = b""
    against: frozenset[PeerId] = frozenset()
    key: int = 0
    hands: Hands | None = None
    """The vector that it hands out in place of the means that it reduces."""


class RoundHistory(NamedTuple):
    """A member's memory of its rounds."""

    usual: Usual
    presences: Presences
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
    claim: AnnouncedNorm
    kept: RoundHistory
    expects: frozenset[PeerId]
    announced: MemberAnnouncements
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


class Meeting:
    def __init__(
        self,
        links: Links,
        dials: Dials,
        settings: Averaging,
        groups: int,
        values: int,
    ) -> None:
        self._links, self._dials, self._settings = links, dials, settings
        self._values = values
        self._groups = groups
        self.seats: dict[PeerId, Seat] = {}
        self.exchanging = False
        self.over = False
        self._false: frozenset[PeerId] = frozenset()
        """Members that reduce nothing."""
        self._passages: dict[tuple[PeerId, PeerId], Passage] = {}
        self._missing = 1
        """Of passages, and of the time that the others take: how many are not over."""
        self._timer: asyncio.TimerHandle | None = None
        """The end of the first window, or of the exchange."""
        self._limit: asyncio.TimerHandle | None = None

    def fits(self, seat: Seat) -> bool:
        return not (self.exchanging or self.over) and all(
            other.peer in seat.expects
            and seat.peer in other.expects
            and self._connected(seat.peer, other.peer)
            for other in self.seats.values()
        )

    def _connected(self, one: PeerId, other: PeerId) -> bool:
        if not (self._links.open(one, other) and self._links.open(other, one)):
            return False
        for dialler, dialled in ((one, other), (other, one)):
            if self._dials.reaches(dialler, dialled):
                self._dials.connect(dialler, dialled)
                return True
        return False

    def take(self, seat: Seat) -> None:
        self.seats[seat.peer] = seat
        if self._timer is None or seat.window < self._timer.when():
            self._call_at(seat.window, self._start)
        if len(self.seats) > 1 and self._complete():
            self._start()

    def gone(self, seat: Seat, peers: Collection[PeerId]) -> None:
        """A seat does not wait for these any more."""
        seat.awaits -= frozenset(peers)
        if not (self.exchanging or self.over) and self._complete():
            self._start()

    def _complete(self) -> bool:
        return all(seat.awaits <= self.seats.keys() for seat in self.seats.values())

    def leave(self, seat: Seat, reason: str) -> None:
        """Remove a seat: before the exchange the others go on, during it the round breaks."""
        if self.over or self.seats.get(seat.peer) is not seat:
            return
        if self.exchanging:
            self._break(f"{seat.peer} {reason} in the middle of the round")
            return
        del self.seats[seat.peer]
        seat.settle(None)
        if not self.seats:
            self._end()

    def _start(self) -> None:
        if len(self.seats) == 1:
            self._end()
            next(iter(self.seats.values())).settle(None)
            return
        self.exchanging = True
        seats, size = list(self.seats.values()), self._size()
        doubted = {one.peer: one.kept.presences.doubted(self.seats) for one in seats}
        self._false = frozenset(map(PeerId, named_by_most(doubted)))
        for (one, its), (other, theirs) in permutations(self._reduced().items(), 2):
            self._send(one, other, its + theirs)
        # Parts go out to their reducers and come back: twice the slowest link of the ring.
        ring = [(one.peer, other.peer) for one, other in zip(seats, seats[1:] + seats[:1], strict=True)]
        seconds = 2 * max(self._links.seconds(*pair, 0 if pair in self._passages else size) for pair in ring)
        loop = asyncio.get_running_loop()
        self._call_at(loop.time() + seconds, self._arrived)
        if not self._settings.deadline:
            limit = shares.deadline(self._lines(), size)
            self._limit = loop.call_later(limit, self._break, f"not done in {limit:.0f} s")

    def _size(self) -> int:
        """Bytes of a member's tensors on the wire."""
        mine = next(iter(self.seats.values())).tensors
        values = self._values or sum(tensor.numel() for tensor in mine)
        return int(values * shares.WIRE_BYTES[self._settings.compression])

    def _lines(self) -> list[shares.AnnouncedLine]:
        return [shares.AnnouncedLine(self._links.uplink(peer), peer in self._false) for peer in self.seats]

    def _reduced(self) -> dict[PeerId, int]:
        """Member -> bytes that it reduces of each other one: these go there, and their mean comes back."""
        parts, size = shares.shares(self._lines()), self._size()
        return {peer: size * part // sum(parts) for peer, part in zip(self.seats, parts, strict=True)}

    def _send(self, one: PeerId, other: PeerId, size: int) -> None:
        def lost(broke: bool) -> None:
            if not self.over:
                self._break(f"the link between {one} and {other} is cut")

        passage = self._links.flow(one, other, size, self._arrived, lost)
        if passage is not None:
            self._passages[one, other] = passage
            self._missing += 1

    def _arrived(self) -> None:
        self._missing -= 1
        if not self._missing and not self.over:
            self._finish()

    def _finish(self) -> None:
        seats = [self.seats[peer] for peer in sorted(self.seats)]
        for k, one in enumerate(seats):
            for other in seats[k + 1 :]:
                if not self._connected(one.peer, other.peer):
                    self._break(f"the link between {one.peer} and {other.peer} is cut")
                    return
        if any(_shapes(seat) != _shapes(seats[0]) for seat in seats):
            self._break("the members' tensors differ in shape")
            return
        members = frozenset(seat.peer for seat in seats)
        named = {seat.peer: members & seat.announced.against for seat in seats}
        by = {peer: its for peer in members if (its := [one for one in named if peer in named[one]])}
        against = named_by_most(named)
        out = [k for k, seat in enumerate(seats) if seat.peer in against]
        claims = once([seat.claim for seat in seats], [seat.announced.marks for seat in seats], out)
        if not sum(claim.weight for claim in claims) > 0:
            self._break("the members' weights sum to nothing")
            return
        judged, reduced = screened_weights(claims, self._groups), self._reduced()
        told = [flat(seat.tensors) for seat in seats]
        cut = spans(reduced, len(told[0]))
        sketches = {seat.peer: _sketches(seat, seats, told, cut[seat.peer]) for seat in seats}
        _average(seats, judged)
        _leave_out(seats, told, judged, cut)
        if any(seat.announced.hands for seat in seats):
            _handed(seats, told, judged, cut, largest_mean_norm(claims, judged))
        self._end()
        now = asyncio.get_running_loop().time()
        scaled = {seat.peer: one.share for seat, one in zip(seats, judged, strict=True) if one.share < 1}
        marks = {
            seat.peer: seat.announced.marks for seat, one in zip(seats, claims, strict=True) if one.weight > 0
        }
        for seat in seats:
            mine = reduced[seat.peer]
            passed = {peer: mine + its for peer, its in reduced.items() if peer != seat.peer}
            seat.kept.usual.add(other.claim.norm for other in seats)
            seat.settle(
                Average(
                    members,
                    now - seat.since,
                    passed,
                    scaled,
                    marks,
                    false=self._false,
                    named=by,
                    sketches=sketches[seat.peer],
                )
            )

    def _call_at(self, when: float, then: Callable[[], None]) -> None:
        """Let the meeting's timer be this one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, then)

    def _break(self, reason: str) -> None:
        self._end()
        for seat in self.seats.values():
            seat.settle(RoundLost(f"{reason}; nothing was averaged"))

    def _end(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._limit is not None:
            self._limit.cancel()
        for passage in self._passages.values():
            passage.cancel()


class Meetings:
    """All meetings of a network."""

    def __init__(self, links: Links, dials: Dials, settings: Averaging, groups: int, values: int = 0) -> None:
        """`groups` make the run's whole batch. A vector counts as `values` on the links; 0: as those it
        has."""
        self._links, self._dials = links, dials
        self._settings, self._groups, self._values = settings, groups, values
        self._meetings: dict[tuple[int, str], list[Meeting]] = {}
        """Version and weights -> meetings."""

    async def average(
        self,
        me: PeerId,
        kept: RoundHistory,
        at: tuple[int, str],
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        waits: Waits,
        announced: MemberAnnouncements,
    ) -> Average | None:
        """The Averager port's contract, on behalf of `me`, whose memory of its rounds is `kept`; `at` is a
        version and its weights."""
        from swarm.norm import LARGEST, norm

        mine = math.hypot(*map(norm, tensors))
        if not mine <= LARGEST:
            raise NotFinite(f"version {at[0]}: my own tensors are not finite")
        window = asyncio.get_running_loop().time() + self._settings.match + waits.patience
        seat = Seat(
            me,
            tensors,
            AnnouncedNorm(weight, mine, kept.usual.norm()),
            kept,
            frozenset(peers),
            announced,
            window,
        )
        meeting = self._seat(at, seat)
        timer = asyncio.get_running_loop().call_later(waits.deadline, meeting.leave, seat, "ran out of time")
        try:
            return await seat.outcome
        finally:
            timer.cancel()
            meeting.leave(seat, "left")
            self._clear(at)

    def crash(self, peer: PeerId) -> None:
        for meetings in list(self._meetings.values()):
            for meeting in meetings:
                if peer in meeting.seats:
                    meeting.leave(meeting.seats[peer], "crashed")

    def gone(self, me: PeerId, peers: Collection[PeerId]) -> None:
        """See the port."""
        for meeting in [meeting for meetings in self._meetings.values() for meeting in meetings]:
            if me in meeting.seats:
                meeting.gone(meeting.seats[me], peers)

    def _seat(self, at: tuple[int, str], seat: Seat) -> Meeting:
        meetings = self._meetings.setdefault(at, [])
        for meeting in meetings:
            if meeting.fits(seat):
                break
        else:
            network = self._links, self._dials, self._settings
            meeting = Meeting(*network, self._groups, self._values)
            meetings.append(meeting)
        meeting.take(seat)
        return meeting

    def _clear(self, at: tuple[int, str]) -> None:
        going_on = [meeting for meeting in self._meetings.get(at, []) if not meeting.over]
        if going_on:
            self._meetings[at] = going_on
        else:
            self._meetings.pop(at, None)


def _shapes(seat: Seat) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in seat.tensors]


def _handed(
    seats: Sequence[Seat],
    parts: Sequence[torch.Tensor],
    judged: Sequence[ScreenedWeight],
    cut: Mapping[PeerId, slice],
    largest: float,
) -> None:
    """Give each the means that the reducers hand to it, in place of the mean that all have. `parts`: the
    seats' tensors; `largest`: the largest norm of a mean."""
    hands = {seat.peer: seat.announced.hands for seat in seats if seat.announced.hands is not None}
    total = sum(one.weight for one in judged)
    for seat, part, one in zip(seats, parts, judged, strict=True):
        has = hand_out(seat.peer, seat.tensors, hands, cut, largest)
        if one.share == 1:
            seat.kept.presences.add(presences(part, has, cut, one.weight / total))


def _sketches(
    seat: Seat, seats: Sequence[Seat], parts: Sequence[torch.Tensor], mine: slice
) -> Sketches | None:
    """The sketches that a member asked for, of the values that the others sent to it: those that it
    reduces."""
    if not seat.announced.key:
        return None
    from swarm.net.averaging import sketch

    size = mine.stop - mine.start
    found = sketch.Sketches(seat.announced.key, [(mine.start, size)] if size else [], {})
    others = [(each.peer, part) for each, part in zip(seats, parts, strict=True) if each is not seat]
    return found._replace(members={peer: found.of(vector) for peer, vector in others if size})


def _leave_out(
    seats: Sequence[Seat],
    parts: Sequence[torch.Tensor],
    judged: Sequence[ScreenedWeight],
    cut: Mapping[PeerId, slice],
) -> None:
    """Replace in place the means that are made by reducers that leave members out."""
    from swarm.net.averaging.weighted_mean import weighted_mean

    peers = [seat.peer for seat in seats]
    for reducer in seats:
        out = minority([peer for peer in peers if peer in reducer.announced.against], len(peers))
        weights = [0.0 if peer in out else one.weight for peer, one in zip(peers, judged, strict=True)]
        mine = cut[reducer.peer]
        if not out or not any(weights) or mine.start == mine.stop:
            continue
        scaled = [part[mine] * one.share for part, one in zip(parts, judged, strict=True)]
        mean = weighted_mean(scaled, weights)
        for seat in seats:
            has = flat(seat.tensors)
            has[mine] = mean
            _put(seat.tensors, has)


def _put(tensors: Sequence[torch.Tensor], values: torch.Tensor) -> None:
    """Replace tensors in place by flat `values`."""
    for tensor, its in zip(tensors, values.split([each.numel() for each in tensors]), strict=True):
        tensor.copy_(its.view_as(tensor))


def _average(seats: Sequence[Seat], judged: Sequence[ScreenedWeight]) -> None:
    """Replace all tensors in place by sum_i w_i s_i t_i / sum_i w_i, in float32 and in the order of the peer
    ids, so that it is one result for all."""
    from swarm.net.averaging.weighted_mean import weighted_mean

    for k in range(len(seats[0].tensors)):
        parts = [seat.tensors[k].float() * one.share for seat, one in zip(seats, judged, strict=True)]
        mean = weighted_mean(parts, [one.weight for one in judged])
        for seat in seats:
            seat.tensors[k].copy_(mean)


# --- members that reduce falsely ----------------------------------------------------------------------------


def spans(reduced: Mapping[PeerId, int], values: int) -> dict[PeerId, slice]:
    """Reducer -> its slice of a vector, by the number of values that each reduces."""
    total = sum(reduced.values())
    ends = [values * part // total for part in accumulate(reduced.values(), initial=0)]
    return {peer: slice(*ends) for peer, ends in zip(reduced, pairwise(ends), strict=True)}


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """(values,) float32, a copy."""
    import torch

    return torch.cat([tensor.float().reshape(-1) for tensor in tensors])


def hand_out(
    to: PeerId,
    tensors: Sequence[torch.Tensor],
    hands: Mapping[PeerId, Hands],
    cut: Mapping[PeerId, slice],
    largest: float,
) -> torch.Tensor:
    """Replace in place the mean that a member has by the vectors that each reducer hands to it: nothing that
    is not finite, and nothing beyond `largest`, the largest norm that a mean can have. Returns all of it,
    flat."""
    from swarm.norm import norm

    has = flat(tensors)
    for reducer, its in hands.items():
        told = its(to, has[cut[reducer]].clone())
        size = norm(told)
        has[cut[reducer]] = told * Allowance(largest).take(size) if math.isfinite(size) else told.zero_()
    _put(tensors, has)
    return has


def presences(
    part: torch.Tensor, has: torch.Tensor, cut: Mapping[PeerId, slice], share: float
) -> dict[str, float]:
    """Reducer -> how much of my part, which has this share of all weights, is in what I have of it."""
    found = dict[str, float]()
    for peer, span in cut.items():
        mine, mean = part[span], has[span]
        products = InnerProducts(float(mine @ mean), float(mine @ mine), float(mean @ mean))
        if products.one * share > 0:
            found[peer] = presence(products, share)
    return found
