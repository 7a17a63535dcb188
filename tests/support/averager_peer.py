"""A learner's averaging in a process of its own, a fork of the tests' (an interpreter that imports torch and
hivemind takes longer than most tests), driven through stdin: in come JSON commands, a line each, out go JSON
answers.

    live({"bootstrap": [...], "numel": 1000, "settings": {...}, "hostile": False, "false_means": False,
          "dial_only": False, "door": 0, "cores": 2, "limits": {"upload": 4.0}}, descriptor of its messages)

`hostile` announces the norm of ordinary tensors, and packs parts without a look at them; with `false_means`
the means that it makes are zeros.
"""

import asyncio
import hashlib
import json
import os
import signal
import time

import torch

from swarm.net.averaging import averager, bypass, codec, hivemind_averager
from swarm.net.ports import NotFinite, RoundLost
from swarm.net.rate import RateLimits
from swarm.settings.config import Averaging, Limits, Listen

# isort: split
# swarm.net goes first: without it hivemind's packages import far more than is needed.
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr


def say(**answer):
    os.write(1, f"{json.dumps(answer)}\n".encode())


async def beat(longest):
    """Measures how long the loop is ever blocked."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        longest[0] = max(longest[0], time.perf_counter() - before - 0.01)


class Zeros(hivemind_averager.Runner):
    def _sum(self, come):
        made = super()._sum(come)
        packed, value = self._codec.as_sent(torch.zeros_like(made.value))
        return made._replace(packed=packed, value=value)


def elsewhere(what, address):
    """A control socket at which nobody listens, the one before that again, or a second name of the same one,
    as a p2pd that was replaced would have."""
    if what != "renew":
        return f"{address}.nobody" if what == "lose" else address.removesuffix(".nobody")
    path = address.removeprefix("/unix")
    os.symlink(path, f"{path}.again")
    return f"/unix{path}.again"


async def average(mine, tensors, command):
    began = time.perf_counter()
    for tensor in tensors:
        tensor.fill_(float(command["fill"]))
    before = [tensor.clone() for tensor in tensors]
    answer = {}
    mine.check(command.get("against", ()), command.get("key", 0))
    try:
        got = await mine.average(
            command["version"],
            tensors,
            command["weight"],
            command["peers"],
            command["deadline"],
            bytes.fromhex(command.get("marks", "")),
            patience=command.get("patience", 0.0),
        )
        answer["members"] = None if got is None else sorted(got.members)
        answer["exchanged"] = None if got is None else dict(got.exchanged)
        answer["counting"] = None if got is None else sorted(got.marks)
        answer["named"] = None if got is None else {peer: [*by] for peer, by in got.named.items()}
        answer["scaled"] = None if got is None else dict(got.scaled)
        answer["part"] = None if got is None or got.recipe is None else got.recipe.part
        answer["through"] = None if got is None else sorted(got.through)
        answer["false"] = None if got is None else sorted(got.false)
        if got is not None and got.sketches is not None:
            ones = got.sketches.of(torch.ones(sum(tensor.numel() for tensor in tensors)))
            answer["sent"] = {
                peer: [float(ones @ its / ones.norm() / its.norm()), float(its.norm() / ones.norm())]
                for peer, its in got.sketches.members.items()
            }
    except RoundLost as error:
        answer["lost"], answer["not_finite"] = str(error), isinstance(error, NotFinite)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    answer["sha"] = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    answer["value"] = [str(flat.min().item()), str(flat.max().item())]
    answer["unchanged"] = all(
        torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(before, tensors, strict=True)
    )
    say(seconds=time.perf_counter() - began, **answer)


async def knock(control, peer, method):
    """Open a stream to a call of another's averager, and send nothing. Whether the other closed it."""
    p2p = await P2P.replicate(Multiaddr(control))
    name = hivemind_averager.Rounds._get_handle_name("grads", method)
    _, reader, writer = await p2p.call_binary_stream_handler(PeerID.from_base58(peer), name)
    try:
        async with asyncio.timeout(3.0):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    finally:
        writer.close()
        await p2p.shutdown()


async def started_p2pd(bootstrap, dial_only):
    return await P2P.create(
        initial_peers=bootstrap or None,
        use_relay=False,
        host_maddrs=[] if dial_only else ["/ip4/127.0.0.1/tcp/0"],
        no_listen=dial_only,
        dht_mode="client" if dial_only else "server",
    )


async def main(setup, orders):
    p2p = await started_p2pd(setup["bootstrap"], setup["dial_only"])
    control = [str(p2p.daemon_listen_maddr)]
    reports, longest, uplink = [], [0.0], [0]

    async def daemon():
        return control[0]

    mine = averager.HiveAverager(
        daemon,
        Listen(host="127.0.0.1", dial_only=setup["dial_only"]),
        "grads",
        setup["numel"],
        1000,
        Averaging(**setup["settings"]),
        lambda *args: reports.append(args),
        lambda: uplink[0],
    )
    mine.limits = RateLimits.of(Limits(**setup["limits"]))
    await mine.start()
    sizes = [setup["numel"] // 3, setup["numel"] - setup["numel"] // 3]
    tensors = [torch.zeros(size) for size in sizes]
    tasks = {asyncio.create_task(beat(longest))}
    addresses = [] if setup["dial_only"] else [str(address) for address in await p2p.get_visible_maddrs()]
    say(me=str(p2p.peer_id), addresses=addresses)
    while line := await asyncio.to_thread(orders.readline):
        command = json.loads(line)
        match command["do"]:
            case "average":
                tasks.add(asyncio.create_task(average(mine, tensors, command)))
            case "knock":
                say(closed=await knock(control[0], command["peer"], command["method"]))
            case "gone":
                mine.gone(command["peers"])
            case "signal":
                os.kill(mine._child.pid, command["signal"])
                say()
            case "announce":
                uplink[0] = command["uplink"]
                say()
            case "lose" | "find" | "renew" as what:
                control[0] = elsewhere(what, control[0])
                say()
            case "status":
                say(
                    reports=reports,
                    longest=longest[0],
                    pid=mine._child and mine._child.pid,
                    sigint=signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
                )
                longest[0] = 0.0
                reports.clear()
            case "close":
                await mine.close()
                say()
    for task in tasks:
        task.cancel()
    await p2p.shutdown()


def live(given, messages):
    """All of the life of such a fork."""
    os.dup2(messages, 2)
    # As a terminal begins it, whatever these tests were started by.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given["hostile"]:
        hivemind_averager.norm = lambda buffer: buffer.numel() ** 0.5
        codec.Scaled._encoded = lambda self, tensor: (1.0, tensor.to(self._dtype))
    if given["door"]:  # of another program
        own_ticket = bypass.TicketServer.ticket
        bypass.TicketServer.ticket = lambda *args: own_ticket(*args)._replace(port=given["door"])
    hivemind_averager.processors = lambda: given["cores"]
    if given["false_means"]:
        hivemind_averager.Runner = Zeros
    asyncio.run(main(given, os.fdopen(0)))
