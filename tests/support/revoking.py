"""Peers of a private run that are revoked and meet again."""

from __future__ import annotations

import time

from peers import cli
from peers.build.run_folder import RunFolder
from peers.runtime.membership import members
from peers.runtime.membership.members import Met
from swarm.frames import wire
from swarm.membership import invite
from swarm.protocol import Role
from swarm.storage.durable import write_durably
from swarm.types import PeerId


def revoke(lab: RunFolder, who: str) -> int:
    return cli.main(["revoke", who, "--folder", str(lab.path)])


def word_of(lab: RunFolder, role: Role = Role.LEARNER) -> invite.Invite:
    return invite.read(lab.invite_path(role).read_text(), time.time())


def key_of(word: invite.Invite) -> bytes:
    assert word.delegate is not None
    return word.delegate.delegation.key


def meet(lab: RunFolder, *met: tuple[PeerId, invite.Invite]) -> None:
    """As the seed of the folder writes down whom it hears."""
    found = []
    for peer, word in met:
        found.append(Met(peer=peer, role=Role.LEARNER, heard=time.time(), invites=(key_of(word),)))
    folder = lab.path / "peers" / "seed"
    folder.mkdir(parents=True)
    write_durably(folder / members.MEMBERS, wire.encode(tuple(found)))
