"""`swarm replay --version`: recomputes a version from the records of its steps by learners, bit for bit.

    record: newest state below the version -> learner
            steps up to the version: manifests, frames -- whose signatures are checked --> groups
    run folder -> model, tokenizer, tasks, rewards
    groups -> gradient of each member -> mean -> step -> the digests that the learner signed? 0: yes, 5: no

Nothing that learners claim is trusted: rewards, gradients and means are computed again, and the state's
weights must be those that the first step names. Its optimizer moments are the learner's claim, unless the
record begins with the run. Not handled here: what is recorded (peers.learner.recorder).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peers.audits.evidence import Unsigned, signed_group
from peers.build.joining.consent import check_code
from peers.build.model import task_source
from peers.build.run_folder import RunFolder, check_files, opened
from peers.errors import DONE, REFUSED, CannotHere, Refusal, WrongUsage, say
from peers.learner.agreement.manifests import BatchManifest, StepManifest
from peers.learner.recorder import (
    FOLDER,
    STATE,
    STEP,
    MemberBatch,
    RecordedStep,
    recorded,
    version_of,
    weights_of,
)
from peers.runtime.frames import Frames
from swarm.core.gradient_checks.step_recipe import Arithmetic, MeanRecipe
from swarm.core.intake.claimed_logprobs import objection
from swarm.core.intake.overlong import penalized
from swarm.draws.replays import rows_of
from swarm.frames import wire
from swarm.limits import MAIL_LIMIT
from swarm.membership.identity import Keyring
from swarm.protocol import Role
from swarm.settings.config import Config, Training
from swarm.storage.blocks import digest_of
from swarm.storage.durable import Torn, read_checked
from swarm.tasks.base import RewardError
from swarm.types import Digest, Group, PeerId

if TYPE_CHECKING:
    from torch import Tensor

    from swarm.learn.learners.base_learner import BaseLearner
    from swarm.learn.models.tokenization import Tokenization
    from swarm.tasks.base import TaskSource


class VerifiedStep(NamedTuple):
    """A recorded step with a valid signature."""

    learner: PeerId
    made: StepManifest
    batches: Sequence[MemberBatch]


class RecordedSteps(NamedTuple):
    """Steps that follow one another, from a state on."""

    state: Path
    steps: list[VerifiedStep]


def remake(version: int, records: Sequence[Path], folder: Path, config: Config) -> int:
    """Recompute `version` from `records`, or from those of the run `folder`, and print the result; `config`
    has this machine's own settings. Returns an exit code; raises UserError."""
    if version < 1:
        raise WrongUsage(f"--version {version}: no step made it; give 1 or more")
    run = opened(folder)
    check_code(run, Role.LEARNER, config.peer.rewards.code)
    found = list(map(check_files, records)) or sorted(run.path.glob(f"peers/*/{FOLDER}"))
    if not found:
        raise CannotHere(
            f"{run.path} has no record: learners keep that of their newest N versions with --set"
            " peer.learner.record=N"
        )
    frames = Frames(run.digest, Keyring.new(), None, run.keys())
    damaged: list[str] = []
    each = [line for record in found for line in _lines(record, version, frames, damaged.append)]
    lines = {line.steps[-1].made.weights: line for line in each}.values()  # others recorded the same
    if not lines:
        known = [*map(_versions_in, found), *damaged]
        raise CannotHere(f"version {version} is not recorded: {'; '.join(known)}")
    for one in damaged:
        say(f"swarm: left out: {one}")
    maker = _Maker(run, frames, config)
    alike = [maker.make(line) for line in lines]
    return DONE if all(alike) else REFUSED


def _versions_in(record: Path) -> str:
    """Which versions a record has."""
    steps, states = ([version_of(path) for path in recorded(record, kind)] for kind in (STEP, STATE))
    has = [step for step in steps if states and step > min(states)]
    return f"{record} has {f'{min(has)} to {max(has)}' if has else 'none'}"


def _lines(
    record: Path, version: int, frames: Frames, damaged: Callable[[str], None]
) -> Iterator[RecordedSteps]:
    """The shortest line of steps to each recorded version of that number; `damaged` is called for each
    unreadable step below it."""
    steps: dict[tuple[int, Digest], VerifiedStep] = {}
    for path in recorded(record, STEP):
        if version_of(path) <= version:
            try:
                one = _read(path, frames)
            except (OSError, Refusal) as error:
                damaged(str(error))
            else:
                steps[one.made.version, one.made.weights] = one
    for end in [step for step in steps.values() if step.made.version == version]:
        line = [end]
        while not (state := record / f"{line[0].made.version - 1:09}{STATE}").is_file():
            before = steps.get((line[0].made.version - 1, line[0].made.parent))
            if before is None:
                break
            line.insert(0, before)
        else:
            yield RecordedSteps(state, line)


def _read(path: Path, frames: Frames) -> VerifiedStep:
    """Raises OSError, Refusal."""
    try:
        kept = wire.decode(read_checked(path), RecordedStep)
        signed, made = frames.read(kept.made, MAIL_LIMIT, StepManifest)
    except (Torn, wire.WireError) as error:
        raise Refusal(f"{path} is not a record of this run: {error}") from error
    if len(kept.batches) != (1 if made.recipe is None else len(made.recipe.members)):
        raise Refusal(f"{path} has {len(kept.batches)} batches, which are not those of its round")
    return VerifiedStep(signed.sender, made, kept.batches)


class _Maker:
    """Recomputes steps with the model and tasks of the run folder, on the CPU."""

    def __init__(self, run: RunFolder, frames: Frames, own: Config) -> None:
        self._run, self._frames, self._settings = run, frames, run.settings
        self._config = Config(run=run.settings, peer=own.peer)

    def make(self, line: RecordedSteps) -> bool:
        """Print whether each step of a line results in the weights and the state that its learner signed;
        stops after the first that does not."""
        import torch

        torch.set_num_threads(max(1, self._arithmetic(line.steps[0]).threads))
        learner, tokens = self._learner(line)
        made = task_source.source(self._run, self._config, tokens.render_all, say)
        with closing(made) as source:
            for step in line.steps:
                vectors = [self._gradient(learner, tokens, source, step, k) for k in range(len(step.batches))]
                learner.step(self._mean(vectors, step.made.recipe))
                weights, state = learner.digest(), digest_of(learner.state())
                alike = (weights, state) == (step.made.weights, step.made.state)
                came = _compared(step, weights, state)
                say(f"version {step.made.version}: {self._batches_of(step)}: {came}", sys.stdout)
                if not alike:
                    for reason in self._reasons(step, vectors):
                        say(reason)
                    return False
        return True

    def _learner(self, line: RecordedSteps) -> tuple[BaseLearner, Tokenization]:
        """A learner in the state that the line begins with. Raises CannotHere and Refusal."""
        from peers.build.model import factory

        first, dtype = line.steps[0], self._arithmetic(line.steps[0]).dtype
        training = Training(device="cpu", dtype="bfloat16" if dtype == "bfloat16" else "float32")
        peer = msgspec.structs.replace(Config().peer, learner=training)
        learner, tokens = factory.learner(self._run.model, Config(run=self._settings, peer=peer))
        try:
            learner.load_state(read_checked(line.state))
        except (Torn, ValueError) as error:
            raise CannotHere(f"{line.state} is not a state of this run: {error}") from error
        if (learner.version, learner.digest()) != (first.made.version - 1, first.made.parent):
            raise Refusal(
                f"{line.state} is not version {first.made.version - 1} with the weights"
                f" {first.made.parent[:12]}, which the next one goes on from"
            )
        return learner, tokens

    def _gradient(
        self, learner: BaseLearner, tokens: Tokenization, source: TaskSource, step: VerifiedStep, which: int
    ) -> Tensor:
        """The gradient of one member. Raises Refusal where its batch is not the one that it signed, and
        CannotHere."""
        if step.made.recipe is not None and not step.made.recipe.members[which].weight:
            return learner.nothing().vector
        manifest, groups = self._manifest(step, which), self._groups(step.batches[which], tokens.vocabulary)
        if [digest_of(frame) for frame in step.batches[which].groups] != [*manifest.groups]:
            raise Refusal(f"version {step.made.version}: the groups are not those that the learner signed")
        tasks = [source.task(group.task) for group in groups]
        try:
            rewards = [
                penalized(
                    self._settings, group.lengths, source.rewards(task, tokens.decode_batch(rows_of(group)))
                )
                for task, group in zip(tasks, groups, strict=True)
            ]
        except RewardError as error:
            raise CannotHere(
                f"version {step.made.version}: the rewards of a group cannot be computed here: {error}; mend"
                " that, or make the version again where its learner ran"
            ) from error
        chunks = manifest.arithmetic.chunks
        if sum(chunks) != sum(map(learner.objective.teaches, rewards)):
            raise CannotHere(
                f"version {step.made.version}: its learner does not say how it computed the gradient: it is"
                " on several devices, or of another version of this program"
            )
        prompts = [task.prompt for task in tasks]
        made = learner.gradient(groups, prompts, rewards, time.time(), chunks=chunks)
        drift = self._settings.window.drift
        masked = [k for k, check in enumerate(made.checks) if objection(check, drift)]
        if (masked, made.weight) != ([*manifest.masked], manifest.weight):
            text = f"{step.made.version}: member {which + 1} signed another mask or another weight"
            say(text)
        return made.vector

    def _manifest(self, step: VerifiedStep, which: int) -> BatchManifest:
        """Raises Refusal."""
        recipe, made = step.made.recipe, step.made
        member = step.learner if recipe is None else recipe.members[which].peer
        try:
            signed, manifest = self._frames.read(step.batches[which].manifest, MAIL_LIMIT, BatchManifest)
        except wire.WireError as error:
            raise Refusal(
                f"version {made.version}: a manifest is not what anybody signed: {error}"
            ) from error
        if signed.sender != member or (manifest.version, manifest.weights) != (made.version - 1, made.parent):
            raise Refusal(
                f"version {made.version}: a manifest is not that of {member}, or of another version"
            )
        return manifest

    def _groups(self, batch: MemberBatch, vocabulary: int) -> list[Group]:
        """As their samplers signed them. Raises Refusal."""
        try:
            return [
                signed_group(self._frames, frame, self._settings, vocabulary)[1] for frame in batch.groups
            ]
        except (Unsigned, wire.WireError) as error:
            raise Refusal(f"a group is not what its sampler signed: {error}") from error

    def _mean(self, vectors: list[Tensor], recipe: MeanRecipe | None) -> Tensor:
        if recipe is None:
            return vectors[0]
        from swarm.net.averaging.recomputed_mean import mean_again

        return mean_again(vectors, recipe, self._settings.batch.groups, self._settings.averaging.compression)

    def _batches_of(self, step: VerifiedStep) -> str:
        groups, learners = sum(len(each.groups) for each in step.batches), len(step.batches)
        return f"{groups} groups of {learners} learner{'s' * (learners > 1)}"

    def _arithmetic(self, step: VerifiedStep) -> Arithmetic:
        """That of the learner that recorded the step."""
        weights = weights_of(step.made.recipe, step.learner)
        if step.learner not in weights:
            raise Refusal(f"version {step.made.version}: the learner that recorded it was not in its round")
        computing = [peer for peer, weight in weights.items() if weight]  # the others had no gradient
        member = step.learner if weights[step.learner] else computing[0]
        return self._manifest(step, [*weights].index(member)).arithmetic

    def _reasons(self, step: VerifiedStep, vectors: Sequence[Tensor]) -> Iterator[str]:
        """Possible explanations of different bits."""
        import torch

        from swarm.norm import norm

        arithmetic = self._arithmetic(step)
        yield (
            f"the learner computed on {arithmetic.device} in {arithmetic.dtype}, with"
            f" {arithmetic.threads} threads of torch {arithmetic.torch}; here it is a cpu, with"
            f" {torch.get_num_threads()} of torch {torch.__version__}"
        )
        members = step.made.recipe.members if step.made.recipe is not None else ()
        for one, vector in zip(members, vectors, strict=False):
            if one.norm != (size := norm(vector)):
                yield f"the gradient of {one.peer} has a norm of {size:.9g}, it announced {one.norm:.9g}"


def _compared(step: VerifiedStep, weights: Digest, state: Digest) -> str:
    if weights != step.made.weights:
        return f"OTHER weights, {weights[:12]}; {step.learner} signed {step.made.weights[:12]}"
    if state != step.made.state:
        return f"the same weights {weights[:12]}, ANOTHER state of the optimizer"
    return f"the same weights {weights[:12]}, the same state of the optimizer"
