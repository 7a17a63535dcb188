"""The tables of swarm.protocol: whole, and what programs act by."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import StrEnum
from pkgutil import resolve_name

import msgspec
import pytest
from nouns import beat

from swarm import protocol
from swarm.core.agreement.rounds import State
from swarm.frames import wire
from swarm.protocol import PHASES, ROLES, ROUND, SERVICES, TOPICS, Phase, PolicyUse, Role, Topic
from swarm.types import Beat

TABLES: list[tuple[type[StrEnum], Mapping[str, object]]] = [
    (protocol.Service, protocol.SERVICES),
    (protocol.Topic, protocol.TOPICS),
    (protocol.Key, protocol.KEYS),
    (protocol.Role, protocol.ROLES),
    (protocol.Phase, protocol.PHASES),
    (protocol.Kind, protocol.KINDS),
    (protocol.Part, protocol.PARTS),
]


@pytest.mark.parametrize(("names", "table"), TABLES)
def test_every_name_has_a_row(names: type[StrEnum], table: Mapping[str, object]) -> None:
    assert list(table) == list(names) or (names is Role and set(table) == set(names))


def test_numbers_of_roles_in_invites_stay() -> None:
    assert list(Role)[:5] == ["seed", "sampler", "learner", "evaluator", "observer"]


@pytest.mark.parametrize("role", Role)
def test_the_program_of_a_role_is_there_and_takes_what_its_row_says(role: Role) -> None:
    row = ROLES[role]
    program = resolve_name(row.program)
    taken = {
        PolicyUse.TRAINED: 5,
        PolicyUse.SAMPLED: 4,
        PolicyUse.USED: 4,
        PolicyUse.REPLAYED: 4,
        PolicyUse.KEPT: 2,
        PolicyUse.UNUSED: 2,
    }[row.policy]
    inspect.signature(program).bind(*range(taken))
    assert row.policy is PolicyUse.UNUSED or inspect.iscoroutinefunction(program.run)


def test_everybody_hears_the_heartbeats_of_whom_others_depend_on() -> None:
    assert all(TOPICS[row.heartbeat].all for row in ROLES.values() if row.posts)
    assert TOPICS[Topic.RELEASE].all


def test_an_answer_is_counted_as_what_it_is() -> None:
    assert {row.asked for row in SERVICES.values()} == {"rollouts", "other"}
    assert {row.answered for row in SERVICES.values()} == {"weights", "gradients", "other"}


def test_states_of_a_round_are_phases_by_the_same_names() -> None:
    assert [(state.name, state.value) for state in State] == [(phase.name, phase.value) for phase in ROUND]


def test_no_two_phases_share_their_text() -> None:
    assert len({*PHASES.values()}) == len(PHASES)


def told(**changes: object) -> bytes:
    plain = msgspec.to_builtins(beat(), builtin_types=(bytes,))
    return wire.encode({name: value for name, value in (plain | changes).items() if value is not ...})


@pytest.mark.parametrize("said", [..., "", "dreaming", "Learning"])
def test_a_heartbeat_without_a_phase_that_we_know_is_a_heartbeat(said: object) -> None:
    heard = wire.decode(told(phase=said), Beat)
    assert heard == msgspec.structs.replace(beat(), phase=Phase.UNKNOWN)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_travels(phase: Phase) -> None:
    assert wire.decode(told(phase=phase.value), Beat).phase is phase
