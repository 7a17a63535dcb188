"""A node that answers mail, and a page, for the row `strangers`.

python -m lab.processes.besieged '{"folder": ...}'   -> {"peer": ..., "address": ..., "page": ...}
{"do": "prefer", "peer": ...}   this peer is known from now on; an empty one: nobody
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from dashboard.fold.state import State
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.server import serve
from lab.processes import hosted
from lab.processes.crowd import LISTEN, RUN, SERVICE
from lab.swarms.partner import Answer, answer_all, opened, say
from lab.swarms.synthetic_events import swarm_events
from swarm.types import PeerId

PEERS, PAST = 200, 60.0
"""Of the swarm on the page: peers, and seconds."""


async def _answered(sender: PeerId, message: bytes) -> bytes:
    return message


async def _program(setup: Answer) -> None:
    feed, known = Feed(State()), set[str]()
    for event in swarm_events(PEERS, PAST, time.time() - PAST):
        feed(event)
    async with hosted.node(Path(setup["folder"]), RUN, LISTEN) as (node, keyring):
        await node.mail.serve(SERVICE, _answered)
        node.mail.prefer(lambda peer: peer in known)
        page = await serve(create_app(feed), LISTEN.host, 0, free=False)
        say(peer=keyring.me, address=node.addresses()[0], page=page.port)

        async def answer(asked: Answer) -> Answer:
            known.clear()
            known.add(asked["peer"])
            return {}

        try:
            await answer_all(answer)
        finally:
            await page.close()


def main() -> int:
    asyncio.run(_program(opened()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
