"""`swarm replay --version`: what learners record of their steps, and what anybody makes of it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nouns import NOW, release
from role_swarms import scenario

from peers import cli
from peers.build import new_run
from peers.build.model import factory, task_source
from peers.commands import sim
from peers.errors import CANNOT, DONE, REFUSED
from peers.learner.agreement.manifests import BatchManifest, StepManifest
from peers.learner.recorder import FOLDER, MemberBatch, RecordedStep, outdated, version_of
from peers.runtime.frames import Frames
from peers.sampler.new_group import make_group
from swarm.core.gradient_checks.step_recipe import Ingredient, MeanRecipe
from swarm.core.intake.curriculum import Draw
from swarm.core.intake.overlong import penalized
from swarm.draws.replays import rows_of
from swarm.events import Trained
from swarm.frames import wire
from swarm.learn.learners.base_learner import BaseLearner
from swarm.learn.models import tiny
from swarm.membership.identity import Keyring
from swarm.net.averaging.recomputed_mean import mean_again
from swarm.norm import norm
from swarm.settings.config import (
    Config,
    Model,
    ObjectiveSettings,
    Optimizer,
    Run,
    Sampling,
    Stop,
    TaskSettings,
    Training,
)
from swarm.sim.world import SimPeer, World
from swarm.storage.blocks import digest_of
from swarm.storage.durable import read_checked, write_checked
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError
from swarm.tasks.builtin.digit_sums import DigitSums
from swarm.types import Digest, Group, Task, Times


class Recorded:
    """A run of two learners with three versions, as one of them recorded it."""

    def __init__(self, folder: Path, objective: ObjectiveSettings | None = None) -> None:
        model = tiny.make(folder / "qwen3", "qwen3")
        settings = Run(
            model=Model(name=str(model)),
            task=TaskSettings(name="digit-sums"),
            objective=objective or ObjectiveSettings(),
            optimizer=Optimizer(lr=1e-3),
            sampling=Sampling(group_size=4, max_tokens=8),
        )
        self.run = new_run.create(folder / "run", settings, model)
        self.record = self.run.path / "peers" / "learner-1" / FOLDER
        self.learners = [Keyring.new(), Keyring.new()]
        self._sampler = Keyring.new()
        self._config = Config(run=settings)
        self._make()

    def frame(self, noun: object, who: Keyring) -> bytes:
        return Frames(self.run.digest, who, None, None).seal(noun)

    def _make(self) -> None:
        learner, self._tokens = factory.learner(self.run.model, self._config)
        start = Weights.of(self.run.genesis() or b"", 0)
        learner.load(start, fresh=True)
        self.record.mkdir(parents=True)
        learner.save(self.record)
        (self.record / "checkpoint.safetensors").rename(self.record / f"{0:09}.state")
        source = task_source.source(self.run, self._config, self._tokens.render_all, print)
        engine = factory.hf(self.run.model, self._config)
        engine.load(start)
        made = release(version=0, weights=start.digest, publisher=self.learners[0].me, size=1)
        times = Times(released=made.released, fetched=NOW, used=NOW, finished=NOW, sent=NOW)

        def group(number: int) -> tuple[Group, str, tuple[float, ...]]:
            task = source.task(number)
            drawn = engine.sample([task.prompt], 4, [number])[0]
            its = make_group(self._sampler.me, made, Draw(0, number, number), drawn, (0.0,) * 4, times)
            texts = self._tokens.decode_batch(rows_of(its))
            rewards = penalized(self._config.run, its.lengths, source.rewards(task, texts))
            return its, task.prompt, rewards

        for version in (1, 2, 3):
            batches = [[group(20 * version + 10 * k + j) for j in range(3)] for k in range(2)]
            self._step(learner, batches if version < 3 else batches[:1])
        self._step(learner, [[], [group(80 + j) for j in range(3)]])  # the first one has fallen in
        source.close()

    def _step(self, learner: BaseLearner, batches: Sequence[Sequence[tuple[Group, str, Any]]]) -> None:
        run, parent, version = self._config.run, learner.digest(), learner.version
        gradients = [
            learner.gradient(*map(list, zip(*batch, strict=True)), NOW) if batch else learner.nothing()
            for batch in batches
        ]
        recipe = None
        vector = gradients[0].vector
        if len(batches) > 1:
            both = zip(self.learners, gradients, strict=True)
            members = tuple(
                Ingredient(peer=key.me, weight=one.weight, norm=norm(one.vector), usual=0.0, share=1)
                for key, one in both
            )
            recipe = MeanRecipe(members=members, part=1 << 15)
            vectors = [one.vector for one in gradients]
            vector = mean_again(vectors, recipe, run.batch.groups, run.averaging.compression)
        learner.step(vector)
        shown = []
        for key, batch, gradient in zip(self.learners, batches, gradients, strict=False):
            frames = tuple(self.frame(group, self._sampler) for group, _, _ in batch)
            said = BatchManifest(
                version=version,
                weights=parent,
                weight=gradient.weight,
                groups=tuple(map(digest_of, frames)),
                arithmetic=gradient.arithmetic,
            )
            shown.append(MemberBatch(manifest=self.frame(said, key) if batch else b"", groups=frames))
        made = StepManifest(
            version=learner.version,
            weights=learner.digest(),
            parent=parent,
            state=digest_of(learner.state()),
            recipe=recipe,
        )
        self.write(made, tuple(shown))

    def write(self, made: StepManifest, batches: tuple[MemberBatch, ...]) -> None:
        step = RecordedStep(run=self.run.digest, made=self.frame(made, self.learners[0]), batches=batches)
        write_checked(self.record / f"{made.version:09}-{made.weights[:12]}.step", wire.encode(step))

    def path(self, version: int) -> Path:
        return next(self.record.glob(f"{version:09}-*.step"))

    def read(self, version: int) -> tuple[StepManifest, tuple[MemberBatch, ...]]:
        step = wire.decode(read_checked(self.path(version)), RecordedStep)
        frames = Frames(self.run.digest, self.learners[0], None, None)
        return wire.decode(
            frames.read(step.made, wire.MAIL_LIMIT, StepManifest)[0].body, StepManifest
        ), step.batches


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"))


def made_again(recorded: Recorded, version: int) -> int:
    return cli.main(["replay", str(recorded.run.path), "--version", str(version)])


def test_anybody_makes_a_version_again_from_its_record(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made_again(recorded, 3) == DONE
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["version 1", "version 2", "version 3"]
    assert "6 groups of 2 learners" in said[1] and "3 groups of 1 learner:" in said[2]
    assert all("the same weights" in line and "the same state" in line for line in said)


def test_a_version_is_made_again_of_whose_round_one_had_no_gradient(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made_again(recorded, 4) == DONE
    assert "version 4: 3 groups of 2 learners: the same weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveSettings(name="reinforce", overlong="penalty"),
        ObjectiveSettings(options={"kl": 0.5, "kl_against": "ref"}),
    ],
    ids=["a penalty of long completions", "a KL term against version 0"],
)
def test_a_version_is_made_again_whose_gradients_have(
    objective: ObjectiveSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = Recorded(tmp_path, objective)
    assert made_again(recorded, 2) == DONE
    assert "the same weights" in capsys.readouterr().out


def test_what_is_not_recorded_is_told_with_what_is(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made_again(recorded, 7) == CANNOT
    assert "version 7 is not recorded" in (said := capsys.readouterr().err) and "has 1 to 4" in said


def test_rewards_that_cannot_be_computed_here_are_no_bug_of_ours(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: DigitSums, task: Task, completion: str) -> float:
        raise RewardError("mine.py:f did not answer within 1 s")

    monkeypatch.setattr(DigitSums, "reward", fails)
    assert made_again(recorded, 3) == CANNOT
    said = "version 1: the rewards of a group cannot be computed here: mine.py:f did not answer"
    assert said in capsys.readouterr().err


def test_other_groups_than_were_signed_are_refused(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    made, batches = recorded.read(2)
    swapped = msgspec.structs.replace(batches[0], groups=batches[0].groups[::-1])
    content = recorded.path(2).read_bytes()
    recorded.write(made, (swapped, batches[1]))
    try:
        assert made_again(recorded, 2) == REFUSED
        assert "not those that the learner signed" in capsys.readouterr().err
    finally:
        recorded.path(2).write_bytes(content)


def test_a_learner_that_signed_other_weights_is_found_and_the_step_named(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    made, batches = recorded.read(2)
    content, path = recorded.path(2).read_bytes(), recorded.path(2)
    path.unlink()
    recorded.write(msgspec.structs.replace(made, weights=Digest("0" * 64)), batches)
    try:
        assert made_again(recorded, 2) == REFUSED
        said = capsys.readouterr()
        assert "version 2: 6 groups of 2 learners: OTHER weights" in said.out
        assert "threads of torch" in said.err
    finally:
        recorded.path(2).unlink()
        path.write_bytes(content)


def with_record(peer: SimPeer) -> Any:
    whole = peer.config
    its = msgspec.structs.replace(whole.peer, learner=Training(record=6))
    return sim.spawn(dataclasses.replace(peer, config=msgspec.structs.replace(whole, peer=its)))


def test_a_learner_keeps_its_newest_steps_and_the_state_below_them(tmp_path: Path) -> None:
    told: list[Any] = []
    script = scenario(0.9, (1, 3))
    World(script, with_record, sinks=[told.append], disks=tmp_path).run()
    last = max(event.version for event in told if isinstance(event, Trained))
    record = next(tmp_path.rglob(FOLDER))
    steps, states = (
        [version_of(path) for path in sorted(record.glob(kind))] for kind in ("*.step", "*.state")
    )
    assert steps == [*range(min(states) + 1, last + 1)] and len(steps) >= 6
    assert max(state for state in states if state <= last - 6) == min(states)


def test_a_learner_that_leaves_has_recorded_the_last_version(tmp_path: Path) -> None:
    World(scenario(1.0, (1, 3), stop=Stop(versions=4)), with_record, disks=tmp_path).run()
    record = next(tmp_path.rglob(FOLDER))
    assert sorted(map(version_of, record.glob("*.step"))) == [1, 2, 3, 4]


def test_files_go_that_no_state_begins(tmp_path: Path) -> None:
    for name in ("3-a.step", "4.state", "4-b.step", "5-c.step", "8.state", "9-d.step"):
        (tmp_path / name.replace(name[0], f"{int(name[0]):09}", 1)).touch()
    assert {version_of(path) for path in outdated(tmp_path, 7)} == {3, 4}
    assert {path.name for path in outdated(tmp_path, 8)} >= {f"{5:09}-c.step", f"{4:09}.state"}
    assert f"{8:09}.state" not in {path.name for path in outdated(tmp_path, 100)}


FOREIGN = (
    ".nfs0000000000a1b2c3",
    "new.state.bak",
    "._000000002.step",
    "copy of 000000002-a.step",
    "new",
    "2.state",
)


def test_files_of_other_names_in_a_record_are_left_alone(tmp_path: Path) -> None:
    for name in (*FOREIGN, f"{1:09}.state", f"{2:09}-a.step", f"{4:09}.state"):
        (tmp_path / name).touch()
    assert [path.name for path in outdated(tmp_path, 4)] == [f"{2:09}-a.step", f"{1:09}.state"]


def test_a_step_that_cannot_be_read_is_named_and_left_out_where_the_version_does_not_need_it(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    content, foreign = recorded.path(3).read_bytes(), recorded.record / FOREIGN[2]
    foreign.write_bytes(b"")
    recorded.path(3).write_bytes(b"torn")
    beside = recorded.record / f"{1:09}-{'0' * 12}.step"
    beside.write_bytes(b"torn")
    try:
        for version in (3, 4, 9):
            assert made_again(recorded, version) == CANNOT
            assert f"{recorded.path(3)} is not a record of this run" in capsys.readouterr().err
        assert made_again(recorded, 1) == DONE
        assert f"left out: {beside} is not a record of this run" in capsys.readouterr().err
    finally:
        recorded.path(3).write_bytes(content)
        foreign.unlink()
        beside.unlink()


def test_a_state_that_cannot_be_read_makes_no_version(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    state = recorded.record / f"{0:09}.state"
    content = state.read_bytes()
    state.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        assert made_again(recorded, 1) == CANNOT
        assert f"{state} is not a state of this run" in capsys.readouterr().err
    finally:
        state.write_bytes(content)
