"""CPU of `LearnerInbox.receive` for groups of a size, without a network, for the row `intake`.

    python -m lab.processes.intake_cost '{"folder": ..., "model": ...}'
    {"frames": 500, "tokens": 80}  ->  {"bytes": of a frame, "cpu": [seconds], "loop": [seconds]}

Fresh groups of one sampler, one after the other, with journal and log on the disk: `cpu` is that of all
threads of this process, `loop` that of the event loop's thread, where everything else of a peer waits.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lab.processes import hosted
from lab.processes.admission_server import RUN, SETTINGS, learner_peer, release_of
from lab.processes.load_senders import LoadSenders, Sender
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.intake.inbox import LearnerInbox
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.frames import wire
from swarm.membership.identity import Keyring
from swarm.settings import loading
from swarm.types import PeerId, Receipt, Verdict


async def _program(folder: Path, model: Path, _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    config = loading.load(None, SETTINGS).config
    async with hosted.node(folder, RUN, config.peer.listen) as (node, keyring):
        learner, started = learner_peer(node, keyring, config, model, folder), time.time()
        learner.host.releases.candidates.hear(release_of(learner.host.ports.me, started), b"")
        server = {"run": RUN, "addresses": node.addresses(), "started": started}
        senders, sender = LoadSenders(folder, model, server), Sender(None, Keyring.new(), [])

        async def answer(asked: Answer) -> Answer:
            frames = [senders.seal(sender, asked["tokens"]) for _ in range(asked["frames"])]
            costs = [await _cost(learner.inbox, sender.keyring.me, frame) for frame in frames]
            cpu, loop = zip(*costs, strict=True)
            return {"bytes": sum(map(len, frames)) / len(frames), "cpu": cpu, "loop": loop}

        say()
        await answer_all(answer)


async def _cost(inbox: LearnerInbox, sender: PeerId, frame: bytes) -> tuple[float, float]:
    """CPU seconds of one group: of the process, of the loop's thread."""
    whole, loop = time.process_time(), time.thread_time()
    receipt = wire.decode(await inbox.receive(sender, frame), Receipt)
    whole, loop = time.process_time() - whole, time.thread_time() - loop
    if receipt.verdict is not Verdict.ADMIT:
        raise ValueError(f"not admitted: {receipt.verdict} {receipt.detail}")
    inbox.consumed(inbox.batcher.take(1, 0, time.time())[0])
    return whole, loop


def main() -> int:
    setup = opened()
    return run_until_signalled(
        lambda on_signal: _program(Path(setup["folder"]), Path(setup["model"]), on_signal)
    )


if __name__ == "__main__":
    sys.exit(main())
