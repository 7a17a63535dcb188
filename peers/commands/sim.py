"""`swarm sim`: runs the shipped roles in virtual time on a simulated network.

A scenario's peers run the same Sampler, LearnerPeer, Evaluator, AuditorPeer and Seed as real ones, over
in-memory ports. The policy is a table for the task `toy` and a language model for every other task; it is
really computed, and the scenario's prices set the virtual time that this takes. The contents of a real peer's
run folder are derived from the scenario's seed, so that the same seed gives the same journal.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec

from peers.build.model import base_model
from peers.errors import USAGE, explain, say
from peers.intake.group_opening import Decoder
from peers.programs import program_of
from peers.runtime.frames import Frames
from peers.runtime.host import Host
from peers.runtime.kernel import PeerInfo
from peers.runtime.membership.run_keys import RunKeys
from swarm.core.membership import Trust
from swarm.draws.replays import Replay
from swarm.events import Event
from swarm.frames.run_types import Delegation, Membership
from swarm.frames.wire import Opened
from swarm.learn.files.weights import Snapshot, from_bytes
from swarm.learn.learners.base_learner import BaseLearner
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.learning_rates import UnknownRate, with_learning_rate
from swarm.learn.learners.site_learner import SiteLearner, of_mode
from swarm.learn.models.tabular import Tabular
from swarm.learn.objectives import check_options
from swarm.learn.objectives import objective as chosen_objective
from swarm.limits import Limit, remember
from swarm.protocol import ROLES, PolicyUse
from swarm.sample.base import Engine
from swarm.sample.toy import TableReplay, ToyEngine
from swarm.settings.config import Config, Peer, Run
from swarm.sim import disks, report, scenario
from swarm.sim.world import SimPeer, World
from swarm.storage.image import MakeDraft, in_memory
from swarm.tasks import catalog as tasks
from swarm.tasks import evaluation_sets
from swarm.tasks.base import TaskSource
from swarm.tasks.toy import Toy
from swarm.types import Digest, PeerId

if TYPE_CHECKING:
    from swarm.sim.scaled_model import ScaledModel

T = TypeVar("T")

RUN = Digest("5" * 64)
"""The digest of every simulated run: a simulation has one run only."""

ALPHABET = 8
"""Default number of letters of the table policy and its task."""

FRAMES = 1024
"""Frames that are kept as they were read: all readers have one within seconds."""


TOLD = 10.0
"""Seconds of wall time between two lines about how far a simulation is."""


class _Progress:
    """A Bus sink that prints a simulation's progress on stderr."""

    def __init__(self, hours: float, summary: report.Summary) -> None:
        self._hours, self._summary = hours, summary
        self._due = time.monotonic() + TOLD

    def __call__(self, event: Event) -> None:
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + TOLD
        virtual = asyncio.get_running_loop().time() / 3600
        say(f"{virtual:.2f} of {self._hours:g} virtual hours, version {self._summary.version}")


def simulate(path: Path, seed: int | None, out: Path | None) -> int:
    """Run a scenario; the summary goes to stdout, its journal to `out` when given. Returns an exit code.
    Raises ScenarioError."""
    import torch

    torch.set_num_threads(1)
    loaded = scenario.load(path)
    if seed is not None:
        loaded = msgspec.structs.replace(loaded, seed=seed)
    _check(path, loaded.run)
    summary = report.Summary()
    sinks: list[Callable[[Event], None]] = [summary, _Progress(loaded.hours, summary)]
    with disks.temporary() if _needs_disks(loaded) else nullcontext() as folders:
        outcome = World(loaded, spawn, sinks=sinks, journal=out, disks=folders).run()
    print(summary.text())
    print(f"journal sha256 {outcome.sha256} ({outcome.events} events)")
    say(
        f"{outcome.virtual / 3600:.1f} virtual hours in {outcome.wall:.1f} s, {outcome.calls} callbacks",
    )
    return 0


def _check(path: Path, run: Run) -> None:
    """Raise ScenarioError where the objective or the task of a scenario cannot be made, or the objective does
    not read its options."""
    objective = run.objective
    try:
        check_options(chosen_objective(objective.name, objective.options), objective.options)
        tasks.source(run.task, run.seed, texts=Peer().rewards.code).close()
    except ValueError as error:
        if (known := explain(error)) is not None and known[0] != USAGE:
            raise  # this machine cannot, whatever the scenario
        raise scenario.ScenarioError(f"{path}: {error}") from error


def _needs_disks(loaded: scenario.Scenario) -> bool:
    return any(fault.fault in scenario.OF_DISK for fault in loaded.faults)


@dataclass(frozen=True)
class Letters:
    """Decodes the tokens of a tabular policy: letters."""

    vocabulary: int

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(chr(ord("a") + token) for token in row) for row in rows]


class ReadOnce(Frames):
    """Reads a frame once for all peers: a heartbeat has a thousand readers, and they would all verify and
    decode the same bytes."""

    _found: ClassVar[OrderedDict[tuple[bytes, Limit, Any], tuple[Opened, Any]]] = OrderedDict()

    def read(self, data: bytes, limit: Limit, kind: type[T]) -> tuple[Opened, T]:
        key = data, limit, kind
        if (found := self._found.get(key)) is None:
            found = super().read(data, limit, kind)
            remember(self._found, key, found, FRAMES)
        return found


class RoleProgram(Protocol):
    """A role."""

    async def run(self) -> None: ...


class PolicyParts(NamedTuple):
    """Functions that make the engine and the learner of a simulated peer."""

    engine: Callable[[], Engine]
    learner: Callable[[], tuple[BaseLearner, Decoder]]
    replay: Callable[[], Replay] | None = None
    """Makes what learners audit with."""


def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
    """The coroutine of a simulated peer, with the policy for its task. Raises ScenarioError when no learning
    rate is known."""
    try:
        run = with_learning_rate(peer.config.run, 0)[0]
    except UnknownRate as error:
        raise scenario.ScenarioError(str(error)) from error
    peer = replace(peer, config=msgspec.structs.replace(peer.config, run=run))
    return run_peer(peer, policy_parts(peer.config, peer.scaled_model))


def run_peer(
    peer: SimPeer, parts: PolicyParts, role: Callable[[Host, PolicyParts], RoleProgram] | None = None
) -> Coroutine[Any, Any, None]:
    """The coroutine of a simulated peer with the given parts; `role` makes its role, by default `role_of`."""
    run = peer.config.run
    who = PeerInfo(
        name=peer.name,
        role=peer.role,
        run=RUN,
        incarnation=1 + peer.life,
        hardware="simulated",
        membership=_membership(peer),
        observes=ROLES[peer.role].observes,
    )
    # In-memory ports know the sender, so every signature is accepted.
    trust = Trust(run.name, b"owner", run.private, lambda key, data, signature: True)
    frames = ReadOnce(RUN, peer.ports.keyring, who.membership, RunKeys(bytes(32)) if run.private else None)
    shelf = None if peer.folder is None else peer.folder / "blobs"
    host = Host(who, peer.config, peer.ports, frames, peer.bus, trust, shelf)
    if peer.scaled_model is not None and peer.scaled_model.begun:
        host.releases.blobs.hold(0, peer.scaled_model.first)
    return host.run((role or partial(role_of, folder=peer.folder))(host, parts).run)


def role_of(
    host: Host, parts: PolicyParts, source: TaskSource | None = None, folder: Path | None = None
) -> RoleProgram:
    """The role of a simulated peer. Tasks come from `source`, by default from the run's settings; state that
    must outlive the peer goes to `folder`, as in a real peer's."""
    run = host.config.run
    if source is None:
        source = tasks.source(run.task, run.seed, texts=host.config.peer.rewards.code)
    row = ROLES[host.who.role]
    program = program_of(host.who.role, run)
    match row.policy:
        case PolicyUse.SAMPLED:
            return program(host, parts.engine(), source, folder and folder / "outbox")
        case PolicyUse.USED:
            named = evaluation_sets.settings(run).items()
            sets = {
                name: tasks.source(one, run.seed, texts=host.config.peer.rewards.code) for name, one in named
            }
            return program(host, parts.engine(), source, sets)
        case PolicyUse.TRAINED:
            learner, decoder = parts.learner()
            return program(host, learner, source, decoder, folder and folder / "checkpoint", parts.replay)
        case PolicyUse.REPLAYED:
            return program(host, source, parts.learner()[1].vocabulary, parts.replay)
        case PolicyUse.KEPT:
            return program(host, parts.learner()[0].weights())
    raise ValueError(f"a {host.who.role.value} is not simulated")


def policy_parts(config: Config, scaled_model: ScaledModel | None = None) -> PolicyParts:
    """The parts of a table policy for the task `toy`, of a language model for every other task."""
    return _table(config, scaled_model) if config.run.task.name == Toy.environment else _model(config)


def _table(config: Config, scaled_model: ScaledModel | None) -> PolicyParts:
    run = config.run
    options = {name: int(size) for name, size in run.task.options.items()}
    decoder = Letters(options.get("alphabet", ALPHABET))

    def learner() -> BaseLearner:
        if scaled_model is None:
            return of_mode(run)(Tabular(**options), run)
        return (LargeSiteLearner if run.averaging.mode == "sites" else LargeLearner)(scaled_model, run)

    return PolicyParts(
        engine=lambda: ToyEngine(from_bytes, run.sampling.temperature, run.sampling.heads),
        learner=lambda: (learner(), decoder),
        replay=lambda: TableReplay(from_bytes, run.sampling.temperature),
    )


class LargeLearner(Learner):
    """Trains a table whose releases have the size of a large model's."""

    def __init__(self, scaled_model: ScaledModel, run: Run) -> None:
        super().__init__(scaled_model.table(), run)
        self._scaled_model = scaled_model

    def snapshot(self, draft: MakeDraft = in_memory) -> Snapshot:
        self._scaled_model.fill(self.policy, self.version)
        return super().snapshot(draft)


class LargeSiteLearner(LargeLearner, SiteLearner):
    """As LargeLearner, in a run in `sites` mode."""


def _model(config: Config) -> PolicyParts:
    from peers.build.model import (
        factory,  # transformers takes seconds to import, and most scenarios have a table
    )

    folder = base_model.folder(config.run)
    here = msgspec.structs.replace(config.peer.engine, name="hf")
    mine = msgspec.structs.replace(config, peer=msgspec.structs.replace(config.peer, engine=here))
    return PolicyParts(
        engine=lambda: factory.hf(folder, mine),
        learner=lambda: factory.learner(folder, config),
        replay=lambda: factory.replay(folder, config),
    )


def _membership(peer: SimPeer) -> Membership:
    delegation = Delegation(role=peer.role, expires=1 << 40, key=b"", signature=b"")
    return Membership(peer=PeerId(peer.ports.me), delegation=delegation, signature=b"")
