"""Watch a run through the library: a line for each version, and what is wrong while it is wrong.

    python examples/watch_a_run.py demo-run                   follows it until its seed leaves
    python examples/watch_a_run.py some/journal.jsonl

    journal -> events -> fold -> SwarmState -> head, problems -> lines

A seed's journal has what every peer gossips: one event a line. The same fold is behind the dashboard, the
terminal and the metrics, so that whatever they show is a field of `SwarmState` here.
"""

import sys
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from dashboard.serve.state_view import head_of
from swarm.events import AnyEvent, Left, Released
from swarm.journal import Tail
from swarm.protocol import Role


def follow(journal: Path, wait: Callable[[], None]) -> Iterator[AnyEvent]:
    """The events of a journal, including future ones: `wait` is called when there are no more yet. What is no
    event is told and left out."""
    tail = Tail(journal, damaged=print)
    while True:
        yield from tail.news()
        wait()


def watch(events: Iterator[AnyEvent], say: Callable[[str], None] = print) -> SwarmState:
    """Say what happens, until the seed leaves or the events end."""
    state = SwarmState()
    wrong: Set[str] = set()
    for event in events:
        fold(state, event)
        problems = {problem.key: problem.text for problem in diagnose(state, state.last)}
        for key in problems.keys() - wrong:
            say(f"  ! {problems[key]}")
        wrong = problems.keys()
        match event:
            case Released():
                head = head_of(state, event.at)
                reward = "" if head.reward is None else f", reward {head.reward:.2f}"
                say(f"version {head.version}: {head.trained} groups trained{reward}")
            case Left() if event.peer in state.peers and state.peers[event.peer].role is Role.SEED:
                break
    return state


if __name__ == "__main__":
    place = Path(sys.argv[1])
    watch(follow(place / "peers/seed/journal.jsonl" if place.is_dir() else place, lambda: time.sleep(0.5)))
