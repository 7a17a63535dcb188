"""`gepo-swarm` without an extra: what reads, shows and invites works; what takes part says the one line that
is missing, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from light_environment import LightEnvironment, Said
from packaging.requirements import Requirement
from trained_runs import judged

from lab.rows import installed
from lab.rows.installed import PROJECT
from peers.build import run_folder
from peers.commands.doctor import machine_checks
from peers.runtime.membership.contacts import CONTACTS, Contact
from swarm import PROTOCOL, __version__, extras
from swarm.events import Noted
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.journal import to_line
from swarm.membership import identity, invite
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import run_dict
from swarm.storage.durable import write_durably
from swarm.types import Digest

PEER = invite.keyring(bytes([7] * 32)).me
LINE = "pip install 'gepo-swarm[peer]'"


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> LightEnvironment:
    return LightEnvironment(tmp_path_factory.mktemp("light") / "venv")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of which a learner was heard just now, and a seed wrote a line."""
    path = tmp_path_factory.mktemp("light-run") / "run"
    owner = identity.open_key(path / "owner.key")
    spec = Spec(
        protocol=PROTOCOL,
        run=run_dict(Run(name="light")),
        owner=owner.public.hex(),
        files={},
        genesis=Digest("0" * 64),
        release_size=1,
    )
    run_folder.keep_spec(path, wire.encode(spec))
    address = f"/ip4/192.0.2.1/tcp/4000/p2p/{PEER}"
    met = (Contact(peer=PEER, role=Role.LEARNER, addresses=(address,), heard=time.time()),)
    write_durably(path / "peers" / "seed" / CONTACTS, wire.encode(met))
    said = Noted(at=time.time(), peer=PEER, level="info", text="a line of the journal")
    (path / "peers" / "seed" / "journal.jsonl").write_bytes(to_line(said))
    return path


@contextmanager
def page(light: LightEnvironment, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the dashboard that a command serves, and its process."""
    program = subprocess.Popen(light.command(*words), env=light.environ(), stderr=subprocess.PIPE, text=True)
    try:
        assert program.stderr is not None
        said = program.stderr.readline()
        assert said.startswith("dashboard: "), said + program.stderr.read()
        yield said.split()[1].partition("?")[0], program
    finally:
        program.kill()
        program.communicate()


def test_the_environment_has_neither_torch_nor_any_extra(light: LightEnvironment) -> None:
    there = {path.name for path in light.packages.iterdir()}
    assert "msgspec" in there and not there & set(extras.EXTRA_OF)


READS = {
    "--version": f"swarm {__version__}",
    "--help": "swarm up demo",
    "config show demo": "run.name = ",
    "config schema": "[peer.page]",
    "status": "a line of the journal",
    "status --json": '"series"',
    "invite": "swarm1",
    "replay --audit": "groups acknowledged   0",
    "task try digit-sums": "Right answers earn 1",
    "leave": "",
}


@pytest.fixture(scope="module")
def read(light: LightEnvironment, run: Path) -> dict[str, Said]:
    folder = ["--folder", str(run)]
    where = {"replay": [str(run)], "status": folder, "invite": folder, "leave": folder}
    return light.run_all({text: [*text.split(), *where.get(text.split()[0], [])] for text in READS})


@pytest.mark.parametrize("text", READS)
def test_what_reads_and_invites_needs_no_extra(read: dict[str, Said], text: str) -> None:
    assert read[text].returncode == 0 and READS[text] in read[text].stdout, read[text]


def test_a_finished_run_is_played_on_the_page(light: LightEnvironment, run: Path) -> None:
    with page(light, "replay", str(run), "--port", "0") as (url, program):
        with urlopen(f"{url}api/state", timeout=30) as answer:
            assert json.load(answer)["run"]["name"] == "light"
        with urlopen(url, timeout=30) as answer:
            assert b"<!doctype html>" in answer.read().lower()
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 143


def test_the_doctor_names_all_that_is_missing_once_with_one_line(light: LightEnvironment) -> None:
    answer = light.run("doctor", "--json")
    assert answer.returncode == 3, answer
    failed = [finding for finding in json.loads(answer.stdout)["findings"] if finding["level"] == "fail"]
    (finding,) = [finding for finding in failed if finding["check"] == "peer"]
    assert finding["todo"] == LINE and "hivemind" in finding["found"] and "torch" in finding["found"]
    assert LINE not in str([one for one in failed if one is not finding])


WORD = invite.make(Digest("ab" * 32), [f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"], Role.SAMPLER)


TAKES_PART = (
    "up demo",
    "start demo",
    f"join {WORD}",
    "fit embedded",
    "sim quick",
    "push ada/small",
    "verify one.evidence",
    "config check demo",
    "objectives",
    "bench gradient --quick",
)


@pytest.fixture(scope="module")
def refused(
    light: LightEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Said, Path]]:
    path = tmp_path_factory.mktemp("refused")
    folders = {text: path / text.split()[0] for text in TAKES_PART}
    commands = {
        text: [
            *text.split(),
            *(["--folder", str(folder)] if text.startswith(("up", "start", "join")) else []),
        ]
        for text, folder in folders.items()
    }
    return {text: (said, folders[text]) for text, said in light.run_all(commands).items()}


@pytest.mark.parametrize("text", TAKES_PART, ids=lambda text: text[:12])
def test_what_takes_part_says_the_one_line_and_leaves_nothing_behind(
    refused: dict[str, tuple[Said, Path]], text: str
) -> None:
    answer, folder = refused[text]
    lines = answer.stderr.strip().splitlines()
    assert (answer.returncode, len(lines)) == (3, 1), answer
    assert lines[0].startswith("swarm: ") and lines[0].endswith(("[peer]'", "[bench]'"))
    assert not folder.exists()


def test_a_picture_says_the_one_line_and_needs_no_more(light: LightEnvironment, tmp_path: Path) -> None:
    write_durably(tmp_path / "run" / "journal.jsonl", to_line(judged(0, 0.5)))
    words = ("plot", str(tmp_path / "run"), "--out", str(tmp_path / "run.svg"))
    answer = light.run(*words)
    assert answer.returncode == 3 and answer.stderr.rstrip().endswith("pip install 'gepo-swarm[plot]'"), (
        answer
    )
    answer = LightEnvironment(tmp_path / "venv", "plot").run(*words)
    assert answer.returncode == 0 and (tmp_path / "run.svg").exists(), answer


@pytest.mark.nightly
def test_with_what_a_peer_needs_alone_a_tiny_model_learns(tmp_path: Path) -> None:
    peer = LightEnvironment(tmp_path / "venv", extras.PEER)
    answer = peer.run("doctor", "--json", limit=300)
    (model,) = [one for one in json.loads(answer.stdout)["findings"] if one["check"] == "model"]
    assert model["level"] == "ok", model


def test_to_watch_takes_one_line_more_and_no_torch(light: LightEnvironment, tmp_path: Path) -> None:
    for words in (["dashboard", WORD, "--once"], ["status", WORD]):
        answer = light.run(*words, "--folder", str(tmp_path / "watched"))
        assert answer.returncode == 3 and answer.stderr.rstrip().endswith(
            "pip install --no-deps hivemind==1.1.12"
        ), answer
    assert not (tmp_path / "watched").exists()


def test_what_hivemind_needs_to_watch_comes_with_the_distribution(tmp_path: Path) -> None:
    watching = LightEnvironment(tmp_path / "venv")
    watching.add("hivemind")
    answer = watching.run("dashboard", WORD, "--once", "--folder", str(tmp_path / "watched"))
    assert answer.returncode == 4, answer  # nobody answers at this address


@pytest.mark.parametrize(
    ("receipt", "line"),
    [
        ("uv-receipt.toml", "uv tool install --torch-backend auto 'gepo-swarm[quant]'"),
        ("pipx_metadata.json", "pipx install --force 'gepo-swarm[quant]'"),
        ("", "pip install 'gepo-swarm[quant]'"),
    ],
)
def test_the_line_is_for_the_program_that_made_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipt: str, line: str
) -> None:
    if receipt:
        (tmp_path / receipt).touch()
    monkeypatch.setattr(extras.sys, "prefix", str(tmp_path))
    assert extras.install("quant") == line
    assert ("uv" in line.split()) is extras.install_to_watch().startswith("uv ")


def test_an_installation_that_reads_runs_is_a_fifth_of_one_that_takes_part() -> None:
    alone, watching, peer = installed.measure(print)
    assert alone.value < watching.value < peer.value / 5


def test_a_broken_package_and_a_module_of_ours_are_bugs() -> None:
    for name in ("torch", "torch.no_such_part", "swarm.no_such_module"):
        assert extras.lack(ModuleNotFoundError(name=name)) is None


def test_the_table_of_extras_is_that_of_the_distribution() -> None:
    ours = {name: names(texts) for name, texts in PROJECT["optional-dependencies"].items() if name != "dev"}
    for extra, packages in ours.items():
        named = {module.replace("_", "-") for module, of in extras.EXTRA_OF.items() if of == extra}
        assert named == packages - {extras.DISTRIBUTION}, extra
        alone = extra in (extras.PEER, "plot", "track")  # these read and watch without torch, too
        assert alone or extras.DISTRIBUTION in packages, f"{extra} installs a peer as well"
    assert extras.WATCHING in PROJECT["optional-dependencies"][extras.PEER]


def test_the_doctor_wants_what_the_distribution_wants() -> None:
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extras.PEER]]
    ranges = {one.name: one.specifier for one in map(Requirement, texts)}
    for need in machine_checks.NEEDS:
        lowest, beyond = (".".join(map(str, numbers)) for numbers in (need.at_least, need.below))
        assert ranges[need.package].contains(lowest), need
        if beyond != "99":
            assert not ranges[need.package].contains(beyond), need


def names(texts: list[str]) -> set[str]:
    return {Requirement(text).name for text in texts}
