"""`swarm doctor WORD`: checks whether this machine can take part in the run that an invite names.

    each address of the invite alone --> reached, or why not
    over one of them            --> clock, run, memory for its model, reward code; port, NAT, relay, line

Queries are sent as from a newcomer on this machine, with a key that is thrown away; in a private run with the
membership of the invite. It joins nothing. Not handled: the machine itself
(peers.commands.doctor.machine_checks).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peers.build.joining import spec_transfer
from peers.build.joining.connect_retry import narrow
from peers.build.run_folder import RunFolder
from peers.commands.doctor.findings import CheckResult
from peers.errors import CANNOT, DONE, UNREACHED, CannotHere, NoPeerAnswers, Refusal
from peers.runtime.frames import MemberMail
from swarm import extras
from swarm.core.membership import PRIVATE
from swarm.frames import wire
from swarm.frames.grammar import an, some
from swarm.membership.identity import open_key
from swarm.membership.invite import Invite
from swarm.net.libp2p.listening import Scope, scope_of
from swarm.net.ports import Mail, NetError
from swarm.protocol import Role, Service
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.net.libp2p.addresses import Address
    from swarm.net.libp2p.node import Node

MEASURED = 4
"""Slices of a file, 1 MiB each, by which the line is measured: seconds on a line of 10 Mbit/s."""

ENOUGH = 64 << 10
"""Bytes: a smaller file is no measurement of a line."""

FIND_SECONDS = 10.0
"""Seconds to redial a peer that has answered."""

LOOK_SECONDS = 40.0
"""Seconds for the questions about this peer's own address: a dial back, and two reservations."""

UNUSED = (
    "the run is private, and a check does not spend a use of this invite: only the addresses were checked"
)
"""Printed for a run that answers members alone."""


class Diagnosis(NamedTuple):
    findings: list[CheckResult]
    code: int
    """Exit code as far as the swarm goes."""


def examine(invite: Invite, config: Config) -> Diagnosis:
    """Ask the swarm that `invite` names. Without torch."""
    with tempfile.TemporaryDirectory(prefix="swarm-doctor-") as folder:
        return asyncio.run(_Examination(invite, config, Path(folder)).run())


class _Examination:
    def __init__(self, invite: Invite, config: Config, folder: Path) -> None:
        self._invite, self._config, self._folder = invite, config, folder
        self._keyring = open_key(folder / "key")
        self._found: list[CheckResult] = []

    async def run(self) -> Diagnosis:
        from swarm.net.libp2p.network import WayIn
        from swarm.net.libp2p.node import Node

        listen, key = self._config.peer.listen, self._folder / "key"
        try:
            watching = WayIn(watches=True)
            node = await Node.start(
                self._keyring, key, self._invite.run, listen, (), lambda *_: None, way_in=watching
            )
        except NetError as error:
            return Diagnosis(
                [CheckResult("port", "fail", str(error), "name another with peer.listen.port")], CANNOT
            )
        try:
            return Diagnosis(self._found, await self._asked(node))
        finally:
            await node.close()

    def _add(self, check: str, level: str, found: str, todo: str = "") -> None:
        self._found.append(CheckResult(check, level, found, todo))

    async def _asked(self, node: Node) -> int:
        """Exit code."""
        if not (peers := await self._addresses(node)):
            self._found[-1] = self._found[-1]._replace(
                todo="ask a member of the run for a new invite (`swarm invite`), or to restart a peer there"
            )
            return UNREACHED
        await self._clock(node, peers)
        try:
            mail = self._shown(node)
            run = await spec_transfer.fetch_spec(mail, peers, self._invite.run, self._folder / "run")
        except (Refusal, NoPeerAnswers, CannotHere) as error:
            if not (self._invite.uses and PRIVATE in str(error)):
                self._add("run", "fail", str(error), await narrow(node, str(error)))
                return error.code
            self._add("run", "warn", UNUSED, "`swarm join` with it is how to know")
            return self._code()
        self._check_run(run)
        await self._reach(node, mail)
        await self._rate(mail, run, peers)
        await self._memory(mail, run, peers)
        self._code_of(run)
        return self._code()

    def _code(self) -> int:
        return DONE if all(one.level != "fail" for one in self._found if one.check != "address") else CANNOT

    async def _addresses(self, node: Node) -> list[PeerId]:
        """Peers that were reached: each address is dialled alone."""
        from swarm.net.libp2p.network import parsed

        line, reached = await node.line(), dict[PeerId, None]()
        for address in parsed(self._invite.addresses, node.me):
            began = time.monotonic()
            why = await line.reach(address)
            took = f"answered in {1000 * (time.monotonic() - began):.0f} ms"
            self._add(
                "address", "warn" if why else "ok", f"{_where(address)}: {why or took}", _todo(address, why)
            )
            if not why:
                reached[address.peer] = None
                node.network.remember(address.peer, (address.text,))
                await line.disconnect(address.peer)
        for peer in reached:
            await node.network.find(peer, FIND_SECONDS)
        return [*reached]

    async def _clock(self, node: Node, peers: Sequence[PeerId]) -> None:
        greeted = await node.network.greet(frozenset(peers))
        if greeted.clock_off is not None:
            self._add("clock", "fail", *greeted.clock_off)
        else:
            most = " most of" if greeted.complaints else ""
            self._add("clock", "ok", f"within 3 s of the clocks of{most} the peers that answered")

    def _shown(self, node: Node) -> Mail:
        """Mail that presents the invite's membership; it counts as no use of an invite with a limited
        number."""
        mine = None if self._invite.uses else self._invite.admit(node.me)
        return MemberMail(node.mail, lambda: mine)

    def _check_run(self, run: RunFolder) -> None:
        self._settings(run)
        name, role = f"{run.name} {run.digest[:12]}", self._invite.role
        admits = f"private; the invite admits {an(role.value)}" if run.settings.private and role else "public"
        self._add("run", "ok", f"{name}, {admits}")

    def _settings(self, run: RunFolder) -> None:
        """Report settings that affect the invited role and that this version does not know."""
        role = self._invite.role or Role.SAMPLER
        unknown = [key for key in loading.unknown(run.spec.run) if loading.matters(key, role)]
        if unknown:
            said = f"{role.value}s act by {', '.join(unknown)}, which this program does not know"
            self._add("version", "fail", said, extras.upgrade())

    async def _reach(self, node: Node, mail: Mail) -> None:
        """Whether others can dial this machine, its NAT, and which relay forwards its connections if they
        cannot."""
        reach = node.reachability
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await reach.look(mail)
        except (NetError, TimeoutError) as error:
            return self._add("port", "warn", f"not tried: {error or 'no answer'}", "try again later")
        dialled = [one for answer in reach.answers.values() for one in answer.dialled]
        forward = f"forward TCP port {node.port} of the router to this machine: then no relay is between"
        if reach.open:
            at = sorted({one.address.rpartition("/p2p/")[0] for one in dialled if not one.why})
            self._add("port", "ok", f"others reach TCP port {node.port}, at {' and '.join(at)}")
        elif reach.open is None:
            self._add(
                "port", "warn", "no peer could tell whether this port can be dialled", "try again later"
            )
        else:
            why = next((one.why for one in dialled if one.why), "it does not listen")
            self._add("port", "warn", f"others cannot dial TCP port {node.port}: {why}", forward)
        self._nat(node)
        if reach.open is False and reach.relays:
            self._add(
                "relay", "ok", f"connections to this machine go through {some(len(reach.relays), 'peer')}"
            )
        elif reach.open is False:
            todo = "have any peer of the run on a machine with a public address: samplers do without"
            self._add("relay", "warn", "no peer relays connections to this machine", todo)

    def _nat(self, node: Node) -> None:
        ends = [end.split("/") for answer in node.reachability.answers.values() for end in answer.seen]
        if not ends:
            return
        mine = {text.split("/")[2] for text in node.addresses()}
        hosts, ports = {end[2] for end in ends}, {end[4] for end in ends}
        if hosts <= mine:
            self._add("nat", "ok", "none between this machine and the peers that answered")
        elif len(ports) > 1:
            self._add(
                "nat", "ok", f"seen as {', '.join(sorted(hosts))}, with another port at each peer (symmetric)"
            )
        else:
            kept = "keeps" if str(node.port) in ports else "changes"
            shared = (
                " of the provider's network" if all(scope_of(one) is Scope.PRIVATE for one in hosts) else ""
            )
            self._add("nat", "ok", f"seen as {', '.join(sorted(hosts))}{shared}; it {kept} the port")

    async def _rate(self, mail: Mail, run: RunFolder, peers: Sequence[PeerId]) -> None:
        """Download rate from the first peer, measured with a file that a joiner needs anyway."""
        name, size = max(run.spec.sizes.items(), key=lambda both: both[1], default=("", 0))
        if size < ENOUGH:
            return self._add("line", "ok", "not measured: the run's files are small")
        began, got = time.monotonic(), 0
        try:
            for _ in range(MEASURED):
                ask = spec_transfer.FileRequest(run=run.digest, file=name, offset=got)
                piece = await mail.send(peers[0], Service.SPEC, wire.encode(ask), timeout=20.0)
                got += len(piece)
                if len(piece) < spec_transfer.SLICE:
                    break
        except NetError as error:
            return self._add("line", "warn", f"{name} did not come: {error}", "try again later")
        rate = 8e-6 * got / (time.monotonic() - began)
        self._add("line", "ok", f"about {rate:.3g} Mbit/s from the invite's first peer ({got >> 10} KiB)")

    async def _memory(self, mail: Mail, run: RunFolder, peers: Sequence[PeerId]) -> None:
        if extras.absent(extras.PEER):
            return None  # the machine's own checks say so
        from peers.fit import fits, hardware

        settings = run.settings
        try:
            await spec_transfer.fetch_file(mail, peers, run, "config.json")
            case = fits.Case.of(run.model, Config(run=settings, peer=self._config.peer), hardware.machine())
            choice = fits.choose(case, self._invite.role, self._invite.roles(settings.private))
        except NoPeerAnswers as error:
            return self._add("model", "warn", str(error), "try again later")
        except CannotHere as error:
            return self._add("model", "fail", str(error))
        self._add("model", "ok", choice.reason or f"joins as {choice.role.value}")

    def _code_of(self, run: RunFolder) -> None:
        """Requirements of the run's task on this machine."""
        from swarm.tasks.workers import sandbox

        source = run.settings.task.name.partition(":")[0]
        brought = any(name.endswith(".py") for name in run.spec.task)
        if brought or source == "gym":
            policy = self._config.peer.rewards.code
            missing = sandbox.missing() if policy == "sandbox" else ""
            how = "it runs in bubblewrap" if policy == "sandbox" else f"peer.rewards.code is {policy}"
            what = "the run brings reward code" if brought else "gym: runs completions as code"
            level = "fail" if missing or policy == "refuse" else "ok"
            self._add("sandbox", level, missing or f"{what}: {how}", missing and sandbox.TRUST)
        needed = {"gym": "reasoning_gym", "verifiers": "verifiers"}.get(source)
        if needed and find_spec(needed) is None:
            extra = extras.EXTRA_OF[needed]
            self._add("extras", "fail", f"the run's tasks need {needed}", extras.install(extra))


def _where(address: Address) -> str:
    return f"{address.host} port {address.port}"


def _todo(address: Address, why: str) -> str:
    if not why:
        return ""
    if "another peer" in why or "another program" in why:
        return "another peer listens there than when the invite was made: ask for a new invite"
    if address.scope is Scope.PRIVATE:
        return "it is a private address: from outside its network only a public one can be dialled"
    return "check that the machine is up and that its firewall admits this port"
