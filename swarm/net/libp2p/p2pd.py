"""One p2pd process: start and stop, its control socket, streams, gossip and connections.

    Daemon.launch -> p2pd (TCP, GossipSub, our identity)
        <- control socket -- connect, publish, ...: on a connection that is kept for the next request
                          -- streams, subscribe: each on one of its own

In come requests of a Node, out come streams and messages with the peer id that libp2p proved. The program is
hivemind's published build: its digest is checked before it is started. Every failure is an Unreachable or a
Silent with the reason. Invariant: p2pd never outlives its parent, and a closed connection is really closed
although forked children hold copies of its socket. Not handled: replacing a dead p2pd
(swarm.net.libp2p.supervision).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import base58
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.proto import p2pd_pb2 as pb
from hivemind.utils.multiaddr import Multiaddr

from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.dialling import PROBE_SECONDS, knock
from swarm.net.libp2p.listening import announced
from swarm.net.messaging import guard
from swarm.net.messaging.streams import Stream, StreamHandler, read_message, varint
from swarm.net.ports import NetError, Silent, Unreachable
from swarm.settings.config import Listen
from swarm.types import PeerId

START_SECONDS = 20.0
"""Seconds for p2pd to start: it needs 0.2; a machine that compiles something next to it has needed 10."""

STOP_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL: p2pd has nothing to save."""

ENDED_SECONDS = 1.0
"""Seconds from the end of a process's connections to the end of the process, where it has ended."""

ASK_SECONDS = 10.0
"""Seconds for an answer on the control socket that needs no network."""

KEPT = 4
"""Connections to the control socket that are kept for the next questions: seldom are more asked at once."""

READ_AHEAD = 1 << 20
"""Buffer of a stream: a megabyte keeps p2pd busy while Python does something else."""

UNREAD_SECONDS = 30.0
"""Seconds for the other side to read the rest when a stream is closed; one that takes longer counts as
gone."""

MESSAGE_LIMIT = 1 << 20
"""Bytes of a frame on the control socket; GossipSub's own limit of a message."""

PUBLISHED = {("Linux", "x86_64"): "42f8f48e62583b97cdba3c31439c08029fb2b9fc506b5bdd82c46b7cc1d279d8"}
"""System and machine -> sha256 of p2pd in the wheel of hivemind 1.1.12. For others hivemind is built where it
is installed, and no digest is known before."""

OWN = "SWARM_P2PD_SHA256"
"""Environment variable with the sha256 of a p2pd that the user built."""

# PR_SET_PDEATHSIG holds for the thread that forks: Nodes are started in the main thread. The check after it
# closes the race with a parent that died before. In a process group of its own p2pd does not get a
# terminal's signals: its peer needs it to leave. Not in a session of its own: Linux shares processors out
# among sessions, and messages would pass at half the rate.
_PRELUDE = (
    "import ctypes,os,signal,sys;os.setpgid(0,0);ctypes.CDLL(None).prctl(1,signal.SIGKILL);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)

_CIRCUIT = b"\xa2\x02"
"""p2p-circuit, 290 as a varint, in a multiaddr's bytes."""


def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close for both sides. Forked children hold copies of the socket: a mere close would not reach the other
    side. Unsent bytes have UNREAD_SECONDS to be read, unless the transport was aborted before."""
    sock = writer.get_extra_info("socket")
    if not writer.is_closing() and writer.transport.get_write_buffer_size():  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(UNREAD_SECONDS, break_off, writer)
    elif sock is not None:
        with (
            contextlib.suppress(OSError),  # it is closed
            socket.fromfd(sock.fileno(), sock.family, sock.type) as copy,  # uvloop's own has no shutdown
        ):
            copy.shutdown(socket.SHUT_RDWR)
    writer.close()


def break_off(writer: asyncio.StreamWriter) -> None:
    """Close for both sides, and drop all bytes that the other one did not read."""
    writer.transport.abort()
    hang_up(writer)


class DaemonKilled(NetError):
    """A process of the node was ended by a signal before it was of use: another one may live."""


class Daemon(P2P):
    """A p2pd with GossipSub that dies with its parent."""

    relayed: frozenset[PeerId] = frozenset()
    """Peers connected over a relay alone, when `connected` was asked last."""
    _flags: dict[str, object] = {}
    _born_in = 0
    _begun: list[Daemon]

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Stream] = []
        """Connections on which all that was asked is answered."""
        self._dials = WeakValueDictionary[PeerId, asyncio.Lock]()
        """Peer -> held while it is dialled."""
        self._sockets = set[str]()
        """Paths on which p2pd and this process listen for each other."""
        self._begun.append(self)

    @classmethod
    async def launch(cls, key: Path, me: PeerId, listen: Listen, port: int) -> Daemon:
        """Start p2pd on TCP `port`. Raises NetError with the end of p2pd's output, or where p2pd is another
        program than the published one; DaemonKilled where a signal ended it."""
        guard.install()
        check_published(program())
        remove_stale_sockets(me)
        # Without its own relay it still takes and makes connections over others' (swarm.net.libp2p.circuits).
        # TLS 1.3, which all others know as well, takes p2pd a sixth less processor time than Noise.
        flags = {"noise": 0, "pubsub": 1, "relayService": 0, "relayDiscovery": 0}
        mine = {"_flags": flags, "_UNIX_SOCKET_PREFIX": f"/unix{_socket_prefix(me)}", "_born_in": os.getpid()}
        begun = mine["_begun"] = list[Daemon]()
        kind = type("Daemon", (cls,), mine)
        options: dict[str, Any] = {
            "host_maddrs": [] if listen.dial_only else _listening(listen.host, port),
            "announce_maddrs": announced(listen, port) or None,
            "no_listen": listen.dial_only,
            "dht_mode": "client" if listen.dial_only else "server",
            "nat_port_map": listen.upnp,
            "auto_nat": False,
            "use_relay": False,
        }
        try:
            daemon: Daemon = await kind.create(  # type: ignore[attr-defined]
                identity_path=str(key), check_if_identity_free=False, startup_timeout=START_SECONDS, **options
            )
        except BaseException as error:  # also of a Ctrl-C: no other code knows of the process
            fault = isinstance(error, P2PDaemonError | OSError | ValueError)
            killed = fault and any([await one.killed() for one in begun])
            await asyncio.gather(*(one.stop() for one in begun if one._child is not None))
            if fault:
                kind = DaemonKilled if killed else NetError
                raise kind(f"p2pd did not start on port {port}: {error}") from error
            raise
        begun.clear()
        daemon._sockets.add(daemon._daemon_listen_maddr["unix"])
        return daemon

    @classmethod
    def _make_process_args(cls, *args: object, **kwargs: object) -> list[str]:
        command = P2P._make_process_args(*args, **kwargs, **cls._flags)
        if sys.platform != "linux":
            return command  # no parent-death signal there
        return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(os.getpid()), *command]

    def __del__(self) -> None:
        # A forked child that drops its copy of this object must not end its parent's p2pd.
        if os.getpid() == self._born_in:
            super().__del__()

    # --- process --------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process id of p2pd."""
        return int(self._child.pid)

    @property
    def dead(self) -> bool:
        """Whether p2pd has ended."""
        return self._child.returncode is not None

    async def killed(self) -> bool:
        """Whether p2pd was ended by a signal, which the system reports a moment after its connections
        ended."""
        if self._child is None:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDED_SECONDS):
                await self._child.wait()
        return self.dead and self._child.returncode < 0

    @property
    def cut_off(self) -> bool:
        """Whether a socket was removed, as by what cleans /tmp: connections last, and none is made any
        more."""
        return not all(map(os.path.exists, self._sockets))

    async def stop(self) -> None:
        """End p2pd and remove its sockets."""
        self._terminate()
        while self._kept:
            hang_up(self._kept.pop()[1])
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()
        for address in (self._daemon_listen_maddr, self._client_listen_maddr):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address["unix"])

    # --- control socket -------------------------------------------------------------------------------------

    async def identify(self) -> tuple[str, ...]:
        """Multiaddrs, without the peer id, where p2pd listens or which it announces."""
        # Not on a connection that is kept: this also shows whether p2pd accepts new ones.
        (_, writer), response = await self._call(pb.Request(type=pb.Request.IDENTIFY), ASK_SECONDS)
        hang_up(writer)
        return tuple(str(Multiaddr(address)) for address in response.identify.addrs)

    async def connected(self) -> frozenset[PeerId]:
        """Peers with a connection. Sets `relayed`."""
        response = await self._ask(pb.Request(type=pb.Request.LIST_PEERS), ASK_SECONDS)
        # One entry for each connection: a peer with a direct one as well is not relayed.
        direct = frozenset(
            _base58(peer.id) for peer in response.peers if not any(map(_over_relay, peer.addrs))
        )
        peers = frozenset(_base58(peer.id) for peer in response.peers)
        self.relayed = peers - direct
        return peers

    async def direct(self) -> dict[PeerId, tuple[str, ...]]:
        """Peers with a connection that is not over a relay -> the other ends of these, without peer ids."""
        response = await self._ask(pb.Request(type=pb.Request.LIST_PEERS), ASK_SECONDS)
        found: dict[PeerId, tuple[str, ...]] = {}
        for peer in response.peers:
            if ends := tuple(str(Multiaddr(one)) for one in peer.addrs if not _over_relay(one)):
                found[_base58(peer.id)] = (*found.get(_base58(peer.id), ()), *ends)
        return found

    async def connect(self, peer: PeerId, addresses: Sequence[Address], timeout: float) -> None:
        """Connect with `peer`. Raises Unreachable or Silent."""
        dial = [address.dial for address in addresses]
        request = pb.ConnectRequest(peer=_raw(peer), addrs=dial, timeout=int(timeout) + 1)
        await self._ask(pb.Request(type=pb.Request.CONNECT, connect=request), timeout)

    async def disconnect(self, peer: PeerId) -> None:
        """End all connections with `peer`. Raises Unreachable or Silent."""
        request = pb.DisconnectRequest(peer=_raw(peer))
        await self._ask(pb.Request(type=pb.Request.DISCONNECT, disconnect=request), ASK_SECONDS)

    async def reach(self, address: Address) -> str:
        """Connect with the peer at an address. Returns the reason when that fails, else an empty text.

        A TCP handshake comes first: its errors say more than libp2p's, and a refused dial of libp2p makes it
        wait ever longer before it dials that address again. A peer is dialled at one address at a time: of
        two dials libp2p breaks off the later one, which the other side may have begun to use.
        """
        if why := await knock(address.host, address.port):
            return why
        try:
            async with self._dials.setdefault(address.peer, asyncio.Lock()):
                await self.connect(address.peer, [address], PROBE_SECONDS)
        except NetError as error:
            other = re.search(r"remote key matches (\w+)", str(error))
            return f"another peer answers there ({other[1]})" if other else str(error)
        return ""

    async def open_stream(self, peer: PeerId, name: str, timeout: float) -> Stream:
        """Open a stream. Raises Unreachable when the peer cannot be dialled or has no handler of that name,
        Silent on timeout."""
        stream = pb.StreamOpenRequest(peer=_raw(peer), proto=[name], timeout=int(timeout) + 1)
        opened, _ = await self._call(pb.Request(type=pb.Request.STREAM_OPEN, streamOpen=stream), timeout)
        return opened

    async def on_stream(self, name: str, handler: StreamHandler) -> None:
        """Call `handler` for each stream that a peer opens to `name`. Raises Unreachable: p2pd is gone."""

        async def accept(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await handler(PeerId(info.peer_id.to_base58()), reader, writer)

        try:
            await self.add_binary_stream_handler(name, accept)
        except (ConnectionError, FileNotFoundError, EOFError) as error:
            raise Unreachable(_gone(error)) from error
        self._sockets.add(self._client_listen_maddr["unix"])

    async def publish(self, topic: str, message: bytes) -> None:
        request = pb.PSRequest(type=pb.PSRequest.PUBLISH, topic=topic, data=message)
        await self._ask(pb.Request(type=pb.Request.PUBSUB, pubsub=request), ASK_SECONDS)

    async def listeners(self, topic: str) -> frozenset[PeerId]:
        """Connected peers that are known to subscribe to a topic: they get the messages published here. Of an
        empty topic: those to which gossip has a stream, or is opening one."""
        request = pb.PSRequest(type=pb.PSRequest.LIST_PEERS, topic=topic)
        response = await self._ask(pb.Request(type=pb.Request.PUBSUB, pubsub=request), ASK_SECONDS)
        return frozenset(map(_base58, response.pubsub.peerIDs))

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncIterator[AsyncIterator[tuple[PeerId, bytes]]]:
        """Messages of a topic with their signers; Unreachable when p2pd dies."""
        request = pb.PSRequest(type=pb.PSRequest.SUBSCRIBE, topic=topic)
        (reader, writer), _ = await self._call(
            pb.Request(type=pb.Request.PUBSUB, pubsub=request), ASK_SECONDS
        )
        try:
            yield self._messages(reader)
        finally:
            hang_up(writer)

    async def _messages(self, reader: asyncio.StreamReader) -> AsyncIterator[tuple[PeerId, bytes]]:
        while True:
            try:
                message = pb.PSMessage.FromString(await read_message(reader, 2 * MESSAGE_LIMIT))
            except (OSError, EOFError) as error:
                raise Unreachable("p2pd of this peer is gone") from error
            yield _base58(getattr(message, "from")), message.data

    async def _ask(self, request: pb.Request, timeout: float) -> pb.Response:
        """p2pd's answer. Only a connection with a complete answer is kept: the next request never uses one
        that was broken off."""
        stream = None
        while stream is None and self._kept:
            stream = self._kept.pop()
            if stream[0].at_eof() or stream[1].is_closing():
                hang_up(stream[1])
                stream = None
        stream, response = await self._call(request, timeout, stream)
        if len(self._kept) < KEPT and not self.dead:
            self._kept.append(stream)
        else:
            hang_up(stream[1])
        return response

    async def _call(
        self, request: pb.Request, timeout: float, stream: Stream | None = None
    ) -> tuple[Stream, pb.Response]:
        """Ask on a connection, a new one where none is given -> that connection, and the answer."""
        answered = False
        try:
            async with asyncio.timeout(timeout):
                if stream is None:
                    path = self._daemon_listen_maddr["unix"]
                    stream = await asyncio.open_unix_connection(path, limit=READ_AHEAD)
                reader, writer = stream
                body = request.SerializeToString()
                writer.write(varint(len(body)) + body)
                await writer.drain()
                response = pb.Response.FromString(await read_message(reader, 2 * MESSAGE_LIMIT))
            if response.type == pb.Response.ERROR:
                raise Unreachable(" ".join(response.error.msg.split()))
            answered = True
            return stream, response
        except TimeoutError as error:
            raise Silent(f"no answer within {timeout:g} s") from error
        except (OSError, EOFError) as error:
            raise Unreachable(_gone(error)) from error
        finally:
            if stream is not None and not answered:
                hang_up(stream[1])


def program() -> Path:
    """The p2pd that hivemind starts."""
    return Path(str(resources.files("hivemind.hivemind_cli") / "p2pd"))


def check_published(path: Path) -> None:
    """Raise NetError where p2pd, which has this peer's key and all messages between peers, is another program
    than the published one, or than the environment names."""
    expected = os.environ.get(OWN) or PUBLISHED.get((platform.system(), platform.machine()))
    if expected is None or (found := _digest(path)) == expected.lower():
        return
    raise NetError(
        f"{path} is not the p2pd of hivemind {metadata.version('hivemind')}: its sha256 is {found}, not"
        f" {expected}; install hivemind anew (pip install --force-reinstall --no-deps hivemind), or set {OWN}"
        " to its sha256 where you built it yourself"
    )


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gone(error: Exception) -> str:
    return f"p2pd of this peer is gone ({error or type(error).__name__})"


def _listening(host: str, port: int) -> list[str]:
    """`::` is every interface with both protocols, as for other programs: libp2p takes it for IPv6 alone."""
    if host == "::":
        return [f"/ip6/::/tcp/{port}", f"/ip4/0.0.0.0/tcp/{port}"]
    return [f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"]


def _over_relay(address: bytes) -> bool:
    # The protocol's number is searched first: taking addresses apart costs more than all the rest of the
    # answer.
    return _CIRCUIT in address and "/p2p-circuit" in str(Multiaddr(address))


def _raw(peer: PeerId) -> bytes:
    """The bytes of an id, which others may have made up. Raises Unreachable."""
    try:
        return base58.b58decode(peer)
    except ValueError as error:
        raise Unreachable(f"{peer!r} is not a peer id") from error


def _base58(raw: bytes) -> PeerId:
    return PeerId(PeerID(raw).to_base58())


# --- leftovers of a killed p2pd -----------------------------------------------------------------------------


def _socket_prefix(me: PeerId) -> str:
    # /tmp and not TMPDIR: a socket's path has at most 107 bytes. The end of the id shows which peer's
    # sockets these are.
    return f"/tmp/hivemind-{me[-10:]}-"


def remove_stale_sockets(me: PeerId) -> None:
    """Remove the sockets that an earlier p2pd of this identity left when it was killed."""
    folder, stem = os.path.split(_socket_prefix(me))
    for path in Path(folder).glob(f"{stem}*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # in use, or gone meanwhile
