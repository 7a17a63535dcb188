"""Row `engines`: cost of the sampler engines and learners on this machine, with a tiny random Llama.

    pace       tokens/s of each engine: in a swarm, alone, and without this project   sampling, sink
    learner    seconds a step and peak memory: full, 8-bit Adam, LoRA, QLoRA          training
    arrival    a release's bytes are here -> the first token sampled with it          engine_agreement
    agreement  |engine's log-prob - learner's| of the sampled tokens                  engine_agreement

The last column names modules of lab.processes.

The two sides of a comparison take turns, each in its own process; the median turn is reported, with the range
of the others. An engine that cannot run here is listed with the reason. Not handled here: larger models,
whose arithmetic takes longer and for which a swarm's overhead is smaller.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from lab.figures.priority import step_back
from lab.figures.table import Figure, Gap, Line, Unmeasured, number
from lab.processes.sampling import RUN
from lab.processes.serving import serving
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

ENGINES = ("hf", "vllm", "vllm-server")
PLAIN = {"hf": "transformers' generate", "vllm": "vllm.LLM", "vllm-server": "the server's own answers"}
"""The library behind each engine, which it is compared with."""

SIZES = ((1, 1), (2, 8), (8, 8), (32, 8))
"""(tasks, completions of each) in one call. No run has groups of one: that is a single completion, the least
there is to share what a call costs."""

TOKENS = 64
"""Longest completion. A random model hardly ever ends earlier; real ones are longer, and a swarm costs less
then."""

STARTS = 5
"""Fresh processes of each side: what memory they get makes a call of 256 completions up to 8 % faster or
slower for as long as they live."""

TURNS = 3
"""After each start."""

SECONDS = 1.0
"""Seconds of one turn on each side."""

FAMILY = "llama"
"""Model family. Its head is not tied to its embeddings: a vLLM server on a CPU takes new weights of such
models alone."""

LEARNERS = {
    "full": ("full", "adamw"),
    "full, 8-bit Adam": ("full", "adamw8bit"),
    "LoRA": ("lora", "adamw"),
    "QLoRA": ("qlora", "adamw"),
}
"""(run.model.training, run.optimizer.name)"""

WIDE = {"hidden": 512, "layers": 4}
"""Size of the model that learners train: 12.7M parameters, whose weights and moments outweigh what a process
needs anyway."""

KINDS = {
    "hf": ("float32", "bfloat16", "int8", "nf4"),
    "vllm": ("float32", "bfloat16"),
    "vllm-server": ("float32", "bfloat16"),
}
"""Engine -> precisions in which its log-probs are compared with the learner's."""


def measure(
    say: Say,
    sizes: Sequence[tuple[int, int]] = SIZES,
    tokens: int = TOKENS,
    starts: int = STARTS,
    turns: int = TURNS,
    seconds: float = SECONDS,
) -> Iterator[Line]:
    """Each part by itself."""
    from swarm.learn.models import tiny

    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        small, wide = (Path(folder) / name for name in ("small", "wide"))
        tiny.make(small, FAMILY)
        tiny.make(wide, FAMILY, **WIDE)
        shared = {"model": str(small), "tokens": tokens}
        for engine in ENGINES:
            if (why := missing(engine)) is not None:
                yield Gap(row="engines", why=f"{engine}: {why}")
                continue
            most = max(tasks for tasks, _ in sizes)
            setup = {**shared, "engine": engine, "settings": [f"peer.engine.tasks={most}"]}
            for part in (
                _pace(say, setup, sizes, Turns(starts, turns, seconds)),
                _arrival(say, setup),
                _agreement(say, setup),
            ):
                yield from _tried(say, engine, part)
        yield from _tried(say, "learner", _learners(say, wide))


def missing(engine: str) -> str | None:
    """Why an engine cannot be tried here at all, or None."""
    if engine == "hf" or find_spec("vllm") is not None:
        return None
    return (
        "vllm is not installed here: `make bench-engines` measures it in .venv-vllm once `make test-vllm` has"
        " made that"
    )


def _tried(say: Say, what: str, part: Iterator[Line]) -> Iterator[Line]:
    try:
        yield from part
    except Unmeasured as error:
        say(f"{what}: not measured: {error}")
        yield Gap(row="engines", why=f"{what}: {error}")


@contextmanager
def _served(setup: Answer, dtype: str = "auto", adapters: bool = False) -> Iterator[Answer]:
    """The setup, with the address of a server that runs meanwhile where the engine needs one."""
    if setup["engine"] != "vllm-server":
        yield setup
        return
    with serving(Path(setup["model"]), dtype, adapters) as url:
        yield {**setup, "settings": [*setup["settings"], f"peer.engine.url={url}"]}


# --- pace ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turns:
    starts: int
    count: int
    """After each start."""
    seconds: float
    """Of each, on each side."""


Done = dict[str, list[Answer]]
"""Turns alone, in a swarm, and without this project ("plain")."""


def _pace(say: Say, setup: Answer, sizes: Sequence[tuple[int, int]], turns: Turns) -> Iterator[Line]:
    engine = setup["engine"]
    done: dict[tuple[int, int], Done] = {size: defaultdict(list) for size in sizes}
    for start in range(turns.starts):
        say(f"starting {engine} in a swarm and alone, {start + 1} of {turns.starts}")
        with _started(setup) as partners:
            for size in sizes:
                for way, told in _taken(partners, size, turns).items():
                    done[size][way] += told
    for size in sizes:
        yield from _figures(say, engine, size, done[size])


@contextmanager
def _started(setup: Answer) -> Iterator[tuple[Partner, Partner]]:
    """The engine in a swarm and alone."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-bench-")))
        for name in ("sink", "swarm", "alone"):
            (home / name).mkdir()
        ready = stack.enter_context(_served(setup))
        sink = stack.enter_context(Partner("lab.processes.sink", {"folder": str(home / "sink"), "run": RUN}))
        address = sink.hear()["addresses"][0]
        step_back(sink.pid)  # a learner has a machine of its own
        mine = [
            {"folder": str(home / "swarm"), "sink": address},
            {"folder": str(home / "alone"), "sink": ""},
        ]
        swarm, alone = (
            stack.enter_context(Partner("lab.processes.sampling", {**ready, **own})) for own in mine
        )
        for partner in (swarm, alone):
            partner.hear()
        yield swarm, alone


def _taken(partners: tuple[Partner, Partner], size: tuple[int, int], turns: Turns) -> Done:
    """In every turn: alone, in the swarm, without this project."""
    swarm, alone = partners
    for partner in partners:
        partner.ask(do="size", tasks=size[0], group=size[1])
    ways = {"alone": (alone, "sample"), "swarm": (swarm, "sample"), "plain": (alone, "plain")}
    calls = {way: _calls(*ways[way], turns.seconds) for way in ("alone", "plain")}
    calls["swarm"] = calls["alone"]
    done: Done = {way: [] for way in ways}
    for _ in range(turns.count):
        for way, (partner, do) in ways.items():
            done[way].append(partner.ask(do=do, calls=calls[way]))
    return done


def _figures(say: Say, engine: str, size: tuple[int, int], done: Done) -> Iterator[Line]:
    rates = {way: [one["tokens"] / one["seconds"] for one in turns_] for way, turns_ in done.items()}
    what = f"{engine}, {size[0] * size[1]} completion{'s' * (size != (1, 1))} a call"
    say(f"{what}: {median(rates['alone']):.0f} tokens/s, in a swarm {median(rates['swarm']):.0f}")
    costs = [1 - inside / outside for inside, outside in zip(rates["swarm"], rates["alone"], strict=True)]
    low, high = interval(costs)
    yield Figure.of_turns(
        rates["swarm"],
        rates["alone"],
        row="engines",
        what=f"{what}, in a swarm",
        unit="tokens/s",
        against="the engine alone",
        note=(
            f"the swarm costs {median(costs):.1%} ({low:.1%} to {high:.1%} by {len(costs)} turns),"
            f" {_extra(done):.1f} ms of CPU a call; aim < 5 %"
        ),
    )
    yield Figure.of_turns(
        rates["alone"],
        rates["plain"],
        row="engines",
        what=f"{what}, alone",
        unit="tokens/s",
        against=PLAIN[engine],
        note="log-probs and texts included on both sides",
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which two the median of all such values is, in about 19 of 20 cases: by the ranks n/2 -+ 0.98
    sqrt(n) of these n, whatever their distribution (W. J. Conover, Practical Nonparametric Statistics, 3.2);
    of fewer than eight, the least and the greatest."""
    rank = max(0, math.floor(len(values) / 2 - 0.98 * math.sqrt(len(values))))
    ordered = sorted(values)
    return ordered[rank], ordered[-1 - rank]


def _extra(done: Mapping[str, Sequence[Answer]]) -> float:
    """Milliseconds of CPU that a call of the sampler's process takes more in the swarm, the middle of all
    turns."""
    used = {way: median(one["cpu"] / one["calls"] for one in done[way]) for way in ("swarm", "alone")}
    return 1000 * (used["swarm"] - used["alone"])


def _calls(partner: Partner, do: str, seconds: float) -> int:
    """Calls that make a turn of `seconds`, from two trial calls of which the first warms up."""
    partner.ask(do=do, calls=1)
    return max(2, round(seconds / float(partner.ask(do=do, calls=1)["seconds"])))


# --- arrival, agreement -------------------------------------------------------------------------------------


def _arrival(say: Say, setup: Answer) -> Iterator[Line]:
    engine = setup["engine"]
    for training, what in (("full", "all weights"), ("lora", "an adapter")):
        say(f"{engine}: releases of {what} arrive")
        done = _asked(setup, "auto", {"do": "arrive", "training": training})
        late, usual = ([1000 * seconds for seconds in done[way]] for way in ("with", "without"))
        yield Figure.of_turns(
            late,
            usual,
            row="engines",
            what=f"{engine}, a release of {what} to its first token",
            unit="ms",
            against="a first token without a release",
            note=(
                f"bytes at hand, {done['bytes'] / 1000:.0f} kB; {min(late):.0f} to {max(late):.0f} ms in"
                f" {len(late)} times"
            ),
        )


def _agreement(say: Say, setup: Answer) -> Iterator[Line]:
    engine = setup["engine"]
    for kind in KINDS[engine]:
        say(f"{engine} in {kind} against the learner")
        done = _asked(setup, kind, {"do": "agree", "kind": kind})
        for against, seen in done["against"].items():
            yield Figure(
                row="engines",
                what=f"{engine} in {kind}, |delta log-prob|, mean",
                value=seen["mean"],
                unit="nats",
                against=against,
                note=f"p99 {number(seen['p99'])}, max {number(seen['max'])}; {done['tokens']} tokens",
            )


def _asked(setup: Answer, dtype: str, question: Answer) -> Answer:
    """Ask one question of a fresh engine process."""
    with (
        _served(setup, dtype, question.get("training") == "lora") as ready,
        Partner("lab.processes.engine_agreement", ready) as child,
    ):
        child.hear()
        return child.ask(**question)


# --- learner ------------------------------------------------------------------------------------------------


def _learners(say: Say, model: Path) -> Iterator[Line]:
    seen: dict[str, Answer] = {}
    for name, (training, optimizer) in LEARNERS.items():
        setup = {"model": str(model), "training": training, "optimizer": optimizer}
        try:
            with Partner("lab.processes.training", setup) as child:
                told = child.hear()
        except Unmeasured as error:
            yield Gap(row="engines", why=f"learner, {name}: {error}")
            continue
        turns = {"seconds": tuple(told["seconds"])}
        seconds = told["seconds"] = median(turns["seconds"])
        seen[name] = told
        say(f"learner, {name}: {seconds:.2f} s, {told['mib']:.0f} MiB")
        notes = {
            "seconds": f"gradient of {told['tokens']} tokens, and the optimizer; median of {told['steps']}",
            "mib": f"{told['where']}; {told['size'] / 1e6:.1f}M parameters are trained",
        }
        for what, key, unit in (("a step", "seconds", "s"), ("peak memory", "mib", "MiB")):
            base = (
                {"against": "full", "other": seen["full"][key]} if "full" in seen and name != "full" else {}
            )
            yield Figure(
                row="engines",
                what=f"learner, {name}, {what}",
                value=told[key],
                unit=unit,
                note=notes[key],
                turns=turns.get(key, ()),
                **base,
            )
