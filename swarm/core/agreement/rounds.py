"""A learner's round as a table: (state, event) -> (next state, command).

A learner runs one command at a time; its outcome is the next event. Every pair is either in the table or
refused with both names, and a refused pair changes nothing. `diagram()` draws it, and where a second lane
computes ahead, for docs/architecture.md. A version is packed and released beside the round: only a gradient
that is ready earlier waits for that.

    GATHERING -> LEARNING -> (RELEASING) -> MATCHING -> STEPPING -> GATHERING, and CATCHING_UP from anywhere

A run in `sites` mode has a table of its own: several gradients are stepped along before a version is made.

    GATHERING -> LEARNING -> STEPPING -> GATHERING -> ... -> MATCHING -> STEPPING -> GATHERING
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from swarm.protocol import Phase


class State(StrEnum):
    """The states of a round, by the names of Phase."""

    GATHERING = Phase.GATHERING.value
    LEARNING = Phase.LEARNING.value
    MATCHING = Phase.MATCHING.value
    STEPPING = Phase.STEPPING.value
    RELEASING = Phase.RELEASING.value
    CATCHING_UP = Phase.CATCHING_UP.value
    STOPPED = Phase.STOPPED.value


class Cause(StrEnum):
    """The events of a round, as its learner sees them."""

    BATCH_READY = "batch ready"
    GRADIENT_READY = "gradient ready"
    GRADIENT_EARLY = "gradient early"
    """A gradient of a version of mine that is not released yet."""
    OUT_OF_MEMORY = "out of memory"
    """This machine has too little memory for the batch: it is dropped."""
    BATCH_REFUSED = "batch refused"
    """No group of the batch is believed, or its gradient is not finite: it is dropped."""
    AVERAGED = "averaged"
    ALONE = "alone"
    """No other learner came, and it is my turn to step alone."""
    NO_PEER_CAME = "no peer came"
    """No other learner came, and the gradient is kept: by the config, or because it is another learner's turn
    to step alone."""
    ROUND_BROKE = "round broke"
    STEPPED = "stepped"
    STEPPED_LOCALLY = "stepped locally"
    """sites: along my own gradient; the version stays."""
    CONTRIBUTION_READY = "contribution ready"
    """sites: I stepped as often as a version takes, or others wait for what I have."""
    PUBLISHED = "published"
    """My version is released, by me or by another."""
    AHEAD_SEEN = "ahead seen"
    """The swarm is at a version that I did not help to make."""
    LOADED = "loaded"
    SYNCED = "synced"
    """I took over the state of a learner that waits for a round, and have a gradient for that or none."""
    FETCH_FAILED = "fetch failed"
    STOP = "stop"


class Command(StrEnum):
    """The learner's next action."""

    GATHER = "gather"
    LEARN = "learn"
    AVERAGE = "average"
    JOIN = "join"
    """Average with the others that waited for me."""
    STEP = "step"
    STEP_LOCALLY = "step locally"
    AWAIT = "await"
    FETCH = "fetch"
    FLUSH = "flush"


_S, _C, _X = State, Cause, Command

TABLE: dict[tuple[State, Cause], tuple[State, Command]] = {
    (_S.GATHERING, _C.BATCH_READY): (_S.LEARNING, _X.LEARN),
    (_S.LEARNING, _C.GRADIENT_READY): (_S.MATCHING, _X.AVERAGE),
    (_S.LEARNING, _C.GRADIENT_EARLY): (_S.RELEASING, _X.AWAIT),
    (_S.LEARNING, _C.OUT_OF_MEMORY): (_S.GATHERING, _X.GATHER),
    (_S.LEARNING, _C.BATCH_REFUSED): (_S.GATHERING, _X.GATHER),
    (_S.MATCHING, _C.AVERAGED): (_S.STEPPING, _X.STEP),
    (_S.MATCHING, _C.ALONE): (_S.STEPPING, _X.STEP),
    (_S.MATCHING, _C.NO_PEER_CAME): (_S.GATHERING, _X.GATHER),
    (_S.MATCHING, _C.ROUND_BROKE): (_S.MATCHING, _X.AVERAGE),
    (_S.MATCHING, _C.BATCH_REFUSED): (_S.GATHERING, _X.GATHER),
    (_S.STEPPING, _C.STEPPED): (_S.GATHERING, _X.GATHER),
    (_S.STEPPING, _C.ROUND_BROKE): (_S.GATHERING, _X.GATHER),
    (_S.STEPPING, _C.OUT_OF_MEMORY): (_S.GATHERING, _X.GATHER),
    (_S.RELEASING, _C.PUBLISHED): (_S.MATCHING, _X.AVERAGE),
    (_S.CATCHING_UP, _C.LOADED): (_S.GATHERING, _X.GATHER),
    (_S.CATCHING_UP, _C.SYNCED): (_S.MATCHING, _X.JOIN),
    (_S.CATCHING_UP, _C.FETCH_FAILED): (_S.GATHERING, _X.GATHER),
    **{
        (state, _C.AHEAD_SEEN): (_S.CATCHING_UP, _X.FETCH)
        for state in (_S.GATHERING, _S.LEARNING, _S.MATCHING, _S.STEPPING, _S.RELEASING)
    },
    **{(state, _C.STOP): (_S.STOPPED, _X.FLUSH) for state in State},
}

AHEAD = (State.RELEASING, State.MATCHING)
"""With run.averaging.overlap a second lane begins the next gradient in these states
(peers.learner.next_gradient), and in CATCHING_UP while a state comes
(peers.learner.agreement.weights_meanwhile); STEPPING, and loading that state, wait until it is ready."""

SITES: dict[tuple[State, Cause], tuple[State, Command]] = {
    pair: after
    for pair, after in TABLE.items()
    if (pair[0] not in (_S.MATCHING, _S.RELEASING) or pair[1] in (_C.AHEAD_SEEN, _C.STOP))
    and pair[1] is not _C.SYNCED
} | {
    (_S.LEARNING, _C.GRADIENT_READY): (_S.STEPPING, _X.STEP_LOCALLY),
    (_S.LEARNING, _C.GRADIENT_EARLY): (_S.STEPPING, _X.STEP_LOCALLY),
    (_S.STEPPING, _C.STEPPED_LOCALLY): (_S.GATHERING, _X.GATHER),
    (_S.STEPPING, _C.CONTRIBUTION_READY): (_S.MATCHING, _X.AVERAGE),
    (_S.GATHERING, _C.CONTRIBUTION_READY): (_S.MATCHING, _X.AVERAGE),
    (_S.MATCHING, _C.AVERAGED): (_S.STEPPING, _X.STEP),
    (_S.MATCHING, _C.ROUND_BROKE): (_S.GATHERING, _X.GATHER),
}
"""Of a run in `sites` mode."""


class IllegalMove(Exception):
    """A bug of ours: this cannot happen in this state."""


class Round:
    """The state of one learner's round. `advance` changes it and returns the next command."""

    def __init__(self, table: Mapping[tuple[State, Cause], tuple[State, Command]] = TABLE) -> None:
        self._table, self.state = table, State.GATHERING

    def advance(self, cause: Cause) -> Command:
        """Raises IllegalMove, changing nothing, when the table does not have the pair."""
        try:
            self.state, command = self._table[self.state, cause]
        except KeyError:
            raise IllegalMove(f"{cause.value!r} cannot happen while {self.state.value!r}") from None
        return command


def diagram() -> str:
    """The table as a Mermaid state diagram; arrows that leave every state alike are drawn once."""
    lines = ["stateDiagram-v2", "    [*] --> gathering"]
    for (state, cause), (after, _) in TABLE.items():
        if cause not in (Cause.AHEAD_SEEN, Cause.STOP):
            lines.append(f"    {_id(state)} --> {_id(after)}: {cause.value}")
    lines.append(f"    note right of {_id(State.CATCHING_UP)}: from every state when the swarm is ahead")
    lane = "with overlap the next gradient is computed beside, until the step"
    lines += [f"    note right of {_id(state)}: {lane}" for state in AHEAD]
    return "\n".join(lines)


def _id(state: State) -> str:
    return state.value.replace(" ", "_")
