"""Loads a Config from files, the environment and `--set`, and writes one as text.

    defaults < `extends` < file < environment < `--set` --load--> LoadedConfig
    Run --run_dict--> plain values in a Spec --from_run_dict--> the same Run at a joiner
                                             --unknown, matters--> another version's settings, their effect
    Config --dump--> TOML that `load` reads back            --schema_text--> every key explained

Invariant: what is loaded is within its types' ranges and satisfies RELATIONS between two fields. Not
handled here: which settings there are (swarm.settings.config), how layers are folded (swarm.settings.layers).
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from swarm.protocol import ROLES, PolicyUse, Role
from swarm.settings import layers
from swarm.settings.config import Config, Run
from swarm.settings.layers import ConfigError
from swarm.settings.sections import Section
from swarm.types import SETS


class LoadedConfig(NamedTuple):
    """A Config, and where each of its values was set."""

    config: Config
    origins: dict[str, str]
    """Dotted key -> `default`, `configs/demo.toml line 7`, `environment variable SWARM__...` or `--set
    ...`."""


MEANT = {
    "learnrate": "run.optimizer.lr",
    "learning_rate": "run.optimizer.lr",
    "max_grad_norm": "run.optimizer.grad_clip",
    "warmup_steps": "run.optimizer.warmup",
    "lr_scheduler_type": "run.optimizer.decay",
    "algorithm": "run.objective.name",
    "loss_type": "run.objective.name",
    "beta": "run.objective.options",
    "epsilon": "run.objective.options",
    "mask_truncated_completions": "run.objective.overlong",
    "overlong_buffer": "run.objective.overlong",
    "soft_punish_cache": "run.objective.overlong_share",
    "batch_size": "run.batch.groups",
    "micro_batch_size": "run.batch.micro",
    "num_generations": "run.sampling.group_size",
    "max_new_tokens": "run.sampling.max_tokens",
    "max_completion_length": "run.sampling.max_tokens",
    "dataset": "run.task.name",
    "data": "run.task.name",
    "reward": "run.task.rewards",
    "reward_funcs": "run.task.rewards",
    "system_prompt": "run.task.system",
    "max_steps": "run.stop.versions",
    "staleness": "run.window.versions",
    "max_lag": "run.window.versions",
    "base_model": "run.model.name",
    "adapter_path": "run.model.adapter",
    "peft_model": "run.model.adapter",
    "chat_template_kwargs": "run.model.template_options",
    "enable_thinking": "run.model.template_options",
    "lora_rank": "run.lora.rank",
    "lora_alpha": "run.lora.alpha",
    "target_modules": "run.lora.targets",
    "save_steps": "run.release.checkpoint_every",
    "heartbeat": "run.pace.beat",
    "max_model_len": "peer.engine.length",
    "gpu_memory_utilization": "peer.engine.memory",
    "bandwidth": "peer.limits.upload",
    "num_gpus": "peer.learner.gpus",
    "gradient_checkpointing": "peer.learner.checkpointing",
    "external_address": "peer.listen.announce",
}
"""What TRL, vLLM and other programs call a setting -> the setting."""

SCHEMA = layers.Schema(Config, MEANT)


RELATIONS: tuple[tuple[str, str, Callable[[float, float], bool], str], ...] = (
    (
        "run.averaging.request",
        "run.averaging.match",
        lambda a, b: a < b,
        "be below: it is the margin after it",
    ),
    (
        "run.averaging.match",
        "run.averaging.deadline",
        lambda a, b: not b or a < b,
        "be below: no round could end in time",
    ),
    (
        "run.averaging.chunk",
        "run.averaging.deadline",
        lambda a, b: not b or a < b,
        "be below: a lost member could not be noticed in time",
    ),
    (
        "run.pace.patience",
        "run.pace.beat",
        lambda a, b: a > 2 * b,
        "be more than twice: one late heartbeat would lose a peer",
    ),
    (
        "peer.delay.policy.longest",
        "peer.delay.policy.seconds",
        lambda a, b: a >= b,
        "not be below: it cuts the law off",
    ),
    (
        "peer.delay.upload.longest",
        "peer.delay.upload.seconds",
        lambda a, b: a >= b,
        "not be below: it cuts the law off",
    ),
)
"""(key, other key, predicate on both values, end of the sentence 'the first must ...' with the reason)."""

ACTING = frozenset(PolicyUse) - {PolicyUse.UNUSED}
COMPUTING = ACTING - {PolicyUse.KEPT}
LEARNING = frozenset({PolicyUse.TRAINED})

ACTS: Mapping[str, frozenset[PolicyUse]] = {
    "model": COMPUTING,
    "lora": COMPUTING,
    "task": COMPUTING,
    "sampling": COMPUTING,
    "objective": LEARNING,
    "optimizer": LEARNING,
    "batch": LEARNING,
    "window": LEARNING,
    "averaging": LEARNING,
    "evaluation": frozenset({PolicyUse.USED}),
    "pace": frozenset(),
    "stop": frozenset(),
}
"""Table of [run] -> programs whose work depends on it: what they compute, what they admit, which bytes are
right. The pace of heartbeats and the end of a run decide none of these, and a peer that only shows or mirrors
a run depends on nothing. Tables that are not here, and keys outside of tables, concern every peer that
acts."""

YOUNGER: frozenset[str] = frozenset()
"""Settings of [run] that came with later versions of this PROTOCOL. Their defaults are the behaviour before
them, and never change; where one is the default, a Spec leaves it out, so that older versions of this program
find unknown settings only where they have an effect."""

MANY_SETS = (
    "run.evaluation.sets has {count} sets, and an evaluation at most {most}: leave some out, or put their"
    " rows into one"
)

LEAST_MBIT = 0.5
"""Mbit/s of a limit at least: a block of 1 MiB takes 17 s, and the four that are asked for together 67 s."""


SHARDED_SITES = (
    "run.averaging.mode = 'sites' with peer.learner.gpus above 1: a model split over several GPUs makes no"
    " contributions yet; set peer.learner.gpus = 1, or run.averaging.mode = 'butterfly' in a new run"
)

ADAPTER_OF_ALL = (
    "run.model.adapter with run.model.training = 'full': all weights are trained then, and no adapter; set"
    " training to lora or qlora, or merge the adapter into its model"
)

ENDLESS_DECAY = (
    "run.optimizer.decay = {decay!r} needs run.stop.versions: the learning rate is 0 at the run's last"
    " version, and this run has none; set it, or take 'constant'"
)

OVERLAPPED_SITES = (
    "run.averaging.overlap with run.averaging.mode = 'sites': sites do not wait for rounds, so that there is"
    " nothing to overlap; leave it out"
)


def load(
    path: Path | None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    ships: Sequence[Path] = (),
    options: Mapping[str, tuple[str, str]] = {},
) -> LoadedConfig:
    """Defaults < `extends` < file < environment < `--set` < `options`, key -> the option that is short for it
    and its value. `ships`: folders of what a file may extend that has none of that name beside it. Raises
    ConfigError."""
    files = layers.from_file(SCHEMA, path, ships=ships) if path is not None else []
    above = [
        layers.from_environment(SCHEMA, environ or {}),
        layers.from_arguments(SCHEMA, sets),
        layers.from_options(SCHEMA, options),
    ]
    tree, origins = layers.fold(SCHEMA, [*files, *above])
    loaded = LoadedConfig(_convert(tree, Config), origins)
    _check_relations(loaded)
    return loaded


def run_dict(run: Run) -> dict[str, object]:
    """The run half as plain values, complete with defaults but for those of YOUNGER: fields in the order of
    their definition, options by name."""
    tree: dict[str, Any] = msgspec.to_builtins(run)
    for table, name in (("model", "template_options"), ("task", "options"), ("objective", "options")):
        tree[table][name] = dict(sorted(tree[table][name].items()))
    sets = tree["evaluation"]["sets"] = dict(sorted(tree["evaluation"]["sets"].items()))
    for one in sets.values():
        one["options"] = dict(sorted(one["options"].items()))
    for key in YOUNGER:
        *tables, name = key.split(".")
        here = functools.reduce(dict.__getitem__, tables, tree)
        if here[name] == msgspec.to_builtins(SCHEMA.default(f"run.{key}")):
            del here[name]
    return tree


def from_run_dict(tree: Mapping[str, Any]) -> Run:
    """Inverse of `run_dict`, as far as this program knows what is set: the rest is left out (`unknown`), and
    what is not set is the default. Raises ConfigError when two settings do not go together."""
    known: dict[str, Any] = {}
    for key, setting in _leaves(tree):
        if _is_known(key, setting):
            *tables, name = key.split(".")
            functools.reduce(lambda here, table: here.setdefault(table, {}), tables, known)[name] = setting
    run = _convert(known, Run)
    _check_relations(LoadedConfig(Config(run=run), {}))
    return run


def unknown(tree: Mapping[str, Any]) -> list[str]:
    """Settings of a run that this program does not know, or not with such a value."""
    return [key for key, setting in _leaves(tree) if not _is_known(key, setting)]


def matters(key: str, role: Role) -> bool:
    """Whether a peer of this role acts by a setting of [run]."""
    return ROLES[role].policy in ACTS.get(key.partition(".")[0], ACTING)


def value(config: Config, key: str) -> Any:
    """The value of a dotted key, also of an option."""
    here: Any = config
    for name in key.split("."):
        here = here[name] if isinstance(here, dict) else getattr(here, name)
    return here


def schema_text() -> str:
    """All keys with their defaults, what they accept and what they mean, as a TOML file in which everything
    is a comment."""
    lines: list[str] = []
    for table, kind in SCHEMA.tables.items():
        keys = [key for key in SCHEMA.keys if key.rpartition(".")[0] == table]
        if not keys:
            continue
        docs = field_docs(kind)
        about = inspect.cleandoc(kind.__doc__ or "")
        mark = "# " if table.endswith(f".{layers.NAME}") else ""  # there is no such table before one is named
        lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 116)), f"{mark}[{table}]"]
        for key in keys:
            name = key.rpartition(".")[2]
            lines += [f"{mark}# {line}" for line in textwrap.wrap(docs.get(name, ""), 116 - len(mark))]
            lines.append(
                f"{mark}# {name} = {toml(SCHEMA.default(key))}  # {layers.describe(SCHEMA.keys[key].type)}"
            )
    return "\n".join(lines[1:]) + "\n"


def dump(config: Config, half: str = "") -> str:
    """All settings as a TOML file that `load` reads back; `half` is `run` or `peer` for that half alone."""
    lines: list[str] = []
    for table in _tables(config):
        general = SCHEMA.general(table) or table
        keys = [table + key.removeprefix(general) for key in SCHEMA.keys if key.rpartition(".")[0] == general]
        if keys and half in ("", table.split(".")[0]):
            lines += [
                f"[{table}]",
                *(f"{key.rpartition('.')[2]} = {toml(value(config, key))}" for key in keys),
                "",
            ]
    return "\n".join(lines)


def _tables(config: Config) -> Iterator[str]:
    """The tables of these settings, with those that a user named."""
    for table in SCHEMA.tables:
        above = table.removesuffix(f".{layers.NAME}")
        yield from [table] if above == table else (f"{above}.{name}" for name in value(config, above))


def toml(value: object) -> str:
    """One value as TOML writes it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            # JSON allows DEL as it is, TOML does not
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case tuple() | list():
            return "[" + ", ".join(toml(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{toml(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
        case _:
            return str(value)


def _check_relations(loaded: LoadedConfig) -> None:
    for key, other, holds, must in RELATIONS:
        mine, theirs = value(loaded.config, key), value(loaded.config, other)
        if not holds(mine, theirs):
            both = [
                f"{name} = {value(loaded.config, name):g} ({loaded.origins.get(name, 'the run')})"
                for name in (key, other)
            ]
            raise ConfigError(f"{both[0]} against {both[1]}: the first must {must}")
    for key in ("peer.limits.upload", "peer.limits.download"):
        if 0 < (mbit := value(loaded.config, key)) < LEAST_MBIT:
            raise ConfigError(
                f"{loaded.origins[key]}: {key} is {mbit:g} Mbit/s, and no release passes in time below"
                f" {LEAST_MBIT:g}; 0 is no limit"
            )
    if (count := len(loaded.config.run.evaluation.sets)) > SETS:
        raise ConfigError(MANY_SETS.format(count=count, most=SETS))
    if loaded.config.run.model.adapter and loaded.config.run.model.training == "full":
        raise ConfigError(ADAPTER_OF_ALL)
    if (decay := loaded.config.run.optimizer.decay) != "constant" and not loaded.config.run.stop.versions:
        raise ConfigError(ENDLESS_DECAY.format(decay=decay))
    if loaded.config.run.averaging.mode == "sites" and loaded.config.peer.learner.gpus > 1:
        raise ConfigError(SHARDED_SITES)
    if loaded.config.run.averaging.mode == "sites" and loaded.config.run.averaging.overlap:
        raise ConfigError(OVERLAPPED_SITES)


T = TypeVar("T", bound=Section)


def _convert(tree: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the configuration does not fit: {error}") from error


def _leaves(tree: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in tree.items():
        if isinstance(inner, dict) and SCHEMA.general(f"run.{table}{name}") not in SCHEMA.keys:
            yield from _leaves(inner, f"{table}{name}.")
        else:
            yield f"{table}{name}", inner


def _is_known(key: str, setting: Any) -> bool:
    try:
        return (kind := SCHEMA.kind(f"run.{key}")) is not None and msgspec.convert(setting, kind) is not None
    except msgspec.ValidationError:
        return False


def field_docs(kind: type) -> dict[str, str]:
    """Field -> the text under it in the source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
        ):
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs
