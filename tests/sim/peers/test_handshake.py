"""What a newcomer is given before it takes part: the list of revocations, and the keys of a private run."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

from private_labs import lab
from still_host import still_host

from peers import cli
from peers.build import run_folder
from peers.build.joining import handshake
from peers.build.joining.connect_retry import ConnectRetry
from peers.build.local_peer import LocalPeer
from peers.build.run_folder import RunFolder
from peers.errors import NoPeerAnswers, Refusal
from peers.runtime import peer_folder
from peers.runtime.membership import invite_quota, revocations, run_keys
from peers.runtime.membership.renewal import MembershipRenewal, granter, renewer
from swarm.core import revocation
from swarm.frames import wire
from swarm.frames.run_types import Membership, Revocation
from swarm.membership import invite
from swarm.membership.identity import Keyring
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.durable import write_durably
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
                await handshake.had_keys(there, mine, network.ports(ADA.me, lambda _: 0.0).mail, peers)
            except (Refusal, NoPeerAnswers) as error:
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
    assert said.startswith("NoPeerAnswers") and "this run is private" in said
    assert run_keys.kept(there.path) == b""


def test_a_peer_that_has_keys_goes_on_where_nobody_answers(lab: RunFolder, tmp_path: Path) -> None:
    there = newcomer(lab, tmp_path / "there")
    assert "no peer is connected" in ask(lab, there, membership(lab))
    run_keys.keep(there.path, run_keys.kept(lab.path))
    assert ask(lab, there, membership(lab)) == ""


def test_keys_that_are_not_the_runs_are_not_kept(lab: RunFolder, tmp_path: Path) -> None:
    run_keys.keep(lab.path, bytes([9]) * 32)  # a member that lies
    there = newcomer(lab, tmp_path / "there")
    assert "no peer gave them" in ask(lab, there, membership(lab), SERVER)


def show(lab: RunFolder, path: Path, word: invite.Invite, role: Role) -> Membership | None:
    """What a newcomer that has the run in `path` shows, where the server has what is in the folder `lab`."""
    folder = path / "peers" / f"{role.value}-1"
    folder.mkdir(parents=True, exist_ok=True)
    local = cast(LocalPeer, SimpleNamespace(folder=folder, keyring=ADA))

    async def scene() -> Membership | None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            server = still_host(network, SERVER, Role.SEED, private=True, trust=lab.trust)
            assert server.frames.keys is not None
            server.frames.keys.all = run_keys.kept(lab.path)
            await server.revocations.serve()
            ahead = server.now() - time.time()

            def grants(peer: PeerId, claim: Membership, at: float) -> Membership:
                return granter(lab.owner(), lab.name, lab.path)(peer, claim, at - ahead)

            renewal = MembershipRenewal(
                server, server.disk, lab.path / "seed", renewer(lab.owner(), lab.name), grants
            )
            mail = network.ports(ADA.me, lambda _: 0.0).mail
            retrying = ConnectRetry(path, once=True, has_run=False)
            async with renewal.running():
                return await handshake.shown(word, role, path, local, mail, [SERVER], retrying)

    return run(scene())


def word_of(lab: RunFolder, role: Role, uses: int = 0) -> invite.Invite:
    named = invite.read(lab.invite_path(Role.LEARNER).read_text(), time.time()).addresses
    return invite.read(lab.invite(role, named, uses=uses), time.time())


def test_who_watches_takes_no_use_of_a_word_for_others(lab: RunFolder, tmp_path: Path) -> None:
    word, there = word_of(lab, Role.LEARNER, 1), tmp_path / "there"
    assert show(lab, there, word, Role.OBSERVER) is None
    assert not invite_quota.used(lab.path) and peer_folder.membership(there / "peers/observer-1") is None
    mine = show(lab, there, word, Role.LEARNER)
    assert mine is not None and mine.delegation.role is Role.LEARNER and invite_quota.used(lab.path)


def test_a_membership_that_is_kept_for_another_role_is_not_shown(lab: RunFolder, tmp_path: Path) -> None:
    there = tmp_path / "there" / "peers" / "observer-1"
    write_durably(there / peer_folder.MEMBERSHIP, wire.encode(membership(lab)))
    mine = show(lab, tmp_path / "there", word_of(lab, Role.OBSERVER), Role.OBSERVER)
    assert mine is not None and mine.delegation.role is Role.OBSERVER


def test_a_new_word_takes_the_place_of_a_membership_that_was_revoked(lab: RunFolder, tmp_path: Path) -> None:
    old, there = word_of(lab, Role.LEARNER, 3), newcomer(lab, tmp_path / "there").path
    first, new = show(lab, there, old, Role.LEARNER), word_of(lab, Role.LEARNER)
    assert first is not None and show(lab, there, new, Role.LEARNER) == first
    word = invite.make(lab.digest, old.addresses, old.role, old.expires, old.delegate)
    assert cli.main(["revoke", word, "--folder", str(lab.path)]) == 0
    mine = show(lab, there, new, Role.LEARNER)
    assert mine == new.admit(ADA.me) and ask(lab, newcomer(lab, there), mine, SERVER) == ""
    assert cli.main(["revoke", ADA.me, "--folder", str(lab.path)]) == 0
    assert show(lab, there, new, Role.LEARNER) == first, "no word brings back who was put out by name"
