"""What fits on this machine: which roles, in which precision, how fast; and the role that `swarm join --as
auto` takes.

    config.json -> ModelShape --+-- estimates -- corrections --> a FitRow for each role and kind
    machine, its speed ---------+                                  -- probe --> measured, corrections

Predictions need no weights and no seconds; measurements are real ones in a process of their own, of what fits
alone. A wrong guess changes the next one: factors between measured and predicted are kept by device and kind.
Invariant: nothing that is measured can end the command. Not handled: vLLM, which takes the share of a GPU
that it is given, and is faster than what is measured here; averaging and transfers, which depend on other
machines.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from peers.errors import CannotHere
from peers.fit import estimates
from peers.fit.calibration import Corrections
from peers.fit.estimates import SAMPLED, TRAINED, ExpectedPace, ModelShape, Needs, RunShape, Speed
from peers.fit.hardware import Machine
from peers.fit.model_shape import examine
from swarm.config import Config, EngineSettings
from swarm.net.blobs import LARGEST
from swarm.protocol import Role

GB = 1 << 30
ROOM = 0.9
"""Share of the memory that is planned with: the rest is for other programs and for the estimates' errors."""

LEARNER, SAMPLER, EVALUATOR = Role.LEARNER.value, Role.SAMPLER.value, Role.EVALUATOR.value


class FitRow(NamedTuple):
    """One role in one precision or kind of training, on this machine."""

    role: str
    kind: str
    needs: Needs
    gpus: int
    """GPUs that share one model; 0: none."""
    fits: str
    """`yes`, `tight` (with the smallest batches, recomputing) or `no`."""
    why: str
    """When it does not fit: what is missing."""
    predicted: ExpectedPace | None
    measured: ExpectedPace | None = None
    note: str = ""


class Case(NamedTuple):
    """A model, what a run asks, and a machine."""

    anatomy: ModelShape
    config: Config
    ask: RunShape
    machine: Machine
    corrections: Corrections

    @staticmethod
    def of(model: Path, config: Config, machine: Machine, corrections: Corrections | None = None) -> Case:
        """Raises WrongUsage when `model` holds none."""
        anatomy = examine(model, config.run.lora.targets)
        return Case(anatomy, config, RunShape.of(config), machine, corrections or Corrections(machine.device))

    def about(self, role: str, kind: str) -> str:
        """The key of corrections: predictions for models of one order of magnitude err in the same way."""
        return f"{role} {kind} 1e{round(math.log10(self.anatomy.parameters))}"

    def on(self, role: str) -> Machine:
        """The part of the machine that this role may use, by its `device` setting."""
        settings = self.config.peer.learner if role == LEARNER else self.config.peer.engine
        return self.machine._replace(gpus=()) if settings.device.startswith("cpu") else self.machine


def rows(case: Case, speed: Callable[[str], Speed] | None = None) -> list[FitRow]:
    """Every role and kind; `speed` gives the device's for a dtype, without it no times are predicted."""
    found = [row(case, SAMPLER, kind, speed) for kind in kinds(case.config)]
    found += [row(case, LEARNER, kind, speed) for kind in TRAINED]
    return found + [row(case, EVALUATOR, kind, speed) for kind in kinds(case.config)]


def kinds(config: Config) -> tuple[str, ...]:
    """Precisions that a sampler may have; a QLoRA policy is its 4-bit base, wherever it is sampled."""
    return ("nf4",) if config.run.model.training == "qlora" else SAMPLED


def row(case: Case, role: str, kind: str, speed: Callable[[str], Speed] | None = None) -> FitRow:
    gpus, needs = _needs(case, role, kind)
    machine = case.on(role)
    why = _beyond(case, role, kind) or missing(machine, needs.least)
    fits = "no" if why else "tight" if missing(machine, needs.easy, ROOM) else "yes"
    found = FitRow(role, kind, needs, gpus, fits, why, None)
    if speed is None:
        return found
    factor = case.corrections.of(case.about(role, kind)).time
    plain = pace(case, case.ask, found, speed)
    return found._replace(predicted=ExpectedPace(plain.tokens / factor, plain.step * factor))


def pace(case: Case, ask: RunShape, row: FitRow, speed: Callable[[str], Speed]) -> ExpectedPace:
    """Tokens a second and seconds a step, uncorrected."""
    gpu = bool(case.on(row.role).gpus)
    device = speed("bfloat16" if gpu or row.kind == "bfloat16" else "float32")
    if row.role == LEARNER:
        return estimates.learning(case.anatomy, ask, row.kind, device, row.fits != "yes")
    return estimates.sampling(case.anatomy, _rows(ask, row.role), row.kind, device, gpu)


def needs(case: Case, ask: RunShape, role: str, kind: str, shards: int = 1) -> Needs:
    """Bytes, uncorrected."""
    gpu = bool(case.on(role).gpus)
    if role == LEARNER:
        return estimates.learner(case.anatomy, ask, kind, gpu, shards)
    return estimates.sampler(case.anatomy, _rows(ask, role), kind, gpu)


def missing(machine: Machine, need: estimates.MemoryNeed, share: float = 1.0) -> str:
    """Which memory is too small for `need`; empty when none is, or its size is unknown."""
    if not machine.gpus:
        total = need.computing + need.keeping
        return (
            ""
            if total <= share * machine.free or not machine.ram
            else f"{total / GB:.1f} of {machine.free / GB:.1f} GB RAM"
        )
    free = min(gpu.free for gpu in machine.gpus)
    if need.computing > share * free:
        return f"{need.computing / GB:.1f} of {free / GB:.1f} GB of the GPU"
    if need.keeping <= share * machine.free or not machine.ram:
        return ""
    return f"{need.keeping / GB:.1f} of {machine.free / GB:.1f} GB RAM"


def _rows(ask: RunShape, role: str) -> RunShape:
    """The sizes of a role's work: an evaluator has one answer to a task."""
    return ask if role == SAMPLER else ask._replace(group=1)


def _needs(case: Case, role: str, kind: str) -> tuple[int, Needs]:
    """(GPUs, corrected needs); a learner takes more GPUs when one is not enough for it and
    `peer.learner.gpus` lets it."""
    count, factor = len(case.on(role).gpus), case.corrections.of(case.about(role, kind)).memory
    wanted = case.config.peer.learner.gpus if role == LEARNER else 1
    gpus = min(count, max(1, wanted))
    found = _corrected(needs(case, case.ask, role, kind, max(1, gpus)), factor)
    if wanted == 0 and count > 1 and missing(case.on(role), found.easy, ROOM):
        return count, _corrected(needs(case, case.ask, role, kind, count), factor)
    return gpus, found


def _corrected(plain: Needs, factor: float) -> Needs:
    return Needs(*(need._replace(model=need.model * factor) for need in plain))


def _beyond(case: Case, role: str, kind: str) -> str:
    """Why no memory would be enough; empty when that is not so."""
    training = kind.partition("+")[0] if role == LEARNER else case.ask.training
    size = estimates.released(case.anatomy, case.ask._replace(training=training))
    if size > LARGEST:
        return f"a release of {size / GB:.1f} GB, {LARGEST / GB:.0f} travel at most"
    if (kind in estimates.QUANTIZED or "qlora" in kind or "8bit" in kind) and importlib.util.find_spec(
        "bitsandbytes"
    ) is None:
        return "bitsandbytes is not installed: gepo-swarm[quant]"
    return ""


# --- `swarm join --as auto` ---------------------------------------------------------------------------------


class RoleChoice(NamedTuple):
    role: Role
    engine: EngineSettings
    said: str
    """One line: why."""


def choose(case: Case, invited: Role | None, admitted: Collection[Role]) -> RoleChoice:
    """The invite's role; without one a learner's when the invite admits it, else a sampler's: the first that
    fits.

    A learner's invite makes a sampler of a machine that cannot learn, where the run lets strangers sample.
    Samplers and evaluators get the first precision that is allowed and fits. Nothing is asked of a machine
    whose invite admits it to nothing: whoever joins is told. Raises CannotHere with numbers.
    """
    wanted = [invited] if invited is not None else [Role.LEARNER]
    if invited in (None, Role.LEARNER):
        wanted.append(Role.SAMPLER)
    tried: list[str] = []
    for role in (role for role in wanted if role in admitted):
        for kind, engine in _options(case.config, role, bool(case.on(role.value).gpus)):
            one = row(case, role.value, kind)
            if one.fits != "no" or (engine.name == "vllm-server" and role is not Role.LEARNER):
                return RoleChoice(role, engine, _reason(case, one, tried))
            tried.append(f"{role.value} ({kind}) needs {one.why}")
    if not tried:
        return RoleChoice(invited or Role.SAMPLER, case.config.peer.engine, "")
    raise CannotHere(
        f"this machine ({case.machine}) is too small for this run: {'; '.join(tried)}; free some memory, take"
        f" a larger machine, or try anyway with --as {wanted[-1].value}"
    )


def _options(config: Config, role: Role, gpu: bool) -> list[tuple[str, EngineSettings]]:
    """(kind, engine settings) that the run and this peer's settings allow, the best first."""
    run, engine = config.run, config.peer.engine
    if role is Role.LEARNER:
        eight = "+adamw8bit" if run.optimizer.name == "adamw8bit" and run.model.training == "full" else ""
        return [(run.model.training + eight, engine)]
    if run.model.training == "qlora":
        return [("nf4", engine)]
    if engine.quantize != "none":
        return [(engine.quantize, engine)]
    plain = ("bfloat16" if gpu else "float32") if engine.dtype == "auto" else engine.dtype
    found = [("float32" if plain == "float32" else "bfloat16", engine)]
    if engine.dtype == "auto" and not gpu:
        found.append(("bfloat16", msgspec.structs.replace(engine, dtype="bfloat16")))
    if run.sampling.quantized:
        found += [(kind, msgspec.structs.replace(engine, quantize=kind)) for kind in ("int8", "nf4")]
    return found


def _reason(case: Case, one: FitRow, tried: list[str]) -> str:
    need = one.needs.easy if one.fits == "yes" else one.needs.least
    machine = case.on(one.role)
    if machine.gpus:
        numbers = (
            f"{need.computing / GB:.1f} of {min(gpu.free for gpu in machine.gpus) / GB:.1f} GB of the GPU"
        )
    else:
        numbers = f"{(need.computing + need.keeping) / GB:.1f} of {machine.free / GB:.1f} GB RAM"
    tight = ", tight" if one.fits == "tight" else ""
    because = f"; {'; '.join(tried)}" if tried else ""
    return f"{one.role} ({one.kind}) fits this machine: it needs about {numbers}{tight}{because}"
