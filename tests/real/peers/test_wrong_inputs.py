"""What a person is told who typed something wrong: cause, next step and exit code, in one sentence, before
anything is started. What needs a swarm, another machine's answer or a disk is in
tests/real/e2e/test_messages.py and tests/real/peers/test_cli.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from trained_runs import trained

from peers import cli
from peers.commands import run_check
from peers.commands.parsing import arguments, options, shipped
from swarm.journal import to_line
from swarm.learn.models import tiny
from swarm.membership import invite
from swarm.protocol import Role
from swarm.settings import loading
from swarm.types import Digest

KEY = invite.keyring(bytes(32))
EARLIER = 10**9


def word(role: Role = Role.SAMPLER, expires: int = invite.FOREVER) -> str:
    return invite.make(Digest("ab" * 32), [f"/ip4/127.0.0.1/tcp/9/p2p/{KEY.me}"], role, expires)


SCENARIOS = {
    "objective": '[run.objective]\nname = "gepp"\n',
    "epsilon": "[run.objective.options]\neps = -1.0\n",
    "dual": "[run.objective.options]\ndual = 3.0\n",
    "buckets": '[run.task.options]\nbuckets = "many"\n',
    "bucket": "[run.task.options]\nbucket = 4\n",
    "letters": "[run.task.options]\nletters = 0\n",
    "observer": "observer = 1\n",
}
"""File of a scenario that cannot be simulated -> its lines."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few files; none of what is wrong changes anything in it."""
    tmp_path = tmp_path_factory.mktemp("files")
    (tmp_path / "broken.toml").write_text("[run\n")
    (tmp_path / "typo.toml").write_text("[run]\n\n[run.batch]\ngruops = 3\n")
    (tmp_path / "deep.toml").write_text(f"a = {5000 * '['}{5000 * ']'}\n")
    (tmp_path / "round.toml").write_text('extends = "round.toml"\n')
    (tmp_path / "orphan.toml").write_text('extends = "gone.toml"\n')
    (tmp_path / "world.toml").write_text("[links]\nlatenzy = 1\n")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    world = 'name = "x"\nhours = 0.001\n[peers]\nseed = 1\nlearner = 1\nsampler = 1\n'
    toy = '[run.optimizer]\nlr = 0.1\n[run.task]\nname = "toy"\n'
    for name, lines in SCENARIOS.items():
        (tmp_path / f"{name}.toml").write_text(world + lines + toy)
    (tmp_path / "toys.toml").write_text(world + toy.replace("toy", "toys"))
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n{"question":\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "journal.jsonl").write_bytes(to_line(trained(1, reward=0.5)))
    (tmp_path / "notes.txt").write_text("no journal\n")
    (tmp_path / "blank.txt").write_text("\n")
    (tmp_path / "word.txt").write_text(word())
    (tmp_path / "a.json").write_text('{"run": {"name": "x"}}\n')
    (tmp_path / "a.yaml").write_text("run:\n  name: x\n")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1\xff\xfe")
    (tmp_path / "top.toml").write_text('name = "x"\n[run.batch]\ngroups = 8\n')
    (tmp_path / "memory.toml").write_text("memory = 8\n")
    (tmp_path / "nobody.toml").write_text('extends = "dmo"\n')
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "qlora.toml").write_text('[run.model]\ntraining = "qlora"\n')
    (tmp_path / "lora.toml").write_text('[run.model]\ntraining = "lora"\n')
    (tmp_path / "texts.toml").write_text('name = 3\nhours = "long"\n[peers]\n')
    (tmp_path / "run.toml").write_text('[run]\nname = "x"\n[peer.page]\nport = 0\n')
    (tmp_path / "mine.py").write_text("def brevity(completions, **columns):\n    return [0.0]\n")
    (tmp_path / "half.py").write_text("def brevity(\n")
    (tmp_path / "long.py").write_text(f"def brevity():\n    return {'1 + ' * 20000}1\n")
    (tmp_path / "minus.py").write_text(f"def brevity():\n    return {'-' * 20000}1\n")
    return tmp_path


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the files, and no run on this machine."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return files


Said = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return cli.parser()


@pytest.fixture
def said(
    here: Path,
    parser: argparse.ArgumentParser,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Said:
    """(exit code, stderr) of a command. The parser is made once: that takes most of such a command's time."""
    monkeypatch.setattr(cli, "parser", lambda: parser)

    def run(*words: str) -> tuple[int, str]:
        try:
            code = cli.main(words)
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        out, err = capsys.readouterr()
        if "--json" in words and out:
            told = json.loads(out)
            assert (told["ok"], told["code"]) == (False, code) and err == f"swarm: {told['error']}\n"
        else:
            assert out == "", "what is wrong is no result"
        return code, err

    return run


MODEL = "--model Qwen/Qwen3-0.6B"
WRONG: tuple[tuple[str, int, str, str], ...] = (
    # what is typed, exit code, why it is wrong, what to do
    # --- commands and options
    ("jion", 2, "'jion' is not a command", "did you mean join?"),
    ("run demo", 2, "'run' is not a command", "did you mean up?"),
    ("stop", 2, "'stop' is not a command", "did you mean leave?"),
    ("config shwo", 2, "'shwo' is not a command", "did you mean show?"),
    ("task tri digit-sums", 2, "'tri' is not a command", "did you mean try?"),
    ("config", 2, "show, check, copy or schema?", "`swarm config --help`"),
    ("join --rol sampler swarm1", 2, "there is no option --rol", "did you mean --as?"),
    ("join swarm1 --as lerner", 2, "'lerner' is not a value of --as", "did you mean learner?"),
    ("up demo --folde=x --seeed 3", 2, "there is no option --seeed", "`swarm up --help`"),
    ("leave --model x", 2, "there is no option --model", "`swarm leave --help`"),
    ("sim quick --set run.seed=3", 2, "there is no option --set", "`swarm sim --help`"),
    ("up demo quick", 2, "'quick' is one word too many", "`swarm up --help`"),
    ("join", 2, "INVITE is required", "--word-file FILE, or as SWARM_WORD in the environment"),
    ("dashboard", 2, "INVITE is required", "--word-file FILE, or as SWARM_WORD in the environment"),
    ("join --word-file gone", 2, "the invite cannot be read from gone: No such file", "name its file"),
    ("join --word-file empty", 2, "the invite cannot be read from empty: Is a directory", "name its file"),
    (
        "join --word-file blank.txt",
        2,
        "blank.txt has no invite",
        "`swarm invite`",
    ),
    (
        "join --word-file notes.txt swarm1abc",
        2,
        "--word-file names the invite's file",
        "leave the invite out",
    ),
    ("status --word-file notes.txt", 5, "an invite begins with swarm1", "copy it again"),
    ("invite --folder seen --word-file notes.txt", 2, "--word-file", "add --renew"),
    ("invite --folder seen --renew", 2, "no invite to renew", "--renew --word-file FILE"),
    ("revoke --folder seen", 2, "name a peer's id or name, or an invite", "--word-file FILE"),
    ("up", 2, "required: CONFIG", "`swarm up --help`"),
    ("start", 2, "name a file of settings", "--adopt"),
    ("sim", 2, "name a scenario, such as quick", "--nemesis SEED"),
    ("invite --expires 5x", 2, "5x is not a time", "such as 30m, 12h or 7d"),
    ("invite --role lerner", 2, "'lerner' is not a value of --role", "did you mean learner?"),
    ("replay x --speed fast", 2, "fast is not a number", "between 0 and 1000"),
    ("dashboard swarm1 --port http", 2, "invalid int value: 'http'", "--port"),
    ("bench stalenes", 2, "there is no study 'stalenes'", "did you mean staleness?"),
    ("bench jion", 2, "there is no row 'jion'", "choose from join"),
    ("bench join --quick", 2, "--quick, --out", "are for the studies: gradient"),
    ("bench join -n 5", 2, "-n", "are for the studies: gradient"),
    ("bench nemesis -n 0", 2, "-n 0: there is nothing to try", "give 1 or more"),
    ("bench nemesis -n -3", 2, "-n -3: there is nothing to try", "give 1 or more"),
    (
        "bench nemesis --quick --out x --methods gepo --minutes 1",
        2,
        "the study nemesis takes no --quick, --out, --methods, --minutes",
        "it takes -n, --seed",
    ),
    ("bench band --seed 0 --methods gepo", 2, "band takes no --methods, --seed", "it takes --quick, --out"),
    ("bench adversaries --seed 7", 2, "adversaries takes no --seed", "it takes --quick, --out, --minutes"),
    ("bench gradient --minutes 1", 2, "gradient takes no --minutes", "it takes --quick, --out, --methods"),
    ("bench staleness -n 5 --json", 2, "staleness takes no -n, --json", "it takes --quick"),
    ("bench staleness --compare x.json", 2, "staleness takes no --compare", "it takes --quick"),
    ("bench staleness --minutes -1", 2, "--minutes -1.0 is no time", "0: no limit"),
    ("bench staleness --minutes nan", 2, "--minutes nan is no time", "0: no limit"),
    ("sim --nemesis 1 --seed 5", 2, "--nemesis 1 is the seed", "leave out --seed"),
    ("bench gradient staleness", 2, "a study takes minutes to hours", "name only one"),
    ("objectives gebo", 2, "gebo", "did you mean 'gepo'"),
    ("ls", 2, "'ls' is not a command", "`swarm status` shows the run on this machine"),
    ("list", 2, "'list' is not a command", "`swarm status` shows the run on this machine"),
    ("logs", 2, "'logs' is not a command", "`swarm why` says what each peer here does, and where its log is"),
    ("kick brisk-umber-otter", 2, "'kick' is not a command", "did you mean revoke?"),
    ("kill", 2, "'kill' is not a command", "did you mean leave?"),
    ("ps", 2, "'ps' is not a command", "did you mean status?"),
    ("top", 2, "'top' is not a command", "did you mean status --watch?"),
    ("version", 2, "'version' is not a command", "did you mean --version?"),
    ("help jion", 2, "'jion' is not a command", "did you mean join?"),
    ("config init my.toml", 2, "'init' is not a command", "did you mean copy?"),
    ("config validate demo", 2, "'validate' is not a command", "did you mean check?"),
    ("up demo --learners 3", 2, "no option --learners", "did you mean --set peer.swarm.learners=3?"),
    ("up --samplers=4 demo", 2, "no option --samplers=4", "did you mean --set peer.swarm.samplers=4?"),
    (
        "start demo --port 9000",
        2,
        "no option --port",
        "mean --set peer.listen.port=9000 or --set peer.page.port",
    ),
    ("up demo --seed 3", 2, "no option --seed", "did you mean --set run.seed=3?"),
    ("up demo --name lab", 2, "no option --name", "did you mean --set run.name=lab?"),
    ("up demo --lr 1e-5", 2, "no option --lr", "did you mean --set run.optimizer.lr=1e-5?"),
    ("up demo --max-steps 9", 2, "no option --max-steps", "did you mean --set run.stop.versions=9?"),
    ("up demo --seeed 3", 2, "no option --seeed", "did you mean --set run.seed=3?"),
    ("up demo --temperature", 2, "no option --temperature", "mean --set run.sampling.temperature=VALUE?"),
    ("up demo --config a.toml", 2, "no option --config", "name the file without it"),
    ("up demo run.seed=3", 2, "'run.seed=3' is one word too many", "did you mean --set run.seed=3?"),
    ("up run.seed=3", 2, "run.seed=3 is a setting", "name settings first, then --set run.seed=3"),
    ("up demo --run.seed=3", 2, "no option --run.seed=3", "did you mean --set run.seed=3?"),
    ("up demo --run.seed 3", 2, "no option --run.seed", "did you mean --set run.seed=3?"),
    ("up demo --objective.name grpo", 2, "no option --objective.name", "--set run.objective.name=grpo?"),
    ("up @ demo.toml", 2, "'demo.toml' is one word too many", "leave out the @"),
    ("up @demo.toml", 2, "cannot read @demo.toml: No such file", "leave out the @"),
    (f"join {word()} --seed 3", 2, "no option --seed: run.seed is the same for all peers", "comes from them"),
    (
        f"join {word()} run.seed=3",
        2,
        "'run.seed=3' is not part of an invite",
        "did you mean --set run.seed=3?",
    ),
    ("join x --memory lots", 2, "argument --memory: lots is not a size", "8 (GB), 8GiB or 512MB"),
    ("join x --memory 50%", 2, "argument --memory: 50% is not a size", "8 (GB), 8GiB or 512MB"),
    ("join x --cpu 999", 2, "argument --cpu: 999 is not a share of this machine's", "write 0.5, 50%"),
    ("join x --cpu 120%", 2, "argument --cpu: 120% is not a share of this machine's", "write 0.5, 50%"),
    ("join x --gpu-memory 8GB", 2, "argument --gpu-memory: 8GB is not a share", "0.5 or 50%"),
    ("join x --upload 15M", 2, "argument --upload: 15M is not a rate", "15 (Mbit/s), 15Mbit or 2MB/s"),
    ("join x --nice 25", 2, "--nice: peer.limits.nice wants a whole number", "at most 19"),
    ("join x --hours 25-7", 2, "--hours: peer.limits.hours wants", "two times of the day such as 22-7"),
    ("up demo --cpu 50%", 2, "no option --cpu", "did you mean --set peer.limits.cpu=0.5?"),
    ("up demo --memory 8GB", 2, "no option --memory", "did you mean --set peer.limits.memory=8 or"),
    (
        "start --adopt notes.txt",
        2,
        "--adopt notes.txt is a file",
        "name the folder of one of the run's peers",
    ),
    ("--folder x status", 2, "options come after the command", "swarm COMMAND ... --folder"),
    ("service start demo", 2, "'start' is not a command", "did you mean install?"),
    ("task run demo", 2, "'run' is not a command", "did you mean try?"),
    # --- settings
    ("up quick", 2, "cannot read quick: No such file of settings", "did you mean `swarm sim quick`?"),
    ("sim demo", 2, "cannot read demo: No such file of scenarios", "did you mean `swarm up demo`?"),
    ("task try rows.jsonl", 2, "rows.jsonl is a file or folder", "data:rows.jsonl is the task of its rows"),
    ("fit notes.txt", 2, "notes.txt is a file", "name the folder that save_pretrained wrote"),
    ("up a.json", 2, "a.json is not TOML", "settings are TOML (`swarm config schema` lists them)"),
    ("start a.yaml", 2, "a.yaml is not TOML", "settings are TOML (`swarm config schema` lists them)"),
    ("up rows.parquet", 2, "rows.parquet is not TOML", "settings are TOML"),
    ("config check a.json --json", 2, "a.json is not TOML", "settings are TOML"),
    (
        "--json config check typo.toml",
        2,
        "typo.toml line 4: there is no key",
        "did you mean run.batch.groups?",
    ),
    (
        "config check qlora.toml --json",
        2,
        "no learning rate is known for an adapter of embedded",
        "set run.optimizer.lr",
    ),
    (
        "config check lora.toml",
        2,
        "no learning rate is known for an adapter of embedded",
        "set run.optimizer.lr",
    ),
    ("up lora.toml", 2, "no learning rate is known for an adapter of embedded", "set run.optimizer.lr"),
    ("start lora.toml", 2, "no learning rate is known for an adapter of embedded", "set run.optimizer.lr"),
    ("up top.toml", 2, "top.toml line 1: name is in no table", "write it under [run]"),
    (
        "up memory.toml",
        2,
        "memory.toml line 1: there is no key memory",
        "peer.limits.memory or peer.engine.memory?",
    ),
    ("up nobody.toml", 2, "cannot read dmo, which nobody.toml extends: No such file", "that ship: demo"),
    (f"start {word()}", 2, "this is an invite, and settings are a file", "`swarm join`"),
    (f"config check {word()}", 2, "this is an invite, and settings are a file", "`swarm join`"),
    (
        "fit ./m.gguf",
        2,
        "./m.gguf is GGUF, which is not trained",
        "name the folder that save_pretrained wrote",
    ),
    ("up demo --model m.gguf", 2, "m.gguf is GGUF, which is not trained", "name the folder"),
    ("up demo --model x/model.safetensors", 2, "model.safetensors is weights alone", "name the folder"),
    ("sim texts.toml", 2, "texts.toml: not a scenario: name wants a text", "found a whole number"),
    ("sim run.toml", 2, "run.toml: not a scenario: peer is a setting of a run", "`swarm up`"),
    ("sim a.json", 2, "a.json: not a scenario", "it is not TOML"),
    (
        "identity import notes.txt",
        3,
        "notes.txt cannot be opened",
        "not a key that `swarm identity export`",
    ),
    ("verify notes.txt", 2, "notes.txt is not a learner's evidence", "name a file of its folder evidence"),
    ("config copy demo notes.txt", 2, "notes.txt is there already", "name another"),
    (
        "config copy demo nowhere/my.toml",
        2,
        "cannot write nowhere/my.toml: No such file",
        "name another place",
    ),
    ("config copy dmo my.toml", 2, "cannot read dmo: No such file", "settings that ship: demo"),
    (
        "up demo --set run.batch.gruops=3",
        2,
        "there is no key run.batch.gruops",
        "did you mean run.batch.groups?",
    ),
    ("up demo --set run.learnrate=1", 2, "there is no key run.learnrate", "did you mean run.optimizer.lr?"),
    ("up demo --set seed", 2, "expected KEY=VALUE", "such as --set run.seed=3"),
    ("up demo --set run.batch=3", 2, "run.batch is a table", "set a key in it, such as run.batch."),
    ("up demo --set run.batch.groups=many", 2, 'found the text "many"', "wants a whole number of at least 1"),
    ("up demo --set run.stop.accuracy=2", 2, "found 2", "at least 0 and at most 1"),
    ("up demo --set run.name=MyRun", 2, 'found the text "MyRun"', "lower-case letters, digits"),
    (
        "up demo --set run.averaging.match=30 --set run.averaging.deadline=20",
        2,
        "the first must be below",
        "--set",
    ),
    ("up demo --set peer.limits.upload=0.1", 2, "no release passes in time below 0.5", "0 is no limit"),
    ("up demo --set objective.name=gepoo", 2, "gepoo", "did you mean 'gepo'"),
    ("up typo.toml", 2, "typo.toml line 4: there is no key", "did you mean run.batch.groups?"),
    ("up broken.toml", 2, "broken.toml is not TOML", "line 1"),
    ("up round.toml", 2, "extends itself", "round.toml"),
    ("up orphan.toml", 2, "cannot read gone.toml", "which orphan.toml extends"),
    ("up nope", 2, "cannot read nope: No such file", "settings that ship: demo"),
    ("config check empty", 2, "cannot read empty: it is a folder", "settings that ship: demo"),
    ("config check .", 2, "cannot read .: it is a folder", "settings that ship: demo"),
    ("sim /", 2, "cannot read /: it is a folder", "scenarios that ship:"),
    (f"up {300 * 'x'}", 3, "is longer than the file system takes", "give a shorter one"),
    (f"status --folder {300 * 'x'}", 3, "is longer than the file system takes", "give a shorter one"),
    ("up deep.toml", 2, "deep.toml is nested too deeply", "fewer brackets"),
    ("config show --set =3", 2, "--set =3: expected KEY=VALUE", "--set run.seed=3"),
    (f"up demo --set run.seed={2**64}", 2, "a whole number of at least 0", "which has more than 64 bits"),
    (f"up demo --set objective.options.eps=-{2**64}", 2, "wants a number", "which has more than 64 bits"),
    ("sim nope.toml", 2, "cannot read nope.toml: No such file", "scenarios that ship:"),
    ("sim world.toml", 2, "world.toml: not a scenario", "latenzy"),
    ("sim latin.toml", 2, "latin.toml: not a scenario", "UTF-8"),
    ("sim objective.toml", 2, "objective.toml: there is no objective 'gepp'", "did you mean 'gepo'?"),
    ("sim dual.toml", 2, "dual.toml: objective gepo does not read dual", "leave out what it does not read"),
    ("sim epsilon.toml", 2, "epsilon.toml: option eps of objective gepo is -1.0", "a number of at least 0"),
    ("sim buckets.toml", 2, "buckets.toml: option buckets of task toy is 'many'", "of type int"),
    ("sim bucket.toml", 2, "bucket.toml: task toy has no option 'bucket'", "did you mean 'buckets'?"),
    ("sim letters.toml", 2, "letters.toml: task toy needs buckets, letters", "of at least 1"),
    ("sim toys.toml", 2, "toys.toml: there is no task source 'toys'", "did you mean 'toy'?"),
    ("sim observer.toml", 2, "observer.toml: peers.observer = 1", "simulated roles are seed, sampler"),
    # --- files that a new run needs
    ("up demo --model ./nowhere", 2, "there is no model folder nowhere", "a Hub id such as org/model"),
    ("start demo --model notes.txt", 2, "notes.txt is a file", "name the folder that save_pretrained wrote"),
    ("start demo --model empty", 2, "empty has no config.json", "save_pretrained"),
    (
        f"up demo {MODEL} --set task.name=data:./no.jsonl",
        2,
        "there is no file or folder ./no.jsonl",
        "name a file",
    ),
    ("up demo --set task.name=data:x.jsonl", 2, "the embedded model is made for one of", "name a model"),
    ("start demo --set task.name=digit-sum", 2, "no task source 'digit-sum'", "did you mean 'digit-sums'?"),
    ("up demo --set task.rewards=no.py:f", 2, "the reward file no.py is not there", "--set task.rewards"),
    ("up demo --set task.rewards=mine.py:brevty", 2, "has no function 'brevty'", "did you mean 'brevity'?"),
    ("up demo --set task.rewards=half.py:brevity", 2, "half.py is not Python", "in line 1"),
    ("up demo --set task.rewards=long.py:brevity", 2, "long.py cannot be read by Python", "into several"),
    ("up demo --set task.rewards=minus.py:brevity", 2, "minus.py cannot be read by Python", "into several"),
    ("up demo --set task.rewards=mth", 2, "there is no reward 'mth'", "did you mean 'math'?"),
    (
        "up demo --set task.rewards=exact --set task.weights=[1,2]",
        2,
        "1 rewards and 2 weights",
        "one weight for each",
    ),
    ("task try data:rows.jsonl", 2, "data set rows.jsonl cannot be read: JSON parse error", "in row 1"),
    # --- where results go
    ("plot seen --out folder.svg", 2, "cannot write folder.svg: Is a directory", "name another place"),
    ("plot seen --out folder.png", 2, "cannot write folder.png: Is a directory", "name another place"),
    ("plot seen --out /proc/x.svg", 2, "cannot write /proc/x.svg: No such file", "name another place"),
    ("plot seen --out notes.txt/x.svg", 2, "cannot write notes.txt/x.svg: ", "name another place"),
    ("sim quick --out folder.svg", 2, "--out folder.svg is a folder", "name the journal's file"),
    ("sim quick --out /proc/x.jsonl", 2, "cannot write /proc/x.jsonl: No such", "name another place"),
    ("sim --nemesis 1 --out /proc/x.jsonl", 2, "cannot write /proc/x.jsonl: No such", "name another place"),
    # --- folders
    ("status", 2, "no run on this machine", "name its folder with --folder"),
    ("leave --folder nowhere", 2, "nowhere is not a run folder", "`swarm start` and `swarm join` make one"),
    ("leave --folder empty", 2, "empty is not a run folder", "`swarm start` and `swarm join` make one"),
    ("status --folder empty", 2, "empty is not a run folder", "`swarm start` and `swarm join` make one"),
    ("status --watch --json --folder empty", 2, "--watch goes on, --json prints once", "leave one out"),
    ("why --folder empty", 2, "empty is not a run folder", "`swarm start` and `swarm join` make one"),
    ("export out --folder empty", 2, "empty is not a run folder", "`swarm start` and `swarm join` make one"),
    ("invite --folder empty", 5, "empty holds no run", "`swarm join` takes part in one"),
    ("start --adopt empty", 5, "empty holds no run", "name the folder of one of its peers"),
    (
        "start demo --folder notes.txt",
        3,
        "a file is in the folder's place",
        "name another folder with --folder",
    ),
    ("replay empty --version -1", 2, "--version -1: no step made it", "1 or more"),
    ("replay seen --host 192.0.2.1", 3, "this machine has no address 192.0.2.1", "--host"),
    ("replay seen --port 99999", 2, "--port 99999: ", "at most 65535"),
    ("replay nowhere", 2, "nowhere", "journal"),
    ("replay --audit empty", 2, "there is no journal in empty", "name run folders"),
    ("replay --audit notes.txt", 2, "notes.txt is not a journal", "of this program"),
    # --- invites
    ("join hello", 5, "an invite begins with swarm1", "copy"),
    ("join demo", 5, "'demo' is not an invite but settings", "`swarm up demo` runs a whole swarm"),
    ("status top.toml", 5, "'top.toml' is not an invite but settings", "`swarm start top.toml` begins a run"),
    (
        "join word.txt",
        5,
        "'word.txt' is not an invite but a file",
        "--word-file word.txt reads the invite in it",
    ),
    ("join seen", 5, "'seen' is not an invite but a folder", "`swarm invite --folder seen` prints one"),
    (f"join --word-file {word()}", 2, "--word-file names a file, and this is an invite", "write it into one"),
    ("join swarm1zzzz", 5, "the invite is damaged", "copy it again"),
    (f"join {word()[:-9]}", 5, "the invite is damaged", "it may be cut off"),
    (f"join {word()} {word(Role.LEARNER)}", 5, "these are two words", "give one"),
    (f"status {word()}\n{word()} {word(Role.SEED)}", 5, "these are 3 words", "give one"),
    (f"join {word()[:30]}ä{word()[31:]}", 5, "the invite", "copy it again"),
    (f"join {word(expires=EARLIER)}", 5, "expired", "ask the swarm's owner for a new one"),
    (f"join {word(Role.OBSERVER)}", 2, "this invite is for observers", "`swarm dashboard`"),
    (f"join {word()} --set run.seed=3", 2, "run.seed is the same for all peers", "leave it out"),
)


@pytest.mark.parametrize(("typed", "code", "why", "then"), WRONG, ids=[row[0][:50] for row in WRONG])
def test_a_wrong_input_is_told_with_cause_and_next_step(
    said: Said, typed: str, code: int, why: str, then: str
) -> None:
    ended, err = said(*typed.split())
    assert ended == code, err
    (line,) = err.splitlines()
    assert line.startswith("swarm: ") and why in line and then in line, err


@pytest.mark.parametrize(
    ("name", "right"),
    [("SWARM_RUN_SEED", "SWARM__RUN__SEED"), ("SWARM_RUN_BATCH_GRUOPS", "SWARM__RUN__BATCH__GROUPS")],
)
def test_a_variable_of_single_underscores_is_no_silent_nothing(
    said: Said, monkeypatch: pytest.MonkeyPatch, name: str, right: str
) -> None:
    monkeypatch.setenv("SWARM_RUN_ID", "another program's")
    monkeypatch.setenv(name, "9")
    code, err = said("config", "check", "demo")
    assert code == 2 and f"environment variable {name} sets nothing: did you mean {right}?" in err


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("--memory 8GB", "memory", 8.0),
        ("--memory=1.5gb", "memory", 1.5),
        ("--memory 8g", "memory", 8.0),
        ("--memory 8GiB", "memory", 8.58993459),
        ("--disk 500MB", "disk", 0.5),
        ("--cpu 50%", "cpu", 0.5),
        ("--cpu 0.25", "cpu", 0.25),
        ("--gpu-memory 80%", "gpu_memory", 0.8),
        ("--upload 15Mbit/s", "upload", 15.0),
        ("--download 2MB/s", "download", 16.0),
    ],
)
def test_limits_take_the_units_that_people_write(typed: str, key: str, value: float) -> None:
    args = cli.parser().parse_args(["join", word(), *typed.split()])
    assert getattr(arguments.load(args, None).config.peer.limits, key) == pytest.approx(value)


@pytest.mark.parametrize("there", [1, 3, 7, 49, 96])
def test_so_many_cores_are_as_many_on_every_machine(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "processors", lambda: there)
    for count in range(1, there + 1):
        assert int(float(options.cores(f"{count} cores")) * there) == count


def test_settings_that_ship_are_extended_by_name_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path
    monkeypatch.chdir(here)
    (here / "mine.toml").write_text('extends = "demo"\n[run]\nseed = 9\n')
    assert loading.load(here / "mine.toml", ships=shipped.PLACES).config.run.name == "demo"
    assert cli.main(["config", "copy", "demo", "my.toml"]) == 0
    assert cli.main(["config", "copy", "paper-delay64", "."]) == 0
    assert (here / "my.toml").read_bytes() == shipped.settings(Path("demo")).read_bytes()
    (here / "demo.toml").write_text('extends = "demo"\n')
    for name in ("my.toml", "paper-delay64.toml", "demo.toml"):
        assert cli.main(["config", "check", name]) == 0, name


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("help", "Train a language model"),
        ("help join", "swarm join"),
        ("help config check", "swarm config check"),
        ("--version", "swarm "),
    ],
)
def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str], typed: str, shown: str) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(typed.split())
    assert end.value.code == 0 and shown in capsys.readouterr().out


def test_the_package_is_the_command_too() -> None:
    line = [sys.executable, "-m", "swarm", "--version"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.startswith("swarm ")


def test_options_of_many_commands_may_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--json", "config", "check", "demo"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert cli.main(["-v", "config", "check", "demo"]) == 0


def test_a_trial_of_a_task_says_that_no_run_begins_without_a_learning_rate(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["task", "try", "lora.toml", "-n", "1"]) == 0
    said = capsys.readouterr()
    assert "no learning rate is known for an adapter of embedded" in said.err and "digit-sums" in said.out


def test_a_rate_is_looked_for_by_the_size_of_a_model_that_is_here(
    said: Said, tmp_path: Path, here: Path
) -> None:
    folder = tiny.make(tmp_path / "tiny", "qwen3")
    code, err = said("config", "check", "demo", "--model", str(folder))
    assert code == 2 and f"no learning rate is known for all weights of {folder} (0.1M parameters)" in err
    assert cli.main(["config", "check", "demo", "--model", str(folder), "--set", "optimizer.lr=1e-4"]) == 0
    assert cli.main(["config", "check", "demo", "--model", "org/not-on-this-disk"]) == 0


@pytest.mark.parametrize("name", ["awaited", "Judge.score", "chosen", "made"])
def test_a_function_of_a_reward_file_is_found_however_it_is_defined(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "async def awaited(completions, **columns):\n    return [0.0]\n"
        "class Judge:\n    def score(completions, **columns):\n        return [0.0]\n"
        "try:\n    import judges\nexcept ImportError:\n    def chosen(completions):\n        return []\n"
        "made = Judge.score\n"
    )
    run_check._check_function(tmp_path / "mine.py", name)
    with pytest.raises(ValueError, match=f"has no function 'not{name.lower()}'"):
        run_check._check_function(tmp_path / "mine.py", f"not{name.lower()}")
