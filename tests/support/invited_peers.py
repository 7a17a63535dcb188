"""Peers in memory that meet each other by invites."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.build import run_folder
from peers.build.joining import invitations
from peers.build.run_folder import RunFolder
from peers.runtime.membership.contacts import CONTACTS, Contact
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.membership import identity, invite
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import run_dict
from swarm.storage.durable import write_durably
from swarm.types import Digest

KEYS = [invite.keyring(bytes([number] * 32)) for number in range(8)]


def address(number: int, host: str = "192.0.2.1") -> str:
    return f"/ip4/{host}/tcp/4000/p2p/{KEYS[number].me}"


def started(path: Path, private: bool = False, **run: Any) -> RunFolder:
    """Of a run that was started here."""
    owner = identity.open_key(path / "owner.key")
    spec = Spec(
        protocol=PROTOCOL,
        run=run_dict(Run(name="lab", private=private, **run)),
        owner=owner.public.hex(),
        files={},
        genesis=Digest("0" * 64),
        release_size=1,
    )
    return run_folder.keep_spec(path, wire.encode(spec))


def joined(path: Path, run: RunFolder, *words: str) -> RunFolder:
    """Of a peer elsewhere that was invited by these words, and met its seed."""
    guest = run_folder.keep_spec(path, wire.encode(run.spec))
    for word in words:
        assert invitations.keep(guest, invite.read(word, time.time()), word)
    met(guest, {0: (Role.SEED, 0.0)})
    return guest


def met(run: RunFolder, ages: Mapping[int, tuple[Role, float]]) -> None:
    """Its learner heard these so many seconds ago."""
    contacts = tuple(
        Contact(
            peer=KEYS[number].me,
            role=role,
            addresses=(address(number), address(number, "10.0.0.1")),
            heard=time.time() - age,
        )
        for number, (role, age) in ages.items()
    )
    write_durably(run.path / "peers" / "learner-1" / CONTACTS, wire.encode(contacts))
