"""Signed manifests of a learner's batches, and recomputed gradients of other learners.

    a gradient is to be averaged -> BatchManifest, signed: version, digests of its samplers' frames in order
    service batches              <- BatchQuery: the manifest, or one of its groups as its sampler signed it
    a round with sketches        -> whose turn is it? its manifest, its groups, rewards
        of its own -> their gradient by this learner's weights, the round's -> the sketch of what it sent:
        agrees, or a strike; a member that leaves other groups out than this learner does, or names
        one that cannot be scored or is not its sampler's draw, has proved nothing

It is computed before this learner's own step, while its weights are those of the round. A member with a
strike is left out of the means that this learner makes (LeftOut), and everywhere once more than half of the
others name it, too; of two learners the other one continues alone. Manifests of the last KEPT gradients are
held, and frames of FRAMES_BYTES in memory; those of an earlier life are gone. Not checked: gradients of a
version before (`run.averaging.overlap`), those that depend on the whole round's rewards, and whether a
group's sampler drew it (swarm.core.audits.auditing).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from peers.audits.evidence import Unsigned, signed_group
from peers.intake.frame_shelf import FrameShelf
from peers.intake.inbox import LearnerInbox
from peers.learner.agreement.manifests import BatchManifest
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.trained import mark, marks_of
from swarm.core.gradient_checks.recomputed import SLOWER, Rechecks
from swarm.core.intake.batcher import Waiting
from swarm.core.intake.claimed_logprobs import objection
from swarm.core.intake.overlong import penalized
from swarm.frames import wire
from swarm.learn.learners.base_learner import BaseLearner, Gradient
from swarm.learn.learners.microbatch import OutOfMemory, oom_as
from swarm.limits import MAIL_LIMIT, remember
from swarm.net.averaging.sketch import Sketches
from swarm.net.ports import Average, NetError, Refused, read_question
from swarm.protocol import Kind, Role, Service
from swarm.storage.blocks import digest_of
from swarm.tasks.base import RewardError
from swarm.types import Count, Digest, Group, PeerId, Struct, Task

if TYPE_CHECKING:
    import torch

KEPT = 8
"""Manifests that are held: a round's members ask within its step."""

FRAMES_BYTES = 64 << 20
"""Frames of groups that wait or were trained, in bytes."""

ASKED = 5.0
"""Seconds for an answer."""


class BatchQuery(Struct, tag="batch-query"):
    """Asks a learner for its manifest of a version, or for a group of it."""

    version: Count
    weights: Digest
    group: Digest = Digest("")
    """Of its frame; empty: the manifest."""


class Unshown(Exception):
    """A member does not serve the batch of its gradient."""


class SignedBatch(NamedTuple):
    """The groups of a gradient."""

    manifest: bytes
    """As its learner signed it."""
    content: BatchManifest
    frames: tuple[bytes, ...]
    """Of the groups, as their samplers signed them, in order."""
    groups: tuple[Group, ...]


class BatchRechecks:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        inbox: LearnerInbox,
        frames: FrameShelf,
        *,
        of_round: bool,
    ) -> None:
        """`of_round`: gradients take in the rewards of the others' batches."""
        self._host, self._learner, self._inbox, self._frames = host, learner, inbox, frames
        run, audit = host.config.run, host.config.peer.audit
        works = audit.share > 0 and not (run.averaging.overlap or of_round)
        secret = host.ports.keyring.sign(f"rechecks {host.who.incarnation}".encode())
        rng = random.Random(secret)
        self._key = rng.getrandbits(62) | 1
        self._rechecks = Rechecks(rng, audit.share if works else 0.0)
        self._works = works
        self._shows = not run.averaging.overlap  # where a gradient is of the version before its step's
        self._shown: OrderedDict[tuple[int, Digest], tuple[bytes, dict[Digest, bytes]]] = OrderedDict()
        """Version and weights -> the sealed manifest, and the frames of its groups by their digests."""
        self._batch: Sequence[Waiting] = ()
        """The groups of my gradient."""
        self._is_short = False
        """Memory ran out for a gradient that was computed again."""

    async def serve(self) -> None:
        await self._host.ports.mail.serve(Service.BATCHES, self._serve_query)

    def computed(self, batch: Sequence[Waiting]) -> None:
        """My gradient of my version is of `batch`."""
        self._batch = list(batch)

    def show(self, weights: Digest, gradient: Gradient) -> None:
        """Sign the manifest of my gradient: it is about to be averaged, or stepped along, and its version has
        these `weights`."""
        if not self._shows:
            return
        version = self._learner.version
        frames = [self._frames.of(item.group.id) for item in self._batch]
        digests = [digest_of(frame) if frame else Digest("") for frame in frames]
        manifest = BatchManifest(
            version=version,
            weights=weights,
            weight=gradient.weight,
            groups=tuple(digests),
            masked=self._masked(gradient),
            arithmetic=gradient.arithmetic,
        )
        shown = self._host.seal(manifest), dict(zip(digests, frames, strict=True))
        remember(self._shown, (version, weights), shown, KEPT)

    async def _serve_query(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, BatchQuery)
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run are shown batches")
        return self._answer(asked)

    def _answer(self, asked: BatchQuery) -> bytes:
        """Raises Refused."""
        if (held := self._shown.get((asked.version, asked.weights))) is None:
            raise Refused("no gradient of this version is remembered here")
        if not asked.group:
            return held[0]
        if asked.group not in held[1]:
            raise Refused("my manifest names no such group")
        return held[1][asked.group]

    # --- of others ------------------------------------------------------------------------------------------

    def against(self) -> Collection[PeerId]:
        """Learners with a strike."""
        return self._rechecks.against(self._host.now())

    def before_round(self, partners: Collection[PeerId]) -> None:
        """A round with some of these is about to begin."""
        if self._works:
            wanted = self._rechecks.due(partners, self._host.now()) is not None
            self._host.ports.averager.check(self.against(), self._key if wanted else 0)

    async def after_round(self, outcome: Average, weights: Digest, mean: torch.Tensor) -> None:
        """Compute a member's gradient again, where one is due; my weights are still the round's, whose `mean`
        (P,) is here."""
        host, sketches = self._host, outcome.sketches
        self._rechecks.heard({peer: by for peer, by in outcome.named.items() if peer != host.ports.me})
        if sketches is None or not sketches.spans:
            return
        began = host.now()
        fast = self._is_fast(sketches.members)
        # the mean is sketched only where a member sent zeros
        is_zero = not all(its.any() for its in sketches.members.values()) and not sketches.of(mean).any()
        known = [
            peer
            for peer, its in sketches.members.items()
            if peer in self.against() or self._rechecks.is_accused(peer) or (fast and peer in outcome.marks)
            if its.any() or not (is_zero or self._rechecks.is_blank(peer))  # zeros again prove nothing
        ]
        if (peer := self._rechecks.due(known, began)) is None:
            return
        strike, zeros = None, not sketches.members[peer].any()
        try:
            batch = await self._shown_batch(peer, weights, outcome.marks.get(peer, b""))
            with oom_as("a gradient that is computed again does not fit beside this learner's own"):
                cosine, times, alike = await self._agreement(peer, batch, sketches)
            strike = self._rechecks.found(peer, cosine, times, alike, host.now())
        except (NetError, Unshown, Unsigned, wire.WireError) as error:
            strike = self._rechecks.showed_nothing(peer, str(error), host.now())
        except RewardError as error:
            if await self._scores():
                shown = f"a group of its batch cannot be scored: {error}"
                strike = self._rechecks.showed_nothing(peer, shown, host.now())
        except OutOfMemory as error:
            self._does_not_fit(error)
        spent, now = host.now() - began, host.now()
        self._rechecks.spent(peer, spent, len(outcome.members), now, zeros=zeros and strike is None)
        if strike is not None:
            host.emit(events.LeftOut, learner=peer, until=strike.until, why=strike.why)

    def _is_fast(self, members: Collection[PeerId]) -> bool:
        """Whether the others need not wait long while this learner computes a gradient of one of them, as far
        as its speed is known."""
        mine = self._host.status.speed
        beats = (self._host.roster.beat(peer) for peer in members)
        fastest = max((beat.speed for beat in beats if beat is not None), default=0.0)
        return not mine or SLOWER * mine >= fastest

    def _does_not_fit(self, error: OutOfMemory) -> None:
        """Out of memory is this peer's own fault and blames no other; it is reported once."""
        if not self._is_short:
            self._is_short = True
            text = f"a gradient of another learner could not be checked: {error}"
            self._host.emit(events.Noted, level="warning", text=text)

    async def _scores(self) -> bool:
        """Whether rewards work here: a group of my own batch was scored before."""
        if not self._batch:
            return False
        group = self._batch[0].group
        try:
            await self._inbox.reward_calls.task_and_rewards(
                group.task, await self._inbox.opener.decoded(group)
            )
        except RewardError:
            return False  # that was reported
        return True

    async def _shown_batch(self, peer: PeerId, weights: Digest, marks: bytes) -> SignedBatch:
        """The batch behind a member's gradient of this version. Raises Unshown, Unsigned, WireError,
        NetError."""
        batch = await self.batch(peer, self._learner.version, weights)
        if not {*marks_of(marks)} <= {mark(group.id) for group in batch.groups}:
            raise Unshown("its manifest lacks groups that it named in the round")
        return batch

    async def batch(self, peer: PeerId, version: int, weights: Digest) -> SignedBatch:
        """The batch behind a learner's gradient, this one's or another's, by its signed manifest and its
        samplers' frames. Raises Unshown, Unsigned, WireError, NetError."""
        query = BatchQuery(version=version, weights=weights)
        manifest = await self._ask(peer, query)
        opened, content = self._host.read(manifest, MAIL_LIMIT, BatchManifest)
        if opened.sender != peer or (content.version, content.weights) != (version, weights):
            raise Unshown("its manifest is another peer's, or of another version")
        if (
            not content.groups
            or "" in content.groups
            or len(content.groups) > self._host.config.run.batch.groups
        ):
            raise Unshown(f"its manifest has {len(content.groups)} groups, of which some are not shown")
        queries = (replace(query, group=group) for group in content.groups)
        frames = await asyncio.gather(*(self._ask(peer, query) for query in queries))
        groups = tuple(self._read(*both) for both in zip(frames, content.groups, strict=True))
        if len({group.id for group in groups}) < len(groups):
            raise Unshown("its manifest has a group twice")
        return SignedBatch(manifest, content, tuple(frames), groups)

    async def _ask(self, peer: PeerId, query: BatchQuery) -> bytes:
        if peer == self._host.ports.me:
            return self._answer(query)
        return await self._host.ports.mail.send(peer, Service.BATCHES, wire.encode(query), ASKED)

    def _read(self, frame: bytes, digest: Digest) -> Group:
        """A group as its sampler signed it. Raises Unshown, Unsigned and WireError."""
        if digest_of(frame) != digest:
            raise Unshown("a group is not the one that its manifest names")
        host, vocabulary = self._host, self._inbox.decoder.vocabulary
        opened, group = signed_group(host.frames, frame, host.config.run, vocabulary)
        if (problem := host.distrust(opened, Role.SAMPLER)) is not None:
            raise Unsigned(f"the sampler of group {group.id} may not sample: {problem}")
        if (problem := self._inbox.admission.not_drawn(group, host.now())) is not None:
            raise Unshown(f"no learner admits group {group.id}: {problem}")
        return group

    async def _agreement(
        self, peer: PeerId, batch: SignedBatch, sketches: Sketches
    ) -> tuple[float, float, bool]:
        """(cosine, ratio of norms) of a member's gradient and the recomputed one, and whether both were
        computed in float32. Raises Unshown where other groups contribute nothing here than there, or the
        recomputed gradient is not finite."""

        async def again_scored(group: Group) -> tuple[Task, tuple[float, ...]]:
            texts = await self._inbox.opener.decoded(group)
            task, rewards = await self._inbox.reward_calls.of_others(group.task, texts)
            return task, penalized(self._host.config.run, group.lengths, rewards)

        scored = await asyncio.gather(*map(again_scored, batch.groups))

        def again(groups: Sequence[Group]) -> Gradient:
            prompts, rewards = [task.prompt for task, _ in scored], [rewards for _, rewards in scored]
            return self._learner.gradient(groups, prompts, rewards, self._host.now())

        mine = await self._host.ports.work.run(Kind.LEARN, again, batch.groups)
        if self._masked(mine) != batch.content.masked:
            raise Unshown("it leaves other groups of its batch out than their log-probabilities say here")
        sent = sketches.members[peer].tolist()
        cosine, times = compared(sent, sketches.of(mine.vector).tolist())
        if math.isnan(cosine):
            raise Unshown("the gradient of its batch is not finite here")
        return cosine, times, batch.content.arithmetic.dtype == mine.arithmetic.dtype == "float32"

    def _masked(self, gradient: Gradient) -> tuple[int, ...]:
        """The groups of a gradient that add nothing, since their log-probabilities are not believed."""
        drift = self._host.config.run.window.drift
        return tuple(k for k, check in enumerate(gradient.checks) if objection(check, drift))


def compared(sent: Sequence[float], computed: Sequence[float]) -> tuple[float, float]:
    """(cosine, |sent| / |computed|) of two sketches; (1, 1) of two zeros."""
    one, other = math.hypot(*sent), math.hypot(*computed)
    if not (one and other):
        return (1.0, 1.0) if one == other else (0.0, math.inf if one else 0.0)
    return math.fsum(a / one * (b / other) for a, b in zip(sent, computed, strict=True)), one / other
