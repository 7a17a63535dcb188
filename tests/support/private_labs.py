"""The folder of a private run with its owner: the fixture `lab`."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.build import run_folder
from peers.build.run_folder import RunFolder
from peers.runtime.membership import run_keys
from swarm import PROTOCOL
from swarm.frames import wire
from swarm.frames.run_types import Spec
from swarm.membership import identity, invite
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import run_dict
from swarm.storage.durable import write_durably
from swarm.types import Digest


@pytest.fixture
def lab(tmp_path: Path) -> RunFolder:
    """A private run that was started here, whose seed is gone."""
    owner = identity.open_key(tmp_path / "owner.key")
    settings = run_dict(Run(name="lab", private=True))
    run_keys.keep(tmp_path, bytes(32))
    spec = Spec(
        protocol=PROTOCOL,
        run=settings,
        keys=run_keys.digest_of(bytes(32)),
        owner=owner.public.hex(),
        files={},
        genesis=Digest("0" * 64),
        release_size=1,
    )
    made = run_folder.keep_spec(tmp_path, wire.encode(spec))
    word = made.invite(Role.LEARNER, [f"/ip4/192.0.2.7/tcp/31330/p2p/{invite.keyring(bytes(32)).me}"])
    write_durably(made.invite_path(Role.LEARNER), word.encode())
    return made
