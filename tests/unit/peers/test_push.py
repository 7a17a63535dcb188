"""`swarm push`: the model with its card, uploaded by the Hub's own client to a small server of ours."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import ModelCard, constants
from huggingface_hub.utils import close_session
from model_hub import COMMIT, Hub, point, served
from nouns import NOW, beat, release
from trained_runs import trained
from transformers import AutoModelForCausalLM

from peers import cli
from peers.build import new_run
from peers.build.run_folder import RunFolder
from peers.commands.policies import push as pushing
from swarm.events import Counted, Evaluated, Event, Heard, Released, SetResult
from swarm.journal import Journal
from swarm.learn.models import tiny
from swarm.membership.identity import Keyring
from swarm.protocol import Role
from swarm.settings.config import Model, Optimizer, Run, TaskSettings

HERE = "ada/small"


class Taking(Hub):
    """As the Hub answers: repositories of `ada` are made by whoever has the token `mine`."""

    taken: dict[str, dict[str, bytes]]
    """Repository -> path -> content."""
    said: list[str]
    """Messages of commits, and who may see a repository that was made."""

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(path)
        endpoint = f"http://{self.headers['Host']}"
        if self.headers["Authorization"] != "Bearer mine":
            return self._say(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            wanted = json.loads(body)
            owner = wanted["organization"] or "ada"
            if owner == "down":
                return self._say(502, {})
            if owner != "ada":
                return self._say(403, {"error": "You don't have the rights to create a model"})
            self.said.append(wanted["visibility"])
            return self._say(200, {"url": f"{endpoint}/{owner}/{wanted['name']}"})
        if path == "/api/validate-yaml":
            wrong = [{"message": '"license" must be one of [...]'}] * (
                "my-own" in json.loads(body)["content"]
            )
            return self._say(400 if wrong else 200, {"errors": wrong, "warnings": []})
        repo, what, _ = path.removeprefix("/api/models/").rsplit("/", 2)
        if what == "preupload":
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in files]
            return self._say(200, {"files": modes})
        assert what == "commit", path
        head, *lines = (json.loads(line) for line in body.splitlines())
        self.said.append(head["value"]["summary"])
        for line in lines:
            content = base64.b64decode(line["value"]["content"])
            self.taken.setdefault(repo, {})[line["value"]["path"]] = content
        self._say(200, {"commitUrl": f"{endpoint}/{repo}/commit/{COMMIT}", "commitOid": COMMIT})

    def _say(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self.command = "GET" if self.command == "POST" else self.command  # both have a body
        super()._say(status, body, headers)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.make(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    return folder


@pytest.fixture
def hub(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Taking]]:
    kind = type("Here", (Taking,), {"folder": policy, "asked": [], "taken": {}, "said": []})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "mine")
    close_session()
    with served(kind, monkeypatch):
        yield kind
    close_session()


def made(path: Path, policy: Path, model: Model) -> RunFolder:
    """A run whose seed heard a learner and two samplers, and how good the versions were."""
    task = TaskSettings(name="digit-sums", rewards=("exact",))
    run = new_run.create(path, Run(model=model, task=task, optimizer=Optimizer(lr=1e-6)), policy)
    seed, learner, *samplers = (Keyring.new().me for _ in range(4))
    ages = Counted(
        at=NOW,
        peer=learner,
        verdicts={},
        versions={"1": 30, "2": 65, "9": 5},
        seconds={"1": 100},
        samplers={},
    )
    heard: list[Event] = [
        Heard(at=NOW, peer=seed, subject=peer, beat=beat(role=role, version=7))
        for peer, role in ((learner, Role.LEARNER), *((peer, Role.SAMPLER) for peer in samplers))
    ]
    heard += [
        Released(at=NOW, peer=learner, release=release(version=0, publisher=learner)),
        ages,
        msgspec.structs.replace(trained(1, groups=4100), peer=learner),
        Evaluated(at=NOW, peer=seed, version=0, accuracy=0.25, tasks=64),
        Evaluated(
            at=NOW,
            peer=seed,
            version=5,
            accuracy=0.875,
            tasks=64,
            sets={"hard": SetResult(accuracy=0.5, tasks=16)},
        ),
    ]
    (run.path / "peers" / "seed").mkdir(parents=True)
    journal = Journal(run.path / "peers" / "seed" / "journal.jsonl")
    for event in heard:
        journal(event)
    journal.close()
    return run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> RunFolder:
    return made(tmp_path_factory.mktemp("runs") / "run", policy, Model(name="org/tiny", revision=COMMIT))


@pytest.fixture
def run(first: RunFolder, tmp_path: Path) -> RunFolder:
    """A run of a model of the Hub, as it was made once."""
    return dataclasses.replace(first, path=shutil.copytree(first.path, tmp_path / "run"))


def push(run: RunFolder, *words: str) -> int:
    return cli.main(["push", *words, "--folder", str(run.path)])


def test_a_pushed_model_loads_and_its_card_says_how_it_was_trained(
    hub: type[Taking], tmp_path: Path, policy: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(run, HERE) == 0
    assert capsys.readouterr().out == f"{constants.ENDPOINT}/{HERE}\n"
    assert hub.said == ["private", f"Version 0 of run demo {run.digest[:12]}"]
    for name, content in hub.taken[HERE].items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(content)
    there = AutoModelForCausalLM.from_pretrained(tmp_path / "there").state_dict()
    here = AutoModelForCausalLM.from_pretrained(policy, dtype=there["lm_head.weight"].dtype).state_dict()
    assert all(there[name].equal(value) for name, value in here.items()), "the newest here is version 0"
    card = ModelCard(hub.taken[HERE]["README.md"].decode())
    assert card.data.to_dict() == {
        "base_model": "org/tiny",
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "rlvr", "gepo-swarm"],
    }
    for said in (
        f"| run | `demo`, digest `{run.digest}` |",
        f"| version | 0, released on {datetime.fromtimestamp(NOW, UTC):%Y-%m-%d} by 1 learner |",
        f"| started from | `org/tiny` at `{COMMIT[:12]}` |",
        "| trained | all weights, learning rate 1e-06 |",
        "| objective | gepo; groups of 8 completions |",
        "| task | `digit-sums`, rewarded by `exact` |",
        "| peers | 2 samplers, 1 learner |",
        "| groups trained on | 4,100 |",
        "| staleness | groups were 2 versions old when they were trained on (median), 2 (95th percentile), 9",
        "| held-out accuracy | 25.0% at version 0, then 87.5% at version 5 (77.2% to 93.5% with 95 % confid",
        "| evaluation set hard | 50.0% (28.0% to 72.0%) |",
        f'from_pretrained("{HERE}")',
    ):
        assert said in card.text, card.text
    assert not any((run.path / "cache").iterdir()), "what was uploaded is not kept"


@pytest.mark.parametrize("training", ["full", "lora"])
def test_what_is_pushed_from_a_model_of_this_machine_names_none_of_its_folders(
    tmp_path: Path, policy: Path, training: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy").symlink_to(policy)
    run = made(tmp_path / "run", policy, Model(name=str(tmp_path / "policy"), training=training))
    out = tmp_path / "out"
    assert push(run, "small", "--to", str(out), "--license", "mit") == 0
    said = capsys.readouterr().err
    assert "nothing was uploaded" in said
    steps = [said.index(step) for step in (f"reading the model of {run.path}", f"writing version 0 to {out}")]
    assert steps == sorted(steps)
    card = ModelCard.load(out / "README.md")
    assert card.data.license == "mit" and card.data.base_model is None
    assert "a model called `policy`" in card.text
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "qwen3"
    texts = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert texts and not [path for path in texts if str(tmp_path) in path.read_text()]


def test_a_disk_that_has_no_room_left_for_the_card_is_said_as_one_without_room_for_the_model(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = made(tmp_path / "run", policy, Model(name=str(policy))), tmp_path / "out"
    out.mkdir()
    (out / "config.json").touch()
    (out / "README.md").symlink_to("/dev/full")
    assert push(run, "small", "--to", str(out), "--force", "--license", "mit") == 3
    said = capsys.readouterr()
    assert f"cannot write {out}: No space left on device" in said.err and not said.out
    assert "free some space, or name another place" in said.err


def test_an_upload_that_finds_no_room_in_the_run_folder_says_where_it_needs_it(
    hub: type[Taking],
    tmp_path: Path,
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "run" / "cache"))

    monkeypatch.setattr(pushing.tempfile, "mkdtemp", full)
    assert push(run, HERE) == 3
    said = capsys.readouterr().err
    assert f"cannot write {run.path / 'cache'}: No space left" in said and "free some space" in said


@pytest.mark.parametrize(
    ("repo", "token", "code", "why", "then"),
    [
        ("a/b/c", "mine", 2, "'a/b/c' is not the name of a repository", "owner/name"),
        (HERE, "", 3, "there is no token of the Hub here", "run `hf auth login`"),
        (HERE, "another", 5, "refuses ada/small (401): the token here is not valid", "`hf auth login`"),
        ("eve/small", "mine", 5, "refuses eve/small (403)", "the permission to write"),
        ("down/small", "mine", 4, "answers 502", "try again later"),
    ],
)
def test_what_the_hub_refuses_is_said_before_anything_is_exported(
    hub: type[Taking],
    tmp_path: Path,
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    repo: str,
    token: str,
    code: int,
    why: str,
    then: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    assert push(run, repo) == code
    out, err = capsys.readouterr()
    assert why in err and then in err and err.count("\n") == 1 and not out
    assert not hub.taken and not (run.path / "cache").exists()


def test_where_nobody_listens_at_the_hubs_address_it_says_how_to_have_the_folder(
    hub: type[Taking],
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    point(monkeypatch, "http://127.0.0.1:9")
    assert push(run, HERE) == 4
    assert "cannot be reached (ConnectError)" in (said := capsys.readouterr().err) and "--to DIR" in said


def test_a_hub_to_which_no_connection_comes_about_is_not_waited_for(
    hub: type[Taking],
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pushing, "CONNECT", 0.5)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        with contextlib.ExitStack() as waiting:
            for _ in range(3):  # nobody accepts them, and then there is no room for another
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            point(monkeypatch, f"http://127.0.0.1:{full.getsockname()[1]}")
            assert push(run, HERE) == 4
    assert time.monotonic() - began < 30
    assert "cannot be reached (ConnectTimeout)" in capsys.readouterr().err


def test_a_hub_that_does_not_answer_is_not_waited_for(
    run: RunFolder,
    hub: type[Taking],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pushing, "ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        point(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert push(run, HERE) == 4
    assert "cannot be reached (ReadTimeout)" in capsys.readouterr().err


def test_a_licence_that_the_hub_has_no_word_for_is_refused(
    hub: type[Taking], run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(run, HERE, "--license", "my-own") == 2
    assert (
        '"license" must be one of' in (said := capsys.readouterr().err) and "--license names another" in said
    )
    assert not hub.taken
