"""Writes docs/protocol.md and the dashboard's names from the tables of swarm.protocol.

python docs/protocol.py            # or: make docs-protocol
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from swarm import PROTOCOL
from swarm.core.stream_slots import CALLS_OF_ONE, STREAMS_OF_ONE
from swarm.limits import FRAME_LIMIT, MAIL_LIMIT, RECORD_SECONDS
from swarm.protocol import (
    KEYS,
    KINDS,
    PARTS,
    PHASES,
    ROLES,
    ROUND,
    SCHEMA,
    SERVICES,
    STAGES,
    TOPICS,
    Phase,
    Role,
)

ROOT = Path(__file__).parents[1]
PAGE, WORDS = ROOT / "docs/protocol.md", ROOT / "dashboard/static/protocol.js"


def page() -> str:
    """docs/protocol.md."""
    return f"""{frames()}
## Topics (gossip)

{topics()}

## Services (mail)

A request and its answer over a libp2p stream: at most {number(FRAME_LIMIT)} bytes for an answer and {
        number(MAIL_LIMIT.inflated)
    } for an
inflated frame in a request. A peer may have {STREAMS_OF_ONE} streams open and {CALLS_OF_ONE} calls running.

{services()}

## Keys of the board

Records of hivemind's DHT: one per peer and key, signed by the peer, for at most {RECORD_SECONDS:g} s.

{keys()}

## Roles

*Number* is the role's number in invites; *membership*, whether the role needs one in a public run too.

{roles()}

## Phases of a heartbeat

`Beat.phase`; a missing or unknown phase counts as empty. `Beat.state` holds the text for readers.

{phases()}

## Kinds of work

The names by which scenarios price work (`[prices]`), and the thread that does it.

{kinds()}

## Parts that can fail

The names in `Faulted` and `Recovered` events.

{parts()}
"""


def frames() -> str:
    """The versions of the protocol, and the envelope."""
    return f"""# Protocol

Generated from the tables in `swarm/protocol.py` by `make docs-protocol`; a test compares the two. The
message types are in `swarm/types.py`, `swarm/frames/run_types.py`, `swarm/frames/site_types.py` and
`swarm/events.py`, their envelope in `swarm/frames/wire.py`.

A run's settings and invites name protocol {PROTOCOL}; every frame names schema {SCHEMA} of the envelope.
A frame of another schema or run is refused. Unknown fields are ignored; missing fields without a default
are an error.

## Frames

`flag (0 plain, 1 zstd) + msgpack Envelope{{schema, run, sender, body, membership, signature}}`. In a
private run `epoch 4 | nonce 12 | ChaCha20-Poly1305` of that, with the run's key of that epoch
(`peers/runtime/membership/run_keys.py`). Topics and board keys begin with the first 16 digits of the run's
digest and a slash. In a private run mail is read only from peers that have shown a membership (service
`enter`).
"""


def topics() -> str:
    return table(
        ("topic", "message", "bytes sealed", "bytes inflated", "received by", "for"),
        (
            (
                code(topic),
                row.noun,
                number(row.limit.sealed),
                number(row.limit.inflated),
                "all peers" if row.all else "observers",
                row.why,
            )
            for topic, row in TOPICS.items()
        ),
    )


def services() -> str:
    return table(
        ("service", "served by", "request", "bytes", "answer", "calls at once", "counted as"),
        (
            (
                code(service),
                row.answers,
                row.question,
                number(row.largest),
                row.answer,
                str(row.calls),
                f"{row.asked} / {row.answered}",
            )
            for service, row in SERVICES.items()
        ),
    )


def keys() -> str:
    return table(
        ("key", "record", "bytes", "for"),
        ((code(key), row.noun, number(row.limit), row.why) for key, row in KEYS.items()),
    )


def roles() -> str:
    return table(
        (
            "role",
            "number",
            "membership",
            "observes",
            "heartbeat",
            "posts on the board",
            "program",
        ),
        (
            (
                code(role),
                str(1 + [*Role].index(role)),
                yes(row.member),
                yes(row.observes),
                code(row.heartbeat),
                yes(row.posts),
                code(row.program),
            )
            for role, row in ROLES.items()
        ),
    )


def phases() -> str:
    return table(
        ("phase", "text", "state of a round"),
        ((code(phase), text, yes(phase in ROUND)) for phase, text in PHASES.items() if phase),
    )


def kinds() -> str:
    return table(
        ("kind", "thread", "for"),
        ((code(kind), code(row.thread), row.why) for kind, row in KINDS.items()),
    )


def parts() -> str:
    return table(
        ("part", "when", "a single failure"),
        ((code(part), row.why, yes(row.momentary)) for part, row in PARTS.items()),
    )


def words() -> str:
    """dashboard/static/protocol.js."""
    return "\n".join(
        (
            "// Made of the tables in swarm/protocol.py by `make docs-protocol`; a test compares the two.",
            "",
            *names("Role", [(role.name, role.value) for role in ROLES]),
            "",
            "// In the order in which a swarm is told of.",
            "export const ROLES = Object.values(Role);",
            "",
            *names("Phase", [(phase.name, phase.value) for phase in Phase]),
            "",
            "// Stages that may take long, in the order of a version.",
            f"export const STAGES = {json.dumps([*STAGES])};",
            "",
        )
    )


def names(kind: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"export const {kind} = {{", *(f'  {name}: "{value}",' for name, value in rows), "};"]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    line, *lines = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return "\n".join((line, "|" + "---|" * len(head), *lines))


def code(name: str) -> str:
    return f"`{name}`"


def number(count: int) -> str:
    return f"{count:,}"


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    WORDS.write_text(words(), encoding="utf-8")
