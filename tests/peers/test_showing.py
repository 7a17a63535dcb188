"""What a newcomer is given before it takes part: the list of revocations, and the keys of a private run."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from still_host import still_host
from test_membership_renewal import lab

from peers.build import run_folder, showing
from peers.build.run_folder import RunFolder
from peers.errors import Refusal, Unreached
from peers.runtime import revocations, run_keys
from swarm import invite, wire
from swarm.config import DelayLaw
from swarm.core import revocation
from swarm.identity import Keyring
from swarm.net.in_memory import MemoryNetwork
from swarm.protocol import Role
from swarm.run_types import Membership, Revocation
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

__all__ = ["lab"]
ADA = Keyring.new()
SERVER = PeerId("server")


def newcomer(lab: RunFolder, path: Path) -> RunFolder:
    return run_folder.keep_spec(path, wire.encode(lab.spec))


def revoke(lab: RunFolder, *peers: PeerId) -> bytes:
    """Write the run's next list and keys into its folder. -> the keys."""
    keys = run_keys.kept(lab.path) + bytes([7]) * 32
    entries = [Revocation(at=int(time.time()), peer=peer) for peer in peers]
    number = lab.revocations.number + 1
    digest = run_keys.digest_of(keys)
    sealed = revocation.sealed(lab.name, number, entries, lab.owner().sign, digest)
    revocations.keep(lab.path, sealed, keys)
    return keys


def ask(lab: RunFolder, there: RunFolder, mine: Membership | None, *peers: PeerId) -> str:
    """What ends `had_keys`, where the server has what is in the folder `lab`; empty where nothing does."""

    async def scene() -> str:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            server = still_host(network, SERVER, Role.SEED, private=True, trust=lab.trust)
            assert server.frames.keys is not None
            server.frames.keys.all = run_keys.kept(lab.path)
            await server.revocations.serve()
            try:
                await showing.had_keys(there, mine, network.ports(ADA.me, lambda _: 0.0).mail, peers)
            except (Refusal, Unreached) as error:
                return f"{type(error).__name__}: {error}"
        return ""

    return run(scene())


def membership(lab: RunFolder) -> Membership:
    word = invite.read(lab.invite_path(Role.LEARNER).read_text(), time.time())
    mine = word.admit(ADA.me)
    assert mine is not None
    return mine


def test_a_member_has_list_and_keys_before_it_takes_part(lab: RunFolder, tmp_path: Path) -> None:
    keys, there = revoke(lab, SERVER), newcomer(lab, tmp_path / "there")
    assert ask(lab, there, membership(lab), SERVER) == ""
    had = there.keys()
    assert had is not None and had.all == keys and there.revocations.peers == (SERVER,)
    assert (there.path / run_keys.KEYS).stat().st_mode & 0o777 == 0o600


def test_a_revoked_member_has_the_list_and_no_key_that_is_new(lab: RunFolder, tmp_path: Path) -> None:
    there = newcomer(lab, tmp_path / "there")
    assert ask(lab, there, membership(lab), SERVER) == ""
    revoke(lab, ADA.me)
    assert "revoked by its owner" in ask(lab, there, membership(lab), SERVER)
    had = there.keys()
    assert had is not None and had.epoch == 0 and there.revocations.peers == (ADA.me,)


def test_who_is_no_member_is_given_nothing(lab: RunFolder, tmp_path: Path) -> None:
    there = newcomer(lab, tmp_path / "there")
    said = ask(lab, there, None, SERVER)
    assert said.startswith("Unreached") and "this run is private" in said
    assert run_keys.kept(there.path) == b""


def test_a_peer_that_has_keys_goes_on_where_nobody_answers(lab: RunFolder, tmp_path: Path) -> None:
    there = newcomer(lab, tmp_path / "there")
    assert "nobody is connected" in ask(lab, there, membership(lab))
    run_keys.keep(there.path, run_keys.kept(lab.path))
    assert ask(lab, there, membership(lab)) == ""


def test_keys_that_are_not_the_runs_are_not_kept(lab: RunFolder, tmp_path: Path) -> None:
    run_keys.keep(lab.path, bytes([9]) * 32)  # a member that lies
    there = newcomer(lab, tmp_path / "there")
    assert "nobody gave them" in ask(lab, there, membership(lab), SERVER)
