"""A running peer's messages: its own events as sentences, on the terminal and in its log.

    bus --Narrator--> at most one sentence a minute of each kind --say--> terminal, <peer folder>/log
    all other output of `peers.errors.say` -----------------------------'
    messages of hivemind and p2pd --> log; with -v the terminal, too

The log has the details that the dashboard's hints refer to: failed downloads, refused groups and the reasons,
faults and recoveries. It has at most two files of LARGEST bytes each, `log` and the older `log.1`. Not
handled here: the status line (peers.runtime.watching.status_line), events of other peers (the dashboard,
`swarm status`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dashboard.fold.sentences import sentence_of
from peers.errors import notify, notifying, say
from swarm import events
from swarm.limits import remember
from swarm.membership.identity import human_name
from swarm.types import PeerId

LOG = "log"
"""File in a peer's folder."""

LARGEST = 1 << 20
"""Bytes of one file of the log: ten thousand sentences, two days of a status line every half minute."""

MINUTE = 60.0
"""Seconds between two sentences of one kind."""

KINDS = 256
"""Kinds of sentences that are remembered: a peer prints a few dozen."""

TOLD = (
    events.Noted,
    events.Faulted,
    events.Recovered,
    events.Rejected,
    events.Lost,
    events.RoundBroke,
    events.Unreached,
    events.Snapped,
    events.CaughtUp,
    events.Forked,
    events.Returned,
    events.Audited,
    events.LeftOut,
)
"""Events of this peer that its terminal shows; the status line counts others."""


class Printed(NamedTuple):
    at: float
    unsaid: int
    """Sentences of this kind since then."""


class Narrator:
    """A sink: prints the events of this peer. Times are those of the events, in unix seconds."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._printed: OrderedDict[str, Printed] = OrderedDict()

    def __call__(self, event: events.Event) -> None:
        if event.peer != self._me or not isinstance(event, TOLD):
            return
        if (news := sentence_of(event, self._name)) is None:
            return
        # Numbers differ from one refusal to the next, and its reason is the same.
        kind = re.sub(r"\d+", "#", news.key)
        last = self._printed.pop(kind, None)
        if last is not None and event.at - last.at < MINUTE:
            self._printed[kind] = Printed(last.at, last.unsaid + 1)
            return
        remember(self._printed, kind, Printed(event.at, 0), KINDS)
        more = f" ({last.unsaid} more like it in between)" if last is not None and last.unsaid else ""
        say(news.text + more)

    def _name(self, peer: PeerId) -> str:
        return "this peer" if peer == self._me else human_name(peer)


@contextmanager
def narrated(folder: Path, bus: events.Bus, me: PeerId) -> Iterator[None]:
    """Print this peer's events, and keep a log of all messages, while the body runs."""
    bus.add(Narrator(me))
    with notifying(PeerLog(folder / LOG).write):
        yield


class Beneath(logging.Handler):
    """Messages of lower layers, as a line of the log: p2pd calls errors what users can do nothing about."""

    def emit(self, record: logging.LogRecord) -> None:
        notify(f"{getattr(record, 'caller', record.name)}: {record.getMessage()}")


@contextmanager
def logging_only() -> Iterator[None]:
    """While the body runs, messages of hivemind and its p2pd go to the log alone; with `--verbose` to the
    terminal, too. hivemind has to be imported: it installs its own handler then."""
    logger = logging.getLogger("hivemind")
    before = logger.handlers
    logger.handlers = [Beneath(), *(before if logger.level <= logging.INFO else ())]
    try:
        yield
    finally:
        logger.handlers = before


class PeerLog:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, sentence: str) -> None:
        """Append a sentence with the time. A refusal of the disk is reported by the journal as a fault."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n".encode(errors="replace")
        with contextlib.suppress(OSError):
            with open(self._path, "ab") as file:
                file.write(line)
                full = file.tell() >= LARGEST
            if full:
                self._path.replace(self._path.with_name(f"{LOG}.1"))
