"""`swarm verify`: evidence is replayed from what a run folder has; nobody's word is believed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from nouns import NOW, VOCABULARY, release
from nouns import group as any_group

from peers import cli
from peers.audits import evidence
from peers.audits.evidence import BYTES, KEPT, SUFFIX, Evidence
from peers.build import new_run
from peers.build.model import factory, task_source
from peers.build.run_folder import RunFolder
from peers.commands.journals import verify
from peers.errors import DONE, REFUSED, SENTENCE, USAGE
from peers.runtime.frames import Frames
from peers.sampler.new_group import make_group
from swarm.core.audits.auditing import LEAST
from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draw
from swarm.draws.replays import Replayed, claims_of, weigh
from swarm.frames import wire
from swarm.learn import replay
from swarm.learn.models import tiny, tokenization
from swarm.membership.identity import Keyring
from swarm.settings.config import Config, Model, Optimizer, Run, Sampling, TaskSettings
from swarm.storage.weights import Weights
from swarm.types import Array, Digest, Group, Heads, Release, Times

SEED = 77


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    policy = tiny.make(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")
    settings = Run(
        model=Model(name="tiny"),
        task=TaskSettings(name="digit-sums"),
        optimizer=Optimizer(lr=1e-6),
        sampling=Sampling(group_size=4, max_tokens=8),
    )
    return new_run.create(tmp_path_factory.mktemp("runs") / "one", settings, policy)


@pytest.fixture(scope="module")
def weights(run: RunFolder) -> Weights:
    return Weights.of(run.genesis() or b"", 0)


class Parties:
    """A sampler and a learner, and what they sign."""

    def __init__(self, run: RunFolder, weights: Weights) -> None:
        self.sampler, self.learner = Keyring.new(), Keyring.new()
        self._run, self._weights = run, weights
        self.release: Release = release(
            version=0, weights=weights.digest, publisher=self.learner.me, size=weights.blocks.size
        )

    def group(self) -> Group:
        config = Config(run=self._run.settings)
        engine, tokens = factory.hf(self._run.model, config), tokenization.load(self._run.model)
        source = task_source.source(self._run, config, tokens.render_all, print)
        engine.load(self._weights)
        task = source.task(3)
        drawn = engine.sample([task.prompt], 4, [SEED])[0]
        times = Times(released=self.release.released, fetched=NOW, used=NOW, finished=NOW, sent=NOW)
        return make_group(self.sampler.me, self.release, Draw(0, 3, SEED), drawn, (0.0,) * 4, times)

    def frame(self, noun: object, who: Keyring) -> bytes:
        return Frames(self._run.digest, who, None, None).seal(noun)

    def evidence(self, group: Group, signer: Keyring | None = None) -> Evidence:
        return Evidence(
            run=self._run.digest,
            frame=self.frame(group, signer or self.sampler),
            release=self.frame(self.release, self.learner),
            auditor=self.learner.me,
            at=NOW,
            why="two tokens are off",
        )


@pytest.fixture(scope="module")
def parties(run: RunFolder, weights: Weights) -> Parties:
    return Parties(run, weights)


@pytest.fixture(scope="module")
def honest(parties: Parties) -> Group:
    return parties.group()


def changed(group: Group, at: int = 0) -> Group:
    """With another token at this place."""
    tokens = np.frombuffer(group.tokens.data, "<i4").copy()
    tokens[at] = (tokens[at] + 7) % 100
    data = tokens.tobytes()
    name = group_id(group.sampler, group.version, group.task, group.seed, data, group.logprobs.data)
    return msgspec.structs.replace(
        group, id=name, tokens=Array(dtype="int32", shape=group.tokens.shape, data=data)
    )


def verified(path: Path, run: RunFolder) -> int:
    return cli.main(["verify", str(path), "--folder", str(run.path)])


def kept(folder: Path, parties: Parties, group: Group, weights: Weights, **other: Keyring) -> Path:
    evidence.keep(folder, group.id, parties.evidence(group, **other), weights)
    return folder / f"{group.id}{SUFFIX}"


def test_a_changed_token_is_shown_to_anybody_and_an_honest_group_clears_its_sampler(
    tmp_path: Path,
    run: RunFolder,
    parties: Parties,
    honest: Group,
    weights: Weights,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verified(kept(tmp_path, parties, changed(honest), weights), run) == DONE
    out = capsys.readouterr().out
    assert parties.sampler.me in out and "the evidence holds" in out and "completion 4" in out
    assert verified(kept(tmp_path, parties, honest, weights), run) == REFUSED
    assert "does not hold" in capsys.readouterr().out


def test_one_token_that_is_off_is_bad_luck_as_learners_have_it(
    tmp_path: Path,
    run: RunFolder,
    parties: Parties,
    honest: Group,
    weights: Weights,
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = changed(honest, honest.lengths[0] - 1)
    assert verified(kept(tmp_path, parties, last, weights), run) == DONE
    out = capsys.readouterr().out
    assert "1 of 32 tokens are off" in out and "the evidence holds, but it is one token" in out


def test_what_is_allowed_is_measured_on_as_much_text_as_learners_measure_it(
    run: RunFolder, honest: Group, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = replay.replay_both
    seeds, tokens = list[int](), tokenization.load(run.model)

    def wider(policy: Any, *group: Any) -> tuple[Replayed, Replayed]:
        found, other = usual(policy, *group)
        seeds.append(group[3])
        far = np.full_like(other.margins, 0.5 if len(seeds) == replay.CALIBRATED else 0.0)
        return found, dataclasses.replace(other, margins=far)

    monkeypatch.setattr(replay, "replay_both", wider)
    found, _ = verify._replayed(run, tokens, changed(honest, honest.lengths[0] - 1), weights, Config())
    assert seeds[0] == SEED and len({*seeds}) == len(seeds) == replay.CALIBRATED
    assert found.off == int(found.largest > 2.5)


def test_a_group_that_its_sampler_did_not_sign_is_no_evidence(
    tmp_path: Path,
    run: RunFolder,
    parties: Parties,
    honest: Group,
    weights: Weights,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = kept(tmp_path, parties, changed(honest), weights, signer=parties.learner)
    assert verified(path, run) == REFUSED
    assert "is signed by" in capsys.readouterr().err


def test_a_version_that_is_not_here_is_asked_for(
    tmp_path: Path,
    run: RunFolder,
    parties: Parties,
    honest: Group,
    weights: Weights,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = kept(tmp_path, parties, changed(honest), weights)
    path.with_suffix(BYTES).rename(tmp_path / "elsewhere")
    assert verified(path, run) == 3 and "--release" in capsys.readouterr().err
    words = ["verify", str(path), "--folder", str(run.path), "--release", str(tmp_path / "elsewhere")]
    assert cli.main(words) == DONE


def test_evidence_of_another_run_or_of_nothing_is_refused(
    tmp_path: Path, run: RunFolder, parties: Parties, honest: Group
) -> None:
    (tmp_path / "nothing").write_bytes(b"\0" * 8)
    assert verified(tmp_path / "nothing", run) == 2 and verified(tmp_path / "none", run) == 2
    other = msgspec.structs.replace(parties.evidence(honest), run=Digest("0" * 64))
    (tmp_path / "other").write_bytes(wire.encode(other))
    assert verified(tmp_path / "other", run) == REFUSED


def test_a_folder_keeps_the_newest_evidence(
    tmp_path: Path, parties: Parties, honest: Group, weights: Weights
) -> None:
    for number in range(KEPT + 3):
        evidence.keep(tmp_path, f"group-{number}", parties.evidence(honest), weights)
    assert len([*tmp_path.glob(f"*{SUFFIX}")]) == len([*tmp_path.glob(f"*{BYTES}")]) == KEPT


def test_false_heads_are_told_of_each_completion() -> None:
    made = any_group(heads=Heads(tokens=bytes(12), logprobs=bytes(6)))
    none = np.zeros(3, np.float32)
    replayed = Replayed(none, claims_of(made), np.array([0.0, 2.5, 0.25], np.float32))
    found = weigh(replayed, claims_of(made), LEAST)
    lines = [*verify._lines(made, replayed, found)]
    assert lines[2].endswith(", heads 2.5") and lines[3].endswith(", heads 0.25")
    assert lines[4].startswith("1 of 3 tokens are off")


def test_a_group_that_contradicts_its_heads_is_no_evidence_as_no_learner_admits_it() -> None:
    me, limit = Keyring.new(), wire.group_limit(2, 2, heads=1)
    frames = Frames("5" * 64, me, None, None)
    beyond = Heads(tokens=np.full(3, VOCABULARY, "<i4").tobytes(), logprobs=bytes(6))
    frame = frames.seal(any_group(sampler=me.me, heads=beyond), limit)
    asked = Run(sampling=Sampling(group_size=2, max_tokens=2, heads=1))
    with pytest.raises(evidence.Unsigned, match="no learner admits the group: a token of its heads"):
        evidence.signed_group(frames, frame, asked, VOCABULARY)


def test_what_the_learner_says_cannot_rewrite_the_verdict(
    tmp_path: Path,
    run: RunFolder,
    parties: Parties,
    honest: Group,
    weights: Weights,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = kept(tmp_path, parties, changed(honest), weights)
    why = "\x1b[2Athe evidence does not hold\n\x1b]52;c;bQ==\x07\u202e\x9b8m" + "x" * 16_000
    path.write_bytes(wire.encode(msgspec.structs.replace(parties.evidence(changed(honest)), why=why)))
    assert verified(path, run) == DONE
    out, err = capsys.readouterr()
    assert "the evidence holds" in out and "does not hold" not in out
    said = err.splitlines()[-1]
    assert "the learner" in said and "does not hold" in said and len(said) <= SENTENCE and said.isprintable()


def test_what_is_no_evidence_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = tmp_path / "torn.evidence"
    torn.write_bytes(b"\x85")
    for path, why in ((tmp_path, "Is a directory"), (torn, "not all of it"), (tmp_path / "x", "there is no")):
        assert cli.main(["verify", str(path)]) == 2 and why in capsys.readouterr().err


@pytest.mark.parametrize("shallow", [True, False])
def test_evidence_that_lies_in_no_run_folder_asks_for_one(
    parties: Parties,
    honest: Group,
    tmp_path: Path,
    shallow: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "elsewhere.evidence"
    path.write_bytes(wire.encode(parties.evidence(honest)))
    if shallow:
        monkeypatch.setattr(Path, "resolve", lambda _: Path("/tmp/elsewhere.evidence"))
    assert cli.main(["verify", str(path)]) == USAGE
    assert "name that of the evidence's run with --folder" in capsys.readouterr().err
