"""What an invite names runs as a program of the joiner's where the joiner consents, and nowhere else."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers import cli
from peers.audits.evidence import Evidence
from peers.build import new_run, run_folder
from peers.build.joining.consent import check_code, named_code
from peers.build.local_peer import open_local_peer
from peers.build.model import task_source
from peers.build.real_host import membership_of
from peers.build.run_folder import RunFolder
from peers.errors import REFUSED, CannotHere, Refusal
from peers.runtime.peer_folder import PeerFolder
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.learn.models import tiny, tokenization
from swarm.membership.identity import open_key
from swarm.protocol import Role
from swarm.settings.config import (
    Config,
    Evaluation,
    EvaluationSet,
    Model,
    ObjectiveSettings,
    Peer,
    Rewards,
    Run,
    Sampling,
    TaskSettings,
)
from swarm.settings.loading import run_dict
from swarm.tasks.base import RewardError
from swarm.tasks.workers import sandbox
from swarm.types import Digest, PeerId

OWN_OBJECTIVE = Run(name="lab", objective=ObjectiveSettings(name="lab_losses.mine:NAME"))
INSTALLED_TASK = Run(name="lab", task=TaskSettings(name="verifiers:gsm8k"))
WORKERS = {Role.LEARNER, Role.SAMPLER, Role.EVALUATOR, Role.AUDITOR}


def folder(run: Run, owned: bool = False) -> Any:
    return SimpleNamespace(name=run.name, settings=run, trusted=owned)


@pytest.mark.parametrize("role", Role)
def test_the_settings_that_begin_installed_code_are_named_to_whom_they_matter(role: Role) -> None:
    assert bool(named_code(OWN_OBJECTIVE, role)) == (role is Role.LEARNER)
    assert bool(named_code(INSTALLED_TASK, role)) == (role in WORKERS)
    judged = Run(evaluation=Evaluation(sets={"code": EvaluationSet(name="verifiers:gsm8k")}))
    assert bool(named_code(judged, role)) == (role is Role.EVALUATOR)
    assert named_code(Run(), role) == []


@pytest.mark.parametrize("run", [OWN_OBJECTIVE, INSTALLED_TASK])
def test_a_joiner_is_asked_and_its_settings_answer(run: Run) -> None:
    for code in ("sandbox", "refuse"):
        with pytest.raises(Refusal, match=r"run lab has a learner begin .*--set peer.rewards.code=trust"):
            check_code(folder(run), Role.LEARNER, code)
    check_code(folder(run), Role.LEARNER, "trust")
    check_code(folder(run, owned=True), Role.LEARNER, "refuse")
    check_code(folder(run), Role.SEED, "refuse")


REWARD = """
import contextlib, os, pathlib
with contextlib.suppress(OSError):  # in a sandbox there is no such folder
    pathlib.Path({marker!r}).write_text(str(os.getuid()))

def short(completions, **columns):
    return [1.0 / (1 + len(text)) for text in completions]
"""


@pytest.fixture
def sent(tmp_path: Path) -> tuple[RunFolder, Path]:
    """A run folder with a reward file that leaves a mark where no sandbox holds it."""
    marker = tmp_path / "ran-here"
    reward = tmp_path / "mine.py"
    reward.write_text(REWARD.format(marker=str(marker)))
    settings = Run(
        model=Model(name="tiny"),
        task=TaskSettings(name="digit-sums", rewards=(f"{reward}:short",)),
        sampling=Sampling(group_size=4, max_tokens=8),
    )
    run = new_run.create(tmp_path / "run", settings, tiny.make(tmp_path / "qwen3", "qwen3"))
    marker.unlink()  # who starts a run trusts its own code
    return run, marker


def test_what_lies_in_a_folder_makes_nobody_trust_its_code(sent: tuple[RunFolder, Path]) -> None:
    run, marker = sent
    folder = run_folder.read(run.path)
    assert folder is not None and folder.is_owners and not folder.trusted
    config = Config(run=run.settings, peer=Peer(rewards=Rewards(code="sandbox")))
    tokens = tokenization.load(run.model)
    if sandbox.missing():
        with pytest.raises(sandbox.NoSandbox):
            task_source.source(folder, config, tokens.render_all, print)
    else:
        task_source.source(folder, config, tokens.render_all, print).close()
    assert not marker.exists()
    task_source.source(folder.as_owners(), config, tokens.render_all, print).close()
    assert marker.exists()


def test_the_owner_vouches_for_a_sampler_where_the_run_is_trusted_and_nowhere_else(
    sent: tuple[RunFolder, Path], tmp_path: Path
) -> None:
    run, _ = sent
    with open_local_peer(PeerFolder(tmp_path / "sampler-1")) as local:
        me = local.keyring.me
        assert membership_of(None, Role.SAMPLER, run, local) is None
        given = membership_of(None, Role.SAMPLER, run.as_owners(), local)
        assert run.trust.invited(me, Role.SAMPLER, given, time.time())
        assert not run.trust.invited(me, Role.LEARNER, given, time.time())


@pytest.mark.parametrize("key", [b"", b"another's"])
def test_an_owner_key_that_is_not_the_runs_makes_no_owner(sent: tuple[RunFolder, Path], key: bytes) -> None:
    run, _ = sent
    path = run.path / "owner.key"
    path.unlink()
    if key:
        open_key(path)
    else:
        path.touch(0o600)
    with pytest.raises(CannotHere):
        run.as_owners()


def test_tasks_are_read_without_any_of_a_runs_rewards(sent: tuple[RunFolder, Path]) -> None:
    run, marker = sent
    tokens = tokenization.load(run.model)
    refuses = Config(run=run.settings, peer=Peer(rewards=Rewards(code="refuse")))
    source = task_source.source(run, refuses, tokens.render_all, print, scores=False)
    assert source.task(3).prompt and not marker.exists()
    with pytest.raises(RewardError, match="none of"):
        source.rewards(source.task(3), ["1"])
    source.close()


@pytest.mark.parametrize(
    "said", [["verify", "EVIDENCE", "--folder"], ["replay", "--version", "1"]], ids=lambda said: said[0]
)
def test_a_command_on_a_folder_asks_before_installed_code_begins(
    said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Run(
        name="lab",
        task=TaskSettings(name="verifiers:gsm8k"),
        objective=ObjectiveSettings(name="lab_losses.mine:NAME"),
    )
    spec = Spec(
        protocol=PROTOCOL, run=run_dict(settings), owner="", files={}, genesis=Digest(""), release_size=1
    )
    run = run_folder.keep_spec(tmp_path, wire.encode(spec))
    evidence = tmp_path / "g.evidence"
    shown = Evidence(run=run.digest, frame=b"", release=b"", auditor=PeerId("x"), at=0.0, why="")
    evidence.write_bytes(wire.encode(shown))
    words = [str(evidence) if word == "EVIDENCE" else word for word in said]
    assert cli.main([*words, str(tmp_path)]) == REFUSED
    assert "--set peer.rewards.code=trust" in capsys.readouterr().err
