"""Which roles fit this machine, in which precision and how fast; and the role that `swarm join --as auto`
takes.

    config.json -> ModelShape --+-- estimates -- corrections --> a FitRow for each role and kind
    machine, its speed ---------+                                  -- probe --> measured, corrections

Predictions need neither weights nor noticeable time. Measurements run in a process of their own, and only for
rows that fit; the factors between measured and predicted figures are kept by device and kind, and correct
later predictions. Invariant: a measurement cannot end the command. Not handled: vLLM, which takes the share
of a GPU that its settings name and is faster than these measurements; averaging (peers.fit.rounds) and
transfers, which depend on other machines.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from peers.errors import CannotHere
from peers.fit import estimates, hardware
from peers.fit.calibration import Corrections
from peers.fit.estimates import SAMPLED, TRAINED, ExpectedPace, ModelShape, Needs, RunShape, Speed
from peers.fit.hardware import Machine
from peers.fit.model_shape import examine
from swarm import extras
from swarm.net.blobs.store import LARGEST
from swarm.protocol import Role
from swarm.settings.config import Config, EngineSettings

GB = 1 << 30
ROOM = 0.9
"""Share of the free memory that a row may need; the rest is for other programs and for errors of the
estimates."""

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
    """The obstacle, when the row does not fit."""
    predicted: ExpectedPace | None
    measured: ExpectedPace | None = None
    note: str = ""
    padded: str | None = None
    """Of a measured learner: why each completion has a padded row with a copy of its prompt; empty where a
    group is one row (`Policy.padded`)."""


class Case(NamedTuple):
    """A model, a run's settings and a machine: everything that an estimate depends on."""

    model_shape: ModelShape
    config: Config
    run_shape: RunShape
    machine: Machine
    corrections: Corrections

    @staticmethod
    def of(model: Path, config: Config, machine: Machine, corrections: Corrections | None = None) -> Case:
        """Raises WrongUsage when the folder `model` holds no model."""
        model_shape = examine(model, config.run.lora.targets)
        return Case(
            model_shape, config, RunShape.of(config), machine, corrections or Corrections(machine.device)
        )

    def about(self, role: str, kind: str) -> str:
        """The key of corrections: models of one order of magnitude share one factor."""
        return f"{role} {kind} 1e{round(math.log10(self.model_shape.parameters))}"

    def on(self, role: str) -> Machine:
        """The part of the machine that this role may use, by its `device` setting."""
        replays = role in (LEARNER, Role.AUDITOR)
        settings = self.config.peer.learner if replays else self.config.peer.engine
        return self.machine._replace(gpus=()) if settings.device.startswith("cpu") else self.machine


def rows(case: Case, speed: Callable[[str], Speed] | None = None) -> list[FitRow]:
    """A row for every role and kind. `speed`: dtype -> the device's Speed; without it no times are
    predicted."""
    found = [_sampled(case, row(case, SAMPLER, kind, speed)) for kind in kinds(case.config)]
    found += [row(case, LEARNER, kind, speed) for kind in TRAINED]
    return found + [_sampled(case, row(case, EVALUATOR, kind, speed)) for kind in kinds(case.config)]


def _sampled(case: Case, row: FitRow) -> FitRow:
    """The same row; it does not fit where the engine would be `hf` and refuses the model. A joiner gets that
    message from the engine itself."""
    name, model = case.config.peer.engine.name, case.model_shape
    if not model.refusal or not (
        name == "hf" or (name == "auto" and importlib.util.find_spec("vllm") is None)
    ):
        return row
    return row._replace(
        fits="no", why="another engine than hf, if one has this architecture: vllm or vllm-server"
    )


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
    plain = pace(case, case.run_shape, found, speed)
    return found._replace(predicted=ExpectedPace(plain.tokens / factor, plain.step * factor))


def pace(case: Case, run_shape: RunShape, row: FitRow, speed: Callable[[str], Speed]) -> ExpectedPace:
    """Tokens a second and seconds a step, uncorrected."""
    gpu = bool(case.on(row.role).gpus)
    device = speed("bfloat16" if gpu or row.kind == "bfloat16" else "float32")
    if row.role == LEARNER:
        return estimates.learning(case.model_shape, run_shape, row.kind, device, row.fits != "yes")
    return estimates.sampling(case.model_shape, _rows(run_shape, row.role), row.kind, device, gpu)


def needs(case: Case, run_shape: RunShape, role: str, kind: str, shards: int = 1) -> Needs:
    """Predicted bytes, uncorrected."""
    gpu = bool(case.on(role).gpus)
    if role == LEARNER:
        return estimates.learner(case.model_shape, run_shape, kind, gpu, shards)
    return estimates.sampler(case.model_shape, _rows(run_shape, role), kind, gpu)


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


def _rows(run_shape: RunShape, role: str) -> RunShape:
    """The sizes of a role's work: an evaluator samples one answer for a task, and HfEngine on a CPU as many
    at a time as a sampler's call has tasks."""
    return run_shape if role == SAMPLER else run_shape._replace(group=1)


def _needs(case: Case, role: str, kind: str) -> tuple[int, Needs]:
    """(GPUs, corrected needs); a learner takes more GPUs when one is not enough for it and
    `peer.learner.gpus` lets it."""
    count, factor = len(case.on(role).gpus), case.corrections.of(case.about(role, kind)).memory
    wanted = case.config.peer.learner.gpus if role == LEARNER else 1
    gpus = min(count, max(1, wanted))
    found = _corrected(needs(case, case.run_shape, role, kind, max(1, gpus)), factor)
    if wanted == 0 and count > 1 and missing(case.on(role), found.easy, ROOM):
        return count, _corrected(needs(case, case.run_shape, role, kind, count), factor)
    return gpus, found


def _corrected(plain: Needs, factor: float) -> Needs:
    return Needs(*(need._replace(model=need.model * factor) for need in plain))


def _beyond(case: Case, role: str, kind: str) -> str:
    """Why the row fits no machine, whatever its memory; empty otherwise."""
    training = kind.partition("+")[0] if role == LEARNER else case.run_shape.training
    size = estimates.released(case.model_shape, case.run_shape._replace(training=training))
    if size > LARGEST:
        return f"a release of {size / GB:.1f} GB, {LARGEST / GB:.0f} travel at most"
    if (kind in estimates.QUANTIZED or "qlora" in kind or "8bit" in kind) and importlib.util.find_spec(
        "bitsandbytes"
    ) is None:
        return f"bitsandbytes is not installed: {extras.install('quant')}"
    return ""


# --- `swarm join --as auto` ---------------------------------------------------------------------------------


class RoleChoice(NamedTuple):
    role: Role
    engine: EngineSettings
    reason: str
    """One line: why."""


def choose_here(model: Path, config: Config, invited: Role | None, admitted: Collection[Role]) -> RoleChoice:
    """`choose` for this machine, within the peer's limits. Raises CannotHere and ModelError."""
    machine = hardware.lent(hardware.machine(), config.peer.limits)
    return choose(Case.of(model, config, machine), invited, admitted)


def choose(case: Case, invited: Role | None, admitted: Collection[Role]) -> RoleChoice:
    """The first role that fits: the invite's; without one, learner when the invite admits it, else sampler.

    With a learner's invite, a machine that cannot learn becomes a sampler where the run lets strangers
    sample. Samplers and evaluators get the first precision that is allowed and fits. When the invite admits
    to no role, nothing is checked here, and joining is refused later. Raises CannotHere with numbers.
    """
    wanted = [invited] if invited is not None else [Role.LEARNER]
    if invited in (None, Role.LEARNER):
        wanted.append(Role.SAMPLER)
    tried: list[str] = []
    for role in (role for role in wanted if role in admitted):
        for kind, engine in _options(case.config, role, bool(case.on(role.value).gpus)):
            one = row(case, role.value, kind)
            elsewhere = engine.name == "vllm-server" and role in (Role.SAMPLER, Role.EVALUATOR)
            if one.fits != "no" or elsewhere:
                return RoleChoice(role, engine, _reason(case, one, tried))
            tried.append(f"{role.value} ({kind}) needs {one.why}")
    if not tried:
        return RoleChoice(invited or Role.SAMPLER, case.config.peer.engine, "")
    raise CannotHere(
        f"this machine ({case.machine}) is too small for this run: {'; '.join(tried)}; free some memory, take"
        f" a larger machine, or {_otherwise(case, wanted[-1])}"
    )


def _otherwise(case: Case, role: Role) -> str:
    limits = case.config.peer.limits
    if limits.memory or limits.gpu_memory < 1:
        return "raise peer.limits.memory or peer.limits.gpu_memory, which this machine has more of"
    return f"try anyway with --as {role.value}"


def _options(config: Config, role: Role, gpu: bool) -> list[tuple[str, EngineSettings]]:
    """(kind, engine settings) that the run and this peer's settings allow, the best first."""
    run, engine = config.run, config.peer.engine
    if role is Role.LEARNER:
        eight = "+adamw8bit" if run.optimizer.name == "adamw8bit" and run.model.training == "full" else ""
        return [(run.model.training + eight, engine)]
    if run.model.training == "qlora":
        return [("nf4", engine)]
    if role is Role.AUDITOR:  # replays as a learner computes
        dtype = config.peer.learner.dtype
        return [(("bfloat16" if gpu else "float32") if dtype == "auto" else dtype, engine)]
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
