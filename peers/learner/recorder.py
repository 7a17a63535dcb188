"""Records the inputs of this learner's versions, so that anyone can recompute them (`swarm replay
--version`).

    a step  -> the batches of all members of its round, as they signed them      (service batches)
            -> StepManifest, signed, once the version's digest is known
    record/000000120.state             this learner's state at a version: another name of its checkpoint
    record/000000121-DIGEST.step       RecordedStep

A state begins a line of steps that follow one another; where this learner loads a release, a new state does.
Steps are removed with the state below them, once `peer.learner.record` newer ones are there. Not recorded,
since one peer alone cannot recompute them: steps whose batch another member does not serve. Not handled here:
recomputing a version (peers.commands.journals.remake).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from peers.audits.evidence import Unsigned
from peers.learner.agreement.manifests import GROUPS, StepManifest
from peers.learner.agreement.own_release import OwnRelease
from peers.learner.agreement.rechecks import BatchRechecks, Unshown
from peers.runtime.host import Host
from swarm import events
from swarm.core.gradient_checks.step_recipe import MEMBERS, MeanRecipe
from swarm.frames import wire
from swarm.learn.files import checkpoint
from swarm.learn.learners.base_learner import BaseLearner
from swarm.limits import MAIL_LIMIT
from swarm.net.ports import NetError
from swarm.protocol import Kind
from swarm.storage.blocks import digest_of
from swarm.storage.durable import make_folder, write_checked
from swarm.types import Digest, PeerId, Struct

FOLDER, STEP, STATE = "record", ".step", ".state"

_NAMES = {STEP: re.compile(r"[0-9]{9,18}-[0-9a-f]{1,12}\.step"), STATE: re.compile(r"[0-9]{9,18}\.state")}

LAST = 5.0
"""Seconds that a learner which leaves takes at most to record its last steps: members show their batches
within milliseconds, and one of them may have left."""

Frame = Annotated[bytes, Meta(max_length=MAIL_LIMIT.sealed)]


class MemberBatch(Struct, frozen=True):
    """The batch of one member's gradient."""

    manifest: Frame
    """Of its BatchManifest."""
    groups: Annotated[tuple[Frame, ...], Meta(max_length=GROUPS)]


class RecordedStep(Struct, frozen=True, tag="recorded-step"):
    run: Digest
    made: Frame
    """Of the StepManifest."""
    batches: Annotated[tuple[MemberBatch, ...], Meta(max_length=MEMBERS)]
    """In the order of its recipe; without members whose gradients have no weight."""


class StepTaken(NamedTuple):
    version: int
    parent: Digest
    state: Digest
    recipe: MeanRecipe | None


class Recorder:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        rechecks: BatchRechecks,
        own_release: OwnRelease,
        checkpoints: Path | None,
    ) -> None:
        """`checkpoints` is the folder of this learner's checkpoint, beside which the record is; None records
        nothing."""
        self._host, self._learner = host, learner
        self._rechecks, self._own_release = rechecks, own_release
        self._checkpoint = checkpoints and checkpoints / checkpoint.NAME
        self._folder = checkpoints and checkpoints.with_name(FOLDER)
        self._most, self._why_not = host.config.peer.learner.record, _cannot(host, learner)
        self.works = self._most > 0 and checkpoints is not None and not self._why_not
        self._steps = asyncio.Queue[StepTaken]()

    async def run(self) -> None:
        """Record steps, beside the round, until cancelled."""
        if self._most > 0 and self._why_not:
            text = f"no version is recorded for `swarm replay --version`: {self._why_not}"
            self._host.emit(events.Noted, level="warning", text=text)
        async with asyncio.TaskGroup() as records:
            while True:
                records.create_task(self._record(await self._steps.get())).add_done_callback(self._recorded)

    def _recorded(self, _: asyncio.Task[None]) -> None:
        self._steps.task_done()

    async def finish(self) -> None:
        """Wait for the steps so far, LAST seconds at most, while other members of their rounds are here."""
        try:
            async with asyncio.timeout(LAST):
                await self._steps.join()
        except TimeoutError:
            text = f"the last version is not recorded: its round's batches took more than {LAST:.0f} s"
            self._host.emit(events.Noted, level="info", text=text)

    async def stepped(self, parent: Digest, alone: bool, recipe: MeanRecipe | None) -> None:
        """This learner has just stepped from `parent` to its version: along the mean of a round, or `alone`
        along its own gradient."""
        if not self.works or (recipe is None and not alone):
            return
        run = self._host.ports.work.run
        state = await run(Kind.COPY, lambda: digest_of(self._learner.state()))
        self._steps.put_nowait(StepTaken(self._learner.version, parent, state, recipe))

    async def saved(self, version: int) -> None:
        """The checkpoint is of `version`."""
        if not self.works:
            return
        assert self._checkpoint is not None and self._folder is not None
        checkpoint, folder = self._checkpoint, self._folder

        def link() -> None:
            make_folder(folder)
            draft = folder / "new"
            draft.unlink(missing_ok=True)
            os.link(checkpoint, draft)
            draft.rename(folder / f"{version:09}{STATE}")

        await self._write(link)

    async def _record(self, step: StepTaken) -> None:
        host, me = self._host, self._host.ports.me
        await self._own_release.packed()
        weights = self._own_release.weights
        if self._learner.version != step.version or not weights:
            return  # a better release took its place
        counted = weights_of(step.recipe, me).items()
        asked = [self._shown(peer, step) if weight else _nothing() for peer, weight in counted]
        try:
            batches = await asyncio.gather(*asked)
        except (NetError, Unshown, Unsigned, wire.WireError) as error:
            text = f"version {step.version} is not recorded: {error}"
            host.emit(events.Noted, level="info", text=text)
            return
        made = StepManifest(
            version=step.version, weights=weights, parent=step.parent, state=step.state, recipe=step.recipe
        )
        recorded = RecordedStep(run=host.who.run, made=host.seal(made), batches=tuple(batches))
        folder, most = self._folder, self._most
        assert folder is not None

        def write() -> None:
            write_checked(folder / f"{step.version:09}-{weights[:12]}{STEP}", wire.encode(recorded))
            for old in outdated(folder, step.version - most):
                old.unlink(missing_ok=True)

        await self._write(write)

    async def _shown(self, peer: PeerId, step: StepTaken) -> MemberBatch:
        """The batch of a member's gradient. Raises as BatchRechecks.batch."""
        batch = await self._rechecks.batch(peer, step.version - 1, step.parent)
        return MemberBatch(manifest=batch.manifest, groups=batch.frames)

    async def _write(self, write: Callable[[], None]) -> None:
        await self._host.disk.write("record", "the last version is not recorded", Kind.KEEP, write)


def outdated(folder: Path, floor: int) -> list[Path]:
    """Files of versions that no state begins any more, where those above `floor` are to stay."""
    files = [(version_of(path), path) for kind in (STEP, STATE) for path in recorded(folder, kind)]
    states = [version for version, path in files if path.suffix == STATE]
    base = max((version for version in states if version <= floor), default=min(states, default=floor))
    return [path for version, path in files if version < base or (version == base and path.suffix == STEP)]


def recorded(folder: Path, kind: str) -> list[Path]:
    """A record's files of one kind, STEP or STATE, by version; files of other names are another program's."""
    found = (path for path in folder.glob(f"*{kind}") if _NAMES[kind].fullmatch(path.name))
    return sorted(found, key=lambda path: (version_of(path), path.name))


def version_of(path: Path) -> int:
    """The version that a file of a record is of."""
    return int(path.name.partition(".")[0].partition("-")[0])


def _cannot(host: Host, learner: BaseLearner) -> str:
    """Why this learner's versions cannot be recomputed; empty where they can."""
    averaging = host.config.run.averaging
    if averaging.mode != "butterfly":
        return "sites do not average gradients"
    if averaging.overlap:
        return "with run.averaging.overlap a gradient is of the version before its step's"
    return "a gradient takes in the whole round's rewards" if learner.objective.of_round else ""


def weights_of(recipe: MeanRecipe | None, alone: PeerId) -> dict[PeerId, float]:
    """Weights of a round's members, in its order, or of the learner that stepped `alone`; 0 for a gradient
    that does not count."""
    return {one.peer: one.weight for one in recipe.members} if recipe is not None else {alone: 1.0}


async def _nothing() -> MemberBatch:
    return MemberBatch(manifest=b"", groups=())
