"""The round's table, walked."""

from __future__ import annotations

from itertools import product

import pytest

from swarm.core.agreement.rounds import (
    AHEAD,
    SITES,
    TABLE,
    Cause,
    Command,
    IllegalMove,
    Round,
    State,
    diagram,
)


def reachable(start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for (state, _), (after, _) in TABLE.items():
            if state is here and after not in found:
                found.add(after)
                todo.append(after)
    return found


@pytest.mark.parametrize("table", [TABLE, SITES], ids=["table", "sites"])
def test_a_pair_of_the_table_moves_and_commands_and_any_other_is_refused_and_changes_nothing(
    table: dict[tuple[State, Cause], tuple[State, Command]],
) -> None:
    for state, cause in product(State, Cause):
        here = Round(table)
        here.state = state
        if (state, cause) in table:
            command = here.advance(cause)
            assert (here.state, command) == table[state, cause], (state, cause)
            continue
        with pytest.raises(IllegalMove) as refusal:
            here.advance(cause)
        assert str(refusal.value) == f"'{cause.value}' cannot happen while '{state.value}'"
        assert here.state is state, (state, cause)


def test_every_state_is_reached_from_the_start() -> None:
    assert reachable(Round().state) == set(State)


def test_every_state_can_stop_at_once() -> None:
    assert all(TABLE[state, Cause.STOP] == (State.STOPPED, Command.FLUSH) for state in State)


def test_every_state_but_the_last_leads_back_to_gathering() -> None:
    assert all(State.GATHERING in reachable(state) for state in State if state is not State.STOPPED)


def test_every_command_and_every_cause_is_used() -> None:
    assert {command for _, command in (*TABLE.values(), *SITES.values())} == set(Command)
    assert {cause for _, cause in (*TABLE, *SITES)} == set(Cause)


def test_a_swarm_that_is_ahead_is_followed_from_every_state_that_works() -> None:
    follows = {state for state, cause in TABLE if cause is Cause.AHEAD_SEEN}
    assert follows == set(State) - {State.CATCHING_UP, State.STOPPED}


def test_a_command_belongs_to_one_state() -> None:
    """What is done follows from where a learner is: GATHER while gathering, and so on."""
    states: dict[Command, set[State]] = {}
    for after, command in TABLE.values():
        states.setdefault(command, set()).add(after)
    assert all(len(found) == 1 for found in states.values())


def test_the_diagram_shows_in_which_states_a_second_lane_computes_ahead() -> None:
    for state in AHEAD:
        assert f"note right of {state.value}: with overlap the next gradient" in diagram()
        assert State.STEPPING in reachable(state)


def test_the_diagram_names_every_state_and_every_cause_but_the_common_ones() -> None:
    text = diagram()
    assert all(state.value.replace(" ", "_") in text for state in State if state is not State.STOPPED)
    causes = {cause for _, cause in TABLE} - {Cause.AHEAD_SEEN, Cause.STOP}
    assert all(cause.value in text for cause in causes)
