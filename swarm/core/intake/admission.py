"""Admission: one verdict for each group that arrives at a learner.

In come a decoded group, the learner's version, the releases it knows, how much it holds already and the time;
out goes a Judgement. The order of the questions is the order of their cost to an attacker: membership, shape,
repetition, age in versions, origin, whether it is its sampler's assigned draw, age in seconds, room. A
group's age counts from the first announcement of its release here, never from the sampler's or the
publisher's claim. Rewards are recomputed and compared by the learner, since that needs the task. A group that
was admitted but outgrows the window before it is trained on is dropped by the batcher: nothing older than the
window is ever trained. Groups of the newest policy have no age in seconds, whenever that was released: a run
whose samplers were away for as long as the window goes on.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from swarm.core.agreement.trained import KnownReleases, mark
from swarm.core.intake.curriculum import INDEX_BITS, Draws
from swarm.frames.wire import WireError, check_array
from swarm.limits import remember
from swarm.settings.config import Sampling, Window
from swarm.types import Group, Noise, PeerId, Release, Verdict

REMEMBERED = 100_000
"""Groups seen: at 10 groups/s that is almost three hours, far beyond any window in seconds; about 10 MB."""

AT_ONCE, DRAWS_PER_SECOND = 1024, 256.0
"""Draws of one sampler under a release: as many as it may have under way, and a rate above that of any
engine. Numbers that jump further would let it choose among more slots than a release has for all."""

ROUNDING = 1e-3
"""Seconds by which a group's copy of its release's time may differ from the release: a sampler may keep times
in another format."""

REPEATED = "already judged"
"""Why a group is a duplicate that was delivered again; any other one is a second group of a slot."""

Released = Callable[[Release], float]
"""When the weights of a known release were first announced here, unix seconds by this peer's clock."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict over one group, with its reason and the group's age."""

    verdict: Verdict
    detail: str
    versions: int
    """Lag in versions."""
    seconds: float
    """Age since the release of the group's policy; the sampler's claim where no such release is known."""
    release_unknown: bool = False
    """Refused for a release that the learner does not know: a sampler that shows it is judged again."""


class Admission:
    """Judges groups for one learner; remembers those that it admitted."""

    def __init__(
        self,
        draws: Draws,
        window: Window,
        sampling: Sampling,
        vocabulary: int,
        known: KnownReleases,
        released: Released = lambda release: release.released,
        noise: Noise = Noise.GUMBEL,
    ) -> None:
        """`noise`: the one that this run's groups are replayed with."""
        self._draws, self._window, self._sampling, self._vocabulary = draws, window, sampling, vocabulary
        self._known, self._released, self._noise = known, released, noise
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        """Marks of groups and of slots."""

    def judge(
        self,
        group: Group,
        *,
        version: int,
        full: str | None,
        distrust: str | None,
        suspended: str | None = None,
        now: float,
    ) -> Judgement:
        """The verdict over a group at the learner's `version` and unix time `now`. `distrust`: why the sender
        must not be believed, or None; `suspended`: why it is suspended; `full`: why there is no room for its
        groups."""
        known = self._known(group.version, group.weights)
        versions, seconds = version - group.version, now - released_here(group, known, self._released)

        def verdict(what: Verdict, why: str, release_unknown: bool = False) -> Judgement:
            return Judgement(what, why, versions, seconds, release_unknown)

        if distrust is not None:
            return verdict(Verdict.UNTRUSTED, distrust)
        if suspended is not None:
            return verdict(Verdict.UNVERIFIED, suspended)
        if (problem := malformation(group, self._sampling, self._vocabulary, self._noise)) is not None:
            return verdict(Verdict.MALFORMED, problem)
        if (problem := self._repeats(group)) is not None:
            return verdict(Verdict.DUPLICATE, problem)
        if versions < 0:
            return verdict(
                Verdict.OVER_QUOTA, f"{-versions} versions ahead of this learner: another one is further"
            )
        if (problem := _too_many(versions, self._window)) is not None:
            return verdict(Verdict.STALE, problem)
        if (problem := unknown_release(group, known)) is not None:
            return verdict(Verdict.UNTRUSTED, problem, release_unknown=True)
        if (problem := self._not_drawn(group, known, seconds)) is not None:
            return verdict(Verdict.UNTRUSTED, problem)
        if versions and (problem := _too_old(seconds, self._window)) is not None:
            return verdict(Verdict.STALE, problem)
        if full is not None:
            return verdict(Verdict.OVER_QUOTA, full)
        self.admitted(group)
        return verdict(Verdict.ADMIT, "")

    def not_drawn(self, group: Group, now: float) -> str | None:
        """Why a group from another peer is not its sampler's assigned draw, or None."""
        known = self._known(group.version, group.weights)
        return self._not_drawn(group, known, now - released_here(group, known, self._released))

    def _repeats(self, group: Group) -> str | None:
        if mark(group.id) in self._seen:
            return REPEATED
        return "there is a group of this task and seed" if _slot_mark(group) in self._seen else None

    def _not_drawn(self, group: Group, known: Sequence[Release], seconds: float) -> str | None:
        """Why a group is not its sampler's assigned draw, or None."""
        # where a step changed nothing, draws are numbered on from the version before
        goes_on = any(one.version > 0 and one.parent == one.weights for one in known)
        if not goes_on and group.draw > AT_ONCE + DRAWS_PER_SECOND * max(0.0, seconds):
            return f"draw {group.draw} of a release that is {seconds:.1f} s old: no sampler draws so many"
        due = self._draws.of(group.weights, group.sampler, group.draw)
        if (group.task, group.seed) == (due.task, due.seed):
            return None
        if group.task != due.task:
            return f"its task is not that of draw {group.draw} under its release"
        return f"its seed is not that of draw {group.draw} under its release"

    def by_my_clock(self, group: Group) -> Group:
        """The group with the time of its release by this peer's clock: its age is counted from there."""
        released = released_here(group, self._known(group.version, group.weights), self._released)
        if released == group.times.released:
            return group
        return structs.replace(group, times=structs.replace(group.times, released=released))

    def admitted(self, group: Group) -> None:
        """Remember a group that was admitted, and its slot."""
        self.remember(mark(group.id))
        self.remember(_slot_mark(group))

    def free_slot(self, group: Group) -> None:
        """An admitted group was refused after all: another sampler of its slot may send it."""
        self._seen.pop(_slot_mark(group), None)

    def remember(self, seen: bytes) -> None:
        """Take the group with this mark (`swarm.core.agreement.trained`) for one that was admitted."""
        remember(self._seen, seen, None, 2 * REMEMBERED)

    def forget(self, seen: bytes) -> None:
        """The group with this mark may be admitted: it is not here, and may not be trained."""
        self._seen.pop(seen, None)


def _slot_mark(group: Group) -> bytes:
    """Identifies a slot: another text for it is no second group, whoever sends it."""
    name = f"{group.weights}/{group.task}/{group.seed}".encode()
    return hashlib.blake2b(name, digest_size=16).digest()


def group_id(sampler: PeerId, version: int, task: int, seed: int, tokens: bytes, logprobs: bytes) -> str:
    """Id of a group: hex blake2b-128 of its contents. Receivers compute it again."""
    name = f"{sampler}/{version}/{task}/{seed}/".encode()
    return hashlib.blake2b(name + tokens + logprobs, digest_size=16).hexdigest()


def staleness(group: Group, window: Window, version: int, now: float) -> str | None:
    """Why a group is outside the window at `version` and `now`, or None. A group of a later version is
    outside too: its policy is not this learner's."""
    return outgrown(group.version, group.times.released, window, version, now)


def outgrown(policy: int, released: float, window: Window, version: int, now: float) -> str | None:
    """The same for all groups of a policy: of this version, `released` then."""
    versions, seconds = version - policy, now - released
    if (problem := _too_many(versions, window)) is not None:
        return problem
    if versions < 0:
        return f"{-versions} versions ahead of this learner"
    return _too_old(seconds, window) if versions else None


def _too_old(seconds: float, window: Window) -> str | None:
    return f"{seconds:.0f} s old, the window is {window.seconds:.0f} s" if seconds > window.seconds else None


def _too_many(versions: int, window: Window) -> str | None:
    return f"{versions} versions old, the window is {window.versions}" if versions > window.versions else None


def released_here(group: Group, known: Sequence[Release], released: Released) -> float:
    """When the group's policy was released, by this peer's clock. `known`: the releases of its version and
    weights; without one the sampler's claim counts."""
    return min(map(released, known), default=group.times.released)


def unknown_release(group: Group, known: Sequence[Release]) -> str | None:
    """Why a group matches none of `known`, the releases of its version and weights; None when it matches
    one."""
    if not known:
        return f"no release {group.version} with its weights was ever announced here"
    if all(abs(release.released - group.times.released) > ROUNDING for release in known):
        away = min((group.times.released - release.released for release in known), key=abs)
        word = "younger" if away > 0 else "older"
        return f"says that release {group.version} is {abs(away):.3f} s {word} than its publisher says"
    return None


OVERFLOWED = "a log-probability is not finite"
"""The objection to groups of a policy whose numbers overflow."""


def malformation(
    group: Group, sampling: Sampling, vocabulary: int, noise: Noise = Noise.GUMBEL
) -> str | None:
    """What is wrong with a group's shape or numbers, or None. Later code relies on everything that is checked
    here."""
    if len(group.lengths) != sampling.group_size or len(group.rewards) != sampling.group_size:
        return (
            f"{len(group.lengths)} completions and {len(group.rewards)} rewards, the run has groups of"
            f" {sampling.group_size}"
        )
    if sampling.replayable and group.noise != noise:
        return "its noise is none that learners can replay, as this run asks (run.sampling.replayable)"
    if not all(1 <= length <= sampling.max_tokens for length in group.lengths):
        return f"a completion's length is not within 1 and {sampling.max_tokens}"
    if not 0 <= group.task < 1 << INDEX_BITS:
        return f"its task's index is not within 0 and 2^{INDEX_BITS}"
    total = sum(group.lengths)
    try:
        check_array(group.tokens, "int32", (total,))
        check_array(group.logprobs, "float32", (total,))
    except WireError as error:
        return str(error)
    if _head_bytes(group) != (4 * total * (heads := min(sampling.heads, vocabulary)), 2 * total * heads):
        return f"its heads are not of {heads} tokens for each of {total}"
    if group.id != group_id(
        group.sampler, group.version, group.task, group.seed, group.tokens.data, group.logprobs.data
    ):
        # Otherwise one group could be trained on under many ids, and remembering ids would have no limit.
        return "its id is not that of its contents"
    tokens, logprobs = (
        np.frombuffer(group.tokens.data, np.int32),
        np.frombuffer(group.logprobs.data, np.float32),
    )
    if not 0 <= tokens.min() <= tokens.max() < vocabulary:
        return f"a token is outside the vocabulary of {vocabulary}"
    # A log-probability is at most 0; a float32 softmax may round up to 1e-3 above.
    if not (finite := bool(np.isfinite(logprobs).all())) or logprobs.max() > 1e-3:
        return "a log-probability is above 0" if finite else OVERFLOWED
    if not all(math.isfinite(reward) for reward in group.rewards):
        return "a reward is not finite"
    times = group.times
    if not all(map(math.isfinite, (times.released, times.fetched, times.used, times.finished, times.sent))):
        return "a time is not finite"
    return None


def _head_bytes(group: Group) -> tuple[int, int]:
    return (len(group.heads.tokens), len(group.heads.logprobs)) if group.heads is not None else (0, 0)
