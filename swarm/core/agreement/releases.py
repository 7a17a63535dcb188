"""Which release counts, and which one can be fetched.

    hear --> candidates --wanted--> fetch --> hold      its bytes are here
                                         `--> failed    it is tried again later, or the next one is

The highest version wins. Two releases of one version (two parts of a split swarm, or a publisher and its
stand-in) are ordered by the same rule at all peers: more groups, then more learners, then the smaller digest,
so that all peers end with the same bytes.

An announcement is not yet a release that can be fetched. A candidate is awaited until it has been unavailable
for `patience` seconds; then the next lower one is tried, and this one again at growing intervals. A publisher
whose releases were unavailable for so long is not awaited either, until one of them is fetched or another
member has one: any number of its announcements costs `patience` once. A held release is never forgotten for
an announcement. Which releases count is decided by votes (peers.runtime.releases.agreement).

Announcements that were outranked or are unavailable are remembered: groups that were sampled from them have
to be judged, by the release's age, which counts from the first announcement of its weights here.
"""

from __future__ import annotations

import math
from bisect import insort_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from swarm.types import Digest, PeerId, Release

ANNOUNCEMENTS = 4
"""Announcements remembered for each version that is kept: each part of a split swarm has one, and so have a
publisher and its stand-in."""

PUBLISHERS = 64
"""Publishers whose announcements are candidates. A run has fewer learners; the holder of an invite for one
can have any number of identities."""

FIRST_RETRY = 0.5
"""Seconds before an unavailable release is tried again, doubled up to LONGEST_RETRY: a holder that
restarts is back soon."""

LONGEST_RETRY = 60.0
"""Seconds: a try costs a message to each holder, and a holder that came back is found within this time."""

Name = TypeVar("Name", bound=str)
Rank = tuple[int, int, int, tuple[int, ...]]
Key = tuple[int, Digest, int, Digest]


@lru_cache(maxsize=4096)
def rank(release: Release) -> Rank:
    """Sort key of a release; the greater one counts. The digest is negated letter by letter so that the
    smaller one ranks higher; any text is accepted, since peers wrote it."""
    return (
        release.version,
        release.groups,
        release.learners,
        tuple(-ord(letter) for letter in release.weights),
    )


class Announced(NamedTuple):
    """An announcement as it came."""

    sealed: bytes
    """The frame that its publisher signed."""
    received: float
    """When it first arrived, in seconds of a monotonic clock."""


@dataclass(slots=True, eq=False)
class Candidate:
    """An announced release, and whether its bytes can be fetched."""

    release: Release
    rank: Rank
    sealed: bytes
    """The frame that its publisher signed."""
    held: bool = False
    """Its bytes are here, or were until newer ones took their place."""
    unusable: bool = False
    """Its bytes are unusable: it is never fetched again."""
    failures: int = 0
    since: float = math.inf
    """When it was first unavailable."""
    not_before: float = -math.inf
    """Time of the next try."""
    reported: bool = False
    """`given_up` has returned it."""


class Releases:
    """The announced releases that a peer knows.

    `above` is the rank that a release must exceed: a whole rank, the beginning of one, such as `(version,)`,
    or `()` for any release.
    """

    def __init__(
        self,
        keep: int = 64,
        patience: float = 10.0,
        counts: Callable[[Release], bool] = lambda _: True,
    ) -> None:
        """Of each publisher, `keep` held releases and `keep` others are candidates; `patience` is in seconds;
        a release that does not count now is neither awaited nor named, held or not."""
        self._announced: dict[Release, Announced] = {}
        """The last ANNOUNCEMENTS * keep, in the order of arrival."""
        self._by_weights: dict[Digest, list[Release]] = {}
        """Weights -> the announcements of these: a peer looks for a way among them at each release."""
        self._keep, self._patience, self._counts = keep, patience, counts
        self.doubted = False
        """A release was left out since this was set to False: it did not count."""
        self._candidates: dict[Key, Candidate] = {}
        self._same: dict[tuple[int, Digest], list[Candidate]] = {}
        """Version and weights -> the candidates of these, one for each size and parent."""
        self._ranked: list[Candidate] = []
        """The candidates, the best one last: a peer asks often for those above its own release, and mostly
        there is none."""
        self._of: dict[PeerId, list[Candidate]] = {}
        """Publisher -> its candidates; the publisher with the oldest last announcement comes first."""
        self._unavailable: dict[PeerId, float] = {}
        """Publisher -> when one of its releases was first unavailable since the last one that was fetched."""
        self._missed: dict[Key, Candidate] = {}
        """Those that were unavailable at the last try: mostly none, and each heartbeat asks for them."""

    @property
    def held(self) -> Release | None:
        """The best release whose bytes are here; heartbeats name it."""
        return next((one.release for one in self._above(()) if one.held), None)

    def best(self, fits: Callable[[Release], bool]) -> Release | None:
        """The best release that `fits`, here or not."""
        found = (one.release for one in reversed(self._ranked) if not one.unusable)
        return next(filter(fits, found), None)

    def known(self, version: int, weights: Digest) -> list[Release]:
        """All announced releases with these weights: a publisher and its stand-in sign the same bytes at
        different times."""
        return [release for release in self._by_weights.get(weights, ()) if release.version == version]

    def named(self, version: int, weights: Digest) -> Release | None:
        """The best release with these weights that is usable; where one counts, of those that do."""
        found = [one for one in self._same.get((version, weights), ()) if not one.unusable]

        def key(one: Candidate) -> tuple[bool, bool, Rank]:
            return self._counts(one.release), one.held, one.rank

        return max(found, key=key).release if found else None

    def by_weights(self) -> Mapping[Digest, Sequence[Release]]:
        """Weights -> all announced releases of them, of the moment."""
        return self._by_weights

    def sealed(self, release: Release) -> bytes:
        """The frame that its publisher signed; empty when it is not known."""
        one = self._candidates.get(_key(release))
        if one is not None and one.release == release:
            return one.sealed
        return self._announced[release].sealed if release in self._announced else b""

    def received(self, version: int, weights: Digest) -> float | None:
        """When these weights were first announced, in seconds of the clock of `receive`; None where they were
        not. Another announcement of them makes their groups no younger."""
        return min((self._announced[one].received for one in self.known(version, weights)), default=None)

    def receive(self, release: Release, sealed: bytes = b"", at: float = 0.0) -> bool:
        """Record an announcement that arrives at `at`, in seconds of a monotonic clock. True when it is new;
        a release that waits for its next try is tried at once."""
        if (before := self._announced.get(release)) is None:
            self._by_weights.setdefault(release.weights, []).append(release)
            before = Announced(sealed, at)
        self._announced[release] = before._replace(sealed=sealed)
        if len(self._announced) > ANNOUNCEMENTS * self._keep:
            self._forget_oldest()
        one = self._candidates.get(_key(release))
        if one is not None and self._worth(one.release) >= self._worth(release):
            one.not_before = -math.inf
            return False
        if one is None:
            one = Candidate(release, rank(release), sealed)
        else:
            self._forget(one)
            one.release, one.rank, one.sealed = release, rank(release), sealed
        self._add(one)
        return _key(release) in self._candidates

    def _worth(self, release: Release) -> tuple[bool, Rank]:
        """Sort key of announcements of the same bytes."""
        return self._counts(release), rank(release)

    def found(self, version: int, weights: Digest, holder: PeerId | None = None) -> bool:
        """A peer claims that it holds this release: try it again at once. Where a member (`holder`) claims so
        of another publisher's release, that one is awaited again. False where no try of it is pending."""
        for one in self._same.get((version, weights), ()) if holder is not None else ():
            if one.release.publisher != holder:
                self._unavailable.pop(one.release.publisher, None)
        late = [one for key, one in self._missed.items() if key[:2] == (version, weights)]
        for one in late:
            one.not_before = -math.inf
        return bool(late)

    # --- what to try ----------------------------------------------------------------------------------------

    def awaited(self, above: tuple[Any, ...], now: float) -> Release | None:
        """The best release that is here or worth waiting for; None when nothing announced is worth waiting
        for."""
        best = self._awaited(above, now)
        return best.release if best is not None else None

    def wanted(self, above: tuple[Any, ...], now: float) -> Release | None:
        """The release to fetch now: the awaited one once its next try is due; if none is awaited, the best
        one whose try is due, new ones first."""
        best = self._awaited(above, now)
        if best is not None:
            return best.release if best.not_before <= now else None
        left = [one for one in self._above(above) if one.not_before <= now]
        return max(left, key=lambda one: (one.failures == 0, one.rank)).release if left else None

    def pause(self, above: tuple[Any, ...], now: float) -> float:
        """Seconds until a release can be tried again; infinite when none ranks above."""
        best = self._awaited(above, now)
        tries = [best] if best is not None else self._above(above)
        return max(0.0, min((one.not_before - now for one in tries), default=math.inf))

    def lacking(self, above: tuple[Any, ...], now: float) -> bool:
        """Whether the awaited release was unavailable at the first try: more holders have to be found."""
        best = self._awaited(above, now)
        return best is not None and best.failures > 0

    def given_up(self, now: float) -> Iterator[Release]:
        """Releases that are not awaited any more, each once, but for those that a better one is here for."""
        held = self.held
        for one in self._missed.values():
            beaten = held is not None and rank(held) > one.rank
            if not (one.reported or beaten) and now - one.since >= self._patience:
                one.reported = True
                yield one.release

    # --- outcome of a try -----------------------------------------------------------------------------------

    def hold(self, release: Release) -> bool:
        """Record that its bytes are here. True when that is news."""
        one = self._candidates.get(_key(release))
        if one is None or one.held:
            return False
        one.held, one.failures, one.since, one.not_before, one.reported = True, 0, math.inf, -math.inf, False
        self._missed.pop(_key(release), None)
        self._unavailable.pop(one.release.publisher, None)
        return True

    def lose(self, release: Release) -> None:
        """Record that its bytes are not here any more."""
        if (one := self._candidates.get(_key(release))) is not None:
            one.held = False

    def refuse(self, release: Release) -> None:
        """Record that its bytes are unusable: it is not held, and not wanted again."""
        if (one := self._candidates.get(_key(release))) is not None:
            one.held, one.unusable = False, True

    def failed(self, release: Release, now: float) -> None:
        """Record that it was unavailable."""
        if (one := self._candidates.get(_key(release))) is None:
            return
        one.held, one.since = False, min(one.since, now)
        one.not_before = now + min(FIRST_RETRY * 2**one.failures, LONGEST_RETRY)
        one.failures = min(one.failures + 1, 32)  # beyond it the pause does not grow
        self._missed[_key(release)] = one
        self._unavailable.setdefault(one.release.publisher, now)
        if len(self._unavailable) > PUBLISHERS:
            self._unavailable = {peer: at for peer, at in self._unavailable.items() if peer in self._of}

    def _awaited(self, above: tuple[Any, ...], now: float) -> Candidate | None:
        return next((one for one in self._above(above) if one.held or self._is_awaited(one, now)), None)

    def _is_awaited(self, one: Candidate, now: float) -> bool:
        first = min(one.since, self._unavailable.get(one.release.publisher, math.inf))
        return now - first < self._patience

    def _above(self, above: tuple[Any, ...]) -> Iterator[Candidate]:
        """Candidates that rank above `above` and count, the best one first."""
        for one in reversed(self._ranked):
            if one.rank <= above:
                return
            if not self._counts(one.release):
                self.doubted = True
            elif not one.unusable:
                yield one

    # --- bounds ---------------------------------------------------------------------------------------------

    def _add(self, one: Candidate) -> None:
        publisher = one.release.publisher
        if publisher not in self._of and len(self._of) == PUBLISHERS:
            self._forget(*self._least())
        self._candidates[_key(one.release)] = one
        self._same.setdefault(_key(one.release)[:2], []).append(one)
        if one.failures:
            self._missed[_key(one.release)] = one
        # Of equal ones the first announced is the better one.
        insort_left(self._ranked, one, key=attrgetter("rank"))
        self._of[publisher] = [*self._of.pop(publisher, ()), one]
        self._trim(publisher)

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._announced))
        del self._announced[oldest]
        same = self._by_weights[oldest.weights]
        same.remove(oldest)
        if not same:
            del self._by_weights[oldest.weights]

    def _least(self) -> list[Candidate]:
        """The candidates of the publisher with the oldest last announcement: of publishers without a held
        release, or else of all but that of the best held one."""
        best = self.held
        others = (mine for peer, mine in self._of.items() if best is None or peer != best.publisher)
        return min(others, key=lambda mine: any(one.held for one in mine))

    def _trim(self, publisher: PeerId) -> None:
        """Drop candidates of a publisher beyond its limits: its unavailable ones first, then the lowest; held
        ones stay."""
        for held in (False, True):
            mine = [one for one in self._of[publisher] if one.held is held]
            mine.sort(key=lambda one: (-one.failures, one.rank))
            self._forget(*mine[: max(0, len(mine) - self._keep)])

    def _forget(self, *gone: Candidate) -> None:
        for one in gone:
            publisher = one.release.publisher
            del self._candidates[_key(one.release)]
            same = self._same[_key(one.release)[:2]]
            same.remove(one)
            if not same:
                del self._same[_key(one.release)[:2]]
            self._missed.pop(_key(one.release), None)
            self._ranked.remove(one)
            self._of[publisher].remove(one)
            if not self._of[publisher]:
                del self._of[publisher]


def _key(release: Release) -> Key:
    """Identifies a release's bytes and origin. Two publishers may announce the same; another size is another
    release."""
    return (release.version, release.weights, release.size, release.parent)


def publishers(members: list[tuple[int, Name]]) -> list[Name]:
    """The order in which a round's members publish: (incarnation, peer id), oldest first, each after the one
    before was silent.

    The oldest member has the best-warmed optimizer, so its weights become the release.
    """
    return [peer for _, peer in sorted(members)]
