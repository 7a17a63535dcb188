"""Settings: closed, layered, and each refusal says where the mistake stands and what to write instead."""

import json
import re
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import PROTOCOL
from swarm.protocol import Role
from swarm.settings import config, loading
from swarm.settings import layers as layers
from swarm.settings.config import Config, Run
from swarm.settings.layers import ConfigError
from swarm.settings.loading import load
from swarm.settings.page import Page


def written(folder: Path, text: str, name: str = "it.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(
    path: Path | None = None, sets: tuple[str, ...] = (), environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, sets, environ or {})
    return str(caught.value)


def test_without_a_file_everything_is_the_default() -> None:
    loaded = load(None)
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}
    assert {"run.seed", "peer.page.port"} < set(loaded.origins)
    assert "run.objective.options" not in loaded.origins, "its keys have origins, once there are some"


def test_the_defaults_are_within_their_own_ranges() -> None:
    assert msgspec.convert(msgspec.to_builtins(Config()), Config) == Config()


def test_later_layers_win_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    base = "[run]\nseed = 2\n[run.batch]\ngroups = 2\nmicro = 2\nbuffer = 2.5\n[run.window]\nversions = 2\n"
    written(tmp_path, base, "base.toml")
    path = written(tmp_path, 'extends = "base.toml"\n[run.batch]\ngroups = 3\nmicro = 3\nbuffer = 3.5\n')
    environ = {"SWARM__RUN__BATCH__MICRO": "4", "SWARM__RUN__BATCH__BUFFER": "4", "SWARM_OTHER": "x"}
    loaded = load(path, ["run.batch.buffer=5"], environ)
    run = loaded.config.run
    assert (run.seed, run.batch.groups, run.batch.micro, run.batch.buffer, run.window.versions) == (
        2,
        3,
        4,
        5.0,
        2,
    )
    assert loaded.origins["run.optimizer.lr"] == "default"
    assert loaded.origins["run.seed"] == f"{tmp_path / 'base.toml'} line 2"
    assert loaded.origins["run.batch.groups"] == f"{path} line 3"
    assert loaded.origins["run.batch.micro"] == "environment variable SWARM__RUN__BATCH__MICRO"
    assert loaded.origins["run.batch.buffer"] == "--set run.batch.buffer"


def test_a_table_of_one_half_may_be_named_without_it(tmp_path: Path) -> None:
    path = written(tmp_path, '[objective]\nname = "grpo"\n[page]\nport = 9\n')
    loaded = load(path, ["optimizer.lr=0.5"])
    assert (
        loaded.config.run.objective.name,
        loaded.config.peer.page.port,
        loaded.config.run.optimizer.lr,
    ) == ("grpo", 9, 0.5)
    assert loaded.origins["run.objective.name"] == f"{path} line 2"


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("[run]\n\n[run.batch]\ngruops = 3\n", 4, "did you mean run.batch.groups?"),
        ("# first\nrun.bacth.groups = 3\n", 2, "did you mean run.batch?"),
        ("[run]\nlr = 0.1\n", 2, "did you mean run.optimizer.lr?"),
        ("[run]\nlearnrate = 0.1\n", 2, "did you mean run.optimizer.lr?"),
        ("[peer]\nlearning-rate = 0.1\n", 2, "did you mean run.optimizer.lr?"),
        ("[peer.engine]\ngpu_memory_utilisation = 0.9\n", 2, "did you mean peer.engine.memory?"),
        ("[run]\nbacth.groups = 3\n", 2, "did you mean run.batch?"),
        (
            "[peer]\n\n[run . batch]\ngroups.many = 3\n",
            4,
            "run.batch.groups wants a whole number of at least 1, found a table",
        ),
        ("run . sed = 3\n", 1, "did you mean run.seed?"),
        ("[run.bacth]\ngroups = 3\nmicro = 1\n", 1, "did you mean run.batch?"),
        ("[run]\nseed = 1\nbatch = { groups = 0 }\n", 3, "run.batch.groups wants"),
        ("[run.averaging]\ndeadline = 30\n[run.batch]\ngroups = 0\n", 4, "run.batch.groups wants"),
        ('["run".batch] # of a step\n# micro = 0\n"micro" = 0\n', 3, "run.batch.micro wants"),
        ('[run.batch]\ngroups = "many"\n', 2, 'wants a whole number of at least 1, found the text "many"'),
        ("[run.batch]\ngroups = 0\n", 2, "at least 1, found 0"),
        ("[run.batch]\ngroups = true\n", 2, "found true"),
        ("[run.stop]\naccuracy = 1.5\n", 2, "a number of at least 0 and at most 1, found 1.5"),
        ("[run.optimizer]\nlr = nan\n", 2, "found nan"),
        (
            '[peer.delay.policy]\nlaw = "weibul"\n',
            2,
            "one of constant, exponential, lognormal, none, weibull",
        ),
        ("[run]\nbatch = 3\n", 2, "run.batch is a table"),
        ("[run.objective.options]\neps = [1]\n", 2, "a number, a text, true or false, found the list [1]"),
        (
            '[run.objective.options]\n"a.b" = 1\n',
            2,
            'the name "a.b" in run.objective.options has a dot: write',
        ),
        ("[run.objective]\noptions = 3\n", 2, "run.objective.options wants a table, found 3"),
        ('[run]\nname = "My run"\n', 2, "wants a text of 1 to 40 lower-case letters, digits"),
        ('[run.model]\nname = ""\n', 2, "wants a text that is not empty"),
        ("[run.model]\nrevision = 3\n", 2, "wants a text, found 3"),
        ("[run.task]\nweights = 3\n", 2, "wants a list of numbers, found 3"),
        ("[run.task]\nweights = [1.0, nan]\n", 2, "wants a list of numbers, found the list [1.0, nan]"),
        ("[run.task]\nrewards = 3\n", 2, "wants a list of texts, found 3"),
        ("[peer.limits]\nupload = -1\n", 2, "peer.limits.upload wants a number of at least 0, found -1"),
        (
            "[limits]\ndownload = 0.1\n",
            2,
            "peer.limits.download is 0.1 Mbit/s, and no release passes in time below 0.5; 0 is no limit",
        ),
        ("extends = 3\n", 1, "extends is the name of one file, found 3"),
    ],
)
def test_a_mistake_in_a_file_is_shown_with_its_line(
    tmp_path: Path, text: str, line: int, wanted: str
) -> None:
    path = written(tmp_path, text)
    said = refused(path)
    assert said.startswith(f"{path} line {line}: ")
    assert wanted in said


def test_a_mistake_whose_line_is_not_found_is_shown_with_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, '"r\\u0075n".sed = 3\n')
    assert refused(path) == f"{path}: there is no key run.sed; did you mean run.seed?"


def test_a_mistake_outside_a_file_is_shown_with_its_origin() -> None:
    assert refused(sets=("run.sed=3",)) == "--set run.sed: there is no key run.sed; did you mean run.seed?"
    assert "expected KEY=VALUE" in refused(sets=("run.seed",))
    assert "is a table" in refused(sets=("objective.options=3",))
    assert "is a table" in refused(sets=("run.batch=3",))
    assert "there is no key run.seed.first" in refused(sets=("run.seed.first=3",))
    assert refused(environ={"SWARM__RUN__SEED": "x"}).startswith(
        "environment variable SWARM__RUN__SEED: run.seed wants"
    )


@pytest.mark.parametrize(
    ("sets", "keys"),
    [
        (("averaging.request=3",), ("run.averaging.request", "run.averaging.match")),
        (("pace.beat=5",), ("run.pace.patience", "run.pace.beat")),
        (("averaging.chunk=30", "averaging.deadline=20"), ("run.averaging.chunk", "run.averaging.deadline")),
        (("averaging.match=30", "averaging.deadline=20"), ("run.averaging.match", "run.averaging.deadline")),
        (
            ("delay.upload.seconds=9", "delay.upload.longest=8"),
            ("peer.delay.upload.longest", "peer.delay.upload.seconds"),
        ),
        (
            ("delay.policy.seconds=9", "delay.policy.longest=8"),
            ("peer.delay.policy.longest", "peer.delay.policy.seconds"),
        ),
    ],
)
def test_two_settings_that_contradict_each_other_are_both_named(
    sets: tuple[str, ...], keys: tuple[str, str]
) -> None:
    said = refused(sets=sets)
    assert all(key in said for key in keys)
    assert "--set" in said


def test_a_delay_may_be_cut_off_where_it_lies_and_a_deadline_not_where_its_round_begins() -> None:
    assert (
        load(None, ["delay.upload.seconds=8", "delay.upload.longest=8"]).config.peer.delay.upload.longest == 8
    )
    averaging = Config().run.averaging
    assert load(None, ["averaging.match=30", "averaging.chunk=30"]).config.run.averaging.deadline == 0
    for name, limit in (("request", averaging.match), ("match", 20.0), ("chunk", 20.0)):
        sets = (f"averaging.{name}={limit}", "averaging.deadline=20")
        assert "the first must be below" in refused(sets=sets)
    assert "more than twice" in refused(sets=(f"pace.patience={2 * Config().run.pace.beat}",))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert f"cannot read {tmp_path / 'no.toml'}: No such file" in refused(tmp_path / "no.toml")
    assert "which it.toml extends" in refused(written(tmp_path, 'extends = "gone.toml"'))
    assert "is not TOML" in refused(written(tmp_path, "a ="))
    (tmp_path / "it.toml").write_bytes(b'[run]\nname = "\xff"\n')
    assert "it.toml is not TOML" in refused(tmp_path / "it.toml")
    deep = "[" * 3000 + "]" * 3000
    assert "it.toml is nested too deeply" in refused(written(tmp_path, f"[run]\nseed = {deep}\n"))
    assert "run.seed wants a whole number" in refused(sets=(f"run.seed={deep}",))
    assert "extends itself" in refused(written(tmp_path, 'extends = "it.toml"'))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_bytes(b"\xef\xbb\xbf[run]\r\nseed = 3\r\n")
    assert load(tmp_path / "it.toml").config.run.seed == 3
    assert load(None, [f"run.seed={2**64 - 1}"]).config.run.seed == 2**64 - 1


def test_words_are_read_as_what_the_key_wants() -> None:
    words = [
        "listen.announce=/ip4/192.0.2.1/tcp/1, /dns/a/tcp/2,",
        "run.private=true",
        "model.name=7",
        "objective.options.eps=0.3",
    ]
    loaded = load(None, words)
    assert loaded.config.peer.listen.announce == ("/ip4/192.0.2.1/tcp/1", "/dns/a/tcp/2")
    assert loaded.config.run.private is True
    assert loaded.config.run.model.name == "7"
    assert loaded.config.run.objective.options == {"eps": 0.3}
    assert loading.value(loaded.config, "run.objective.options.eps") == 0.3


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a b", "a b"),
        ('"a b"', "a b"),
        ("'7'", "7"),
        ("aba", "aba"),
        ("\"a'", "\"a'"),
        ('"', '"'),
        ('""', ""),
        ("", ""),
    ],
)
def test_a_text_may_stand_in_quotes_of_either_kind_and_needs_none(word: str, text: str) -> None:
    layer = layers.from_arguments(layers.Schema(Whole), [f"left.only.colour = {word}"])
    assert layer["left.only.colour"].value == text


runs = st.builds(
    lambda seed, lr, options: Run(
        seed=seed, optimizer=config.Optimizer(lr=lr), objective=config.ObjectiveSettings(options=options)
    ),
    st.integers(0, 2**62),
    st.floats(1e-9, 10),
    st.dictionaries(
        st.text("abc", min_size=1), st.one_of(st.booleans(), st.floats(-9, 9), st.text(max_size=5))
    ),
)


@given(runs)
def test_a_joiner_gets_the_run_that_was_started(run: Run) -> None:
    over_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(loading.run_dict(run)))
    assert loading.from_run_dict(over_the_wire) == run


@settings(max_examples=20)
@given(runs)
def test_what_is_dumped_can_be_loaded(run: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = Config(run=run, peer=config.Peer(page=Page(port=1)))
        assert load(written(Path(folder), loading.dump(whole))).config == whole
        assert load(written(Path(folder), loading.dump(whole, "run"))).config == Config(run=run)


def test_the_order_in_which_options_were_written_does_not_change_the_run() -> None:
    one, two = ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0})
    runs = [Run(objective=config.ObjectiveSettings(options=options)) for options in (one, two)]
    assert msgspec.msgpack.encode(loading.run_dict(runs[0])) == msgspec.msgpack.encode(
        loading.run_dict(runs[1])
    )


BEGUN = Path(__file__).with_name("run_of_protocol_7.json")
"""The settings of a run, as the first version of this PROTOCOL wrote them."""

FIRST = Run()
"""The same settings. Every Spec since has all of them, so that defaults may change: those are of new runs."""


def test_a_run_of_the_first_version_of_this_protocol_goes_on() -> None:
    assert BEGUN.stem.endswith(f"_{PROTOCOL}"), "a new PROTOCOL begins with settings of its own"
    assert loading.from_run_dict(json.loads(BEGUN.read_text())) == FIRST


def test_a_setting_that_came_later_is_in_a_spec_only_where_it_says_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    then = json.loads(BEGUN.read_text())
    assert json.loads(msgspec.json.encode(loading.run_dict(FIRST))).items() == then.items(), (
        "a setting of [run] that is new belongs to loading.YOUNGER once this PROTOCOL is released;"
        f" until then, and with a new one, to {BEGUN.name}"
    )
    monkeypatch.setattr(loading, "YOUNGER", frozenset({"pace.beat", "private"}))
    tree = loading.run_dict(Run())
    assert "private" not in tree and list(tree["pace"]) == ["patience"]
    assert loading.from_run_dict(tree) == Run()
    other = Run(pace=config.Pace(beat=1.0), private=True)
    assert loading.from_run_dict(loading.run_dict(other)) == other


def test_options_of_a_template_are_one_setting_which_older_versions_refuse_by_name() -> None:
    run = Run(model=config.Model(template_options={"enable_thinking": False, "budget": 3}, date="2024-07-26"))
    tree = loading.run_dict(run)
    assert list(tree["model"]["template_options"]) == ["budget", "enable_thinking"]  # type: ignore[index]
    assert loading.from_run_dict(tree) == run and not loading.unknown(tree)
    assert all(loading.matters(f"model.{key}", Role.SAMPLER) for key in ("template_options", "date"))
    loaded = load(None, ["run.model.template_options.enable_thinking=false"]).config.run
    assert loaded.model.template_options == {"enable_thinking": False}


SETS = """
[run.evaluation.sets.hard]
options = { digits = 6 }
[run.evaluation.sets.other-task]
name = "brackets"
rewards = ["exact"]
"""


def test_evaluation_sets_have_names_of_the_user_in_every_layer(tmp_path: Path) -> None:
    path = written(tmp_path, SETS)
    words = ["evaluation.sets.hard.options.partial=true", "run.evaluation.sets.third.name=toy"]
    loaded = load(path, words, {"SWARM__RUN__EVALUATION__SETS__HARD__TASKS": "9"})
    sets = {
        "hard": config.EvaluationSet(options={"digits": 6, "partial": True}, tasks=9),
        "other-task": config.EvaluationSet(name="brackets", rewards=("exact",)),
        "third": config.EvaluationSet(name="toy"),
    }
    assert loaded.config.run.evaluation.sets == sets
    assert loaded.origins["run.evaluation.sets.hard.options.digits"] == f"{path} line 3"
    assert "run.evaluation.sets.third.tasks" not in loaded.origins
    again = written(tmp_path, loading.dump(loaded.config), "again.toml")
    assert load(again).config == loaded.config and "[run.evaluation.sets.other-task]" in again.read_text()


def test_evaluation_sets_are_in_a_spec_and_matter_to_evaluators() -> None:
    run = load(None, ["run.evaluation.sets.b.name=toy", "run.evaluation.sets.a.options.digits=7"]).config.run
    tree = json.loads(msgspec.json.encode(loading.run_dict(run)))
    assert list(tree["evaluation"]["sets"]) == ["a", "b"]
    assert loading.from_run_dict(tree) == run and not loading.unknown(tree)
    assert {r for r in Role if loading.matters("evaluation.sets.a.name", r)} == {Role.EVALUATOR}
    tree["evaluation"]["sets"]["../x"] = {"name": "toy"}
    tree["evaluation"]["sets"]["b"]["mood"] = 3
    assert loading.unknown(tree) == ["evaluation.sets.b.mood", "evaluation.sets.../x.name"]
    assert loading.from_run_dict(tree) == run


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("hard.nmae=x", "no key run.evaluation.sets.hard.nmae; did you mean run.evaluation.sets.hard.name?"),
        ("hard.max_tokens=3", "did you mean run.sampling.max_tokens?"),
        (
            "hard.tasks=many",
            "run.evaluation.sets.hard.tasks wants a whole number of at least 0, found the text",
        ),
        ("Hard.name=x", "the name in run.evaluation.sets has to be a text of 1 to 24 lower-case letters"),
        ("NAME.name=x", "the name in run.evaluation.sets has to be a text of 1 to 24 lower-case letters"),
        ("hard=brackets", "run.evaluation.sets.hard is a table, not a value: set a key in it, such as"),
        ("hard.options=3", "such as run.evaluation.sets.hard.options.NAME"),
    ],
)
def test_a_mistake_in_an_evaluation_set_is_told_with_its_name(word: str, wanted: str) -> None:
    said = refused(sets=(f"run.evaluation.sets.{word}",))
    assert said.startswith(f"--set run.evaluation.sets.{word.partition('=')[0]}: ") and wanted in said


def test_an_evaluation_set_that_says_nothing_and_too_many_of_them_are_refused(tmp_path: Path) -> None:
    said = refused(written(tmp_path, "[run.evaluation.sets.hard]\n"))
    assert said.endswith(
        "line 1: run.evaluation.sets.hard is a table, not a value: set a key in it, such as"
        " run.evaluation.sets.hard.name"
    )
    assert "has 9 sets, and an evaluation at most 8" in refused(
        sets=tuple(f"run.evaluation.sets.s{i}.name=toy" for i in range(9))
    )


NEWER = {
    "wisdom": {"level": 3},
    "averaging": {"compression": "int4", "match": 3.0},
    "pace": {"rhythm": "waltz", "patience": 20.0},
}


def test_what_a_newer_version_set_is_named_and_the_rest_is_taken() -> None:
    assert loading.unknown(NEWER) == ["wisdom.level", "averaging.compression", "pace.rhythm"]
    taken = Run(averaging=config.Averaging(match=3.0), pace=config.Pace(patience=20.0))
    assert loading.from_run_dict(NEWER) == taken


COMPUTING = {Role.SAMPLER, Role.LEARNER, Role.EVALUATOR, Role.AUDITOR}


@pytest.mark.parametrize(
    ("key", "roles"),
    [
        ("seed", {Role.SEED, *COMPUTING}),
        ("wisdom.level", {Role.SEED, *COMPUTING}),
        ("release.keep", {Role.SEED, *COMPUTING}),
        ("sampling.top_p", COMPUTING),
        ("averaging.compression", {Role.LEARNER}),
        ("evaluation.answers", {Role.EVALUATOR}),
        ("pace.rhythm", set()),
        ("stop.hours", set()),
    ],
)
def test_what_is_not_known_matters_to_those_who_act_by_it(key: str, roles: set[Role]) -> None:
    assert {role for role in Role if loading.matters(key, role)} == roles


def test_every_table_of_a_run_that_is_said_to_matter_to_some_is_there() -> None:
    assert set(loading.ACTS) <= set(Run.__struct_fields__)


def test_a_run_from_elsewhere_is_checked_like_a_file() -> None:
    assert loading.unknown(loading.run_dict(Run()) | {"seed": -1}) == ["seed"]
    with pytest.raises(ConfigError, match="the first must be below"):
        loading.from_run_dict({"averaging": {"match": 9.0, "request": 9.0}})


def test_the_schema_lists_every_key_and_is_itself_a_good_file(tmp_path: Path) -> None:
    text = loading.schema_text()
    assert load(written(tmp_path, text)).config == Config()
    uncommented = re.sub(r"^# (\w+ = .*)", r"\1", text, flags=re.MULTILINE)
    loaded = load(written(tmp_path, uncommented))
    assert loaded.config == Config()
    closed = [key for key in loaded.origins if not loading.SCHEMA.is_free(key)]
    assert all(loaded.origins[key] != "default" for key in closed)


def test_every_key_is_described() -> None:
    assert all(layers.describe(field.type) for field in loading.SCHEMA.keys.values())


def test_every_pattern_of_a_setting_is_told_in_words() -> None:
    shown = [layers.describe(field.type) for field in loading.SCHEMA.keys.values()]
    assert not [words for words in shown if "^" in words]


def test_what_other_programs_call_a_setting_leads_to_one_that_there_is() -> None:
    assert set(loading.MEANT.values()) <= set(loading.SCHEMA.keys)
    assert not set(loading.MEANT) & {key.rpartition(".")[2] for key in loading.SCHEMA.keys}


class Inner(msgspec.Struct):
    size: int = 1
    colour: str = ""


class Left(msgspec.Struct):
    both: Inner = msgspec.field(default_factory=Inner)
    only: Inner = msgspec.field(default_factory=Inner)
    weight: int = 1


class Right(msgspec.Struct):
    both: Inner = msgspec.field(default_factory=Inner)
    left: Inner = msgspec.field(default_factory=Inner)
    weights: int = 1


class Whole(msgspec.Struct):
    left: Left = msgspec.field(default_factory=Left)
    right: Right = msgspec.field(default_factory=Right)


def test_a_short_name_stands_for_the_one_table_that_has_it() -> None:
    schema = layers.Schema(Whole)
    assert schema.full("only.size") == "left.only.size" and schema.full("only") == "left.only"
    assert schema.full("both.size") == "both.size", "two halves have it: it is nobody's short name"
    assert schema.full("left.size") == "left.size", "it is the name of a half"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("left.weigth", "left.weight"),
        ("right.weigth", "right.weights"),
        ("left.weights", "right.weights"),
        ("right.only", "left.only"),
        ("left.only.sise", "left.only.size"),
        ("right.both.color", "right.both.colour"),
        ("left_only_colour", "left.only.colour"),
    ],
)
def test_a_key_that_does_not_exist_names_the_nearest_in_its_table_and_then_in_another(
    key: str, meant: str
) -> None:
    assert layers.Schema(Whole).unknown(key) == f"there is no key {key}; did you mean {meant}?"


def test_a_key_that_is_like_no_other_names_those_of_its_table_alone() -> None:
    schema = layers.Schema(Whole)
    assert schema.unknown("left.only.zz") == (
        "there is no key left.only.zz; known there: size, colour (`swarm config schema` lists all)"
    )
    assert schema.unknown("zzzzzz") == (
        "there is no key zzzzzz; known there: left, right (`swarm config schema` lists all)"
    )
    assert schema.unknown("y.zzzzzz") == "there is no key y.zzzzzz (`swarm config schema` lists all)"


def test_a_table_that_is_given_a_value_names_a_key_in_it() -> None:
    assert layers.Schema(Whole).not_a_key("left.only").endswith("such as left.only.size")


def test_a_model_on_several_gpus_at_a_site_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="split over several GPUs"):
        load(None, ["run.averaging.mode=sites", "peer.learner.gpus=2"])
    with pytest.raises(ConfigError, match="nothing to overlap"):
        load(None, ["run.averaging.mode=sites", "run.averaging.overlap=true"])
    assert load(None, ["run.averaging.mode=sites"]).config.run.averaging.local_steps == 8
