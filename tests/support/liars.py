"""Peers that lie about blocks: they have everything, and give something else."""

from __future__ import annotations

from swarm.frames.wire import decode, encode
from swarm.net.blobs.sharing import BlockQuery, Holding, held
from swarm.net.ports import Mail
from swarm.protocol import Service
from swarm.types import PeerId


async def lie(mail: Mail, data: bytes, service: Service = Service.BLOBS, leaves: bytes = b"") -> None:
    """Serve `data` for whatever block somebody asks, under its number; `leaves` for leaf lists."""

    async def tell(sender: PeerId, message: bytes) -> bytes:
        return encode(Holding(has=None, leaves=leaves))

    async def give(sender: PeerId, message: bytes) -> bytes:
        return encode(Holding(has=None, block=decode(message, BlockQuery).wanted[0], data=data))

    await mail.serve(held(service), tell)
    await mail.serve(service, give)
