"""Whom a peer met outlives it: the file, its bounds, and who is dialled again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from nouns import beat
from still_host import still_host

from peers.build.joining import invitations
from peers.runtime.host import Host
from peers.runtime.membership import contacts
from peers.runtime.membership.contacts import CONTACTS, MOST, Contacts
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

ME = PeerId("me")


def address(peer: str) -> str:
    return f"/ip4/10.0.0.1/tcp/4000/p2p/{peer}"


class Life:
    """A sampler's life with its contacts: it hears heartbeats, and seeks whom it misses."""

    def __init__(self, network: MemoryNetwork, folder: Path) -> None:
        self.host: Host = still_host(network, ME, Role.SAMPLER)
        self.contacts = Contacts(folder, ME)
        self.sought: list[set[str]] = []

    def hears(self, peer: str, role: Role, *, lives: bool = False, **changes: object) -> None:
        told = beat(role=role, **{"addresses": (address(peer),)} | changes)
        self.contacts.met(PeerId(peer), told)
        if lives:
            self.host.roster.receive(PeerId(peer), told, self.host.now())

    async def seek(self, peers: Iterable[PeerId]) -> None:
        self.sought.append({*peers})


def lived(folder: Path, seconds: float, *heard: tuple[str, Role, bool]) -> Life:
    async def scene() -> Life:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            life = Life(network, folder)
            async with life.contacts.running(life.host, life.host.disk, life.seek):
                for peer, role, lives in heard:
                    await asyncio.sleep(0.001)
                    life.hears(peer, role, lives=lives)
                await asyncio.sleep(seconds)
        return life

    return run(scene())


def names(folder: Path) -> list[str]:
    """Of whom it met, beside the peer itself, which comes first."""
    mine, *met = (contact.peer for contact in contacts.kept(folder))
    assert mine == ME
    return met


def test_whom_a_peer_met_is_on_the_disk_within_seconds_and_known_in_its_next_life(tmp_path: Path) -> None:
    lived(tmp_path, 5.0, ("a", Role.SEED, False), ("b", Role.LEARNER, False))
    assert names(tmp_path) == ["a", "b"]
    assert contacts.kept(tmp_path)[1].addresses == (address("a"),)
    lived(tmp_path, 5.0, ("c", Role.LEARNER, False))
    assert names(tmp_path) == ["a", "b", "c"]


def test_who_tells_no_address_is_left_out_and_a_new_address_replaces_the_old_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            life = Life(network, tmp_path)
            async with life.contacts.running(life.host, life.host.disk, life.seek):
                life.hears("hidden", Role.LEARNER, addresses=())
                life.hears("moved", Role.LEARNER)
                await asyncio.sleep(5.0)
                life.hears("moved", Role.LEARNER, addresses=(address("elsewhere"),))
                await asyncio.sleep(5.0)

    run(scene())
    _, only = contacts.kept(tmp_path)
    assert only.addresses == (address("elsewhere"),)


def test_a_crowd_of_samplers_pushes_out_nobody_on_whom_others_depend(tmp_path: Path) -> None:
    crowd = [(f"s{k}", Role.SAMPLER, False) for k in range(2 * MOST)]
    lived(tmp_path, 5.0, ("seed", Role.SEED, False), ("learner", Role.LEARNER, False), *crowd)
    found = names(tmp_path)
    assert len(found) == MOST and {"seed", "learner", f"s{2 * MOST - 1}"} <= {*found} and "s0" not in found


@pytest.mark.parametrize("off", [-7200.0, 7200.0])
def test_who_was_heard_lately_was_so_by_the_machines_clock_whatever_a_peer_counts_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """`swarm invite` reads them: a peer keeps the clock of its start, and the machine's was set since."""
    folder = tmp_path / "peers" / "sampler-1"
    folder.mkdir(parents=True)
    life = lived(folder, 0.1)
    wall = life.host.now() + off
    monkeypatch.setattr(time, "time", lambda: wall)
    lived(folder, 5.0, ("a", Role.SEED, False))
    assert [one.heard for one in contacts.kept(folder)] == [wall, wall]
    assert invitations.since_last_beat(tmp_path) is not None
    wall += 3600.0
    assert invitations.since_last_beat(tmp_path) is None


def test_a_damaged_file_costs_the_addresses_in_it_alone(tmp_path: Path) -> None:
    lived(tmp_path, 5.0, ("a", Role.SEED, False))
    (tmp_path / CONTACTS).write_bytes((tmp_path / CONTACTS).read_bytes()[:-3])
    assert contacts.kept(tmp_path) == ()
    lived(tmp_path, 5.0, ("b", Role.SEED, False))
    assert names(tmp_path) == ["b"]


def test_all_are_dialled_again_while_there_is_no_seed_or_no_learner(tmp_path: Path) -> None:
    seed, learner = ("seed", Role.SEED, False), ("learner", Role.LEARNER, False)
    patience = 10.0
    lost = lived(tmp_path / "lost", 8 * patience, seed, ("left", Role.LEARNER, False))
    assert lost.sought == [{"seed", "left"}]
    part = lived(tmp_path / "part", 8 * patience, seed, learner, ("here", Role.LEARNER, True))
    assert part.sought == [{"seed", "learner"}], "whom it hears is not dialled"
    whole = lived(
        tmp_path / "whole", 8 * patience, learner, ("s", Role.SEED, True), ("l", Role.LEARNER, True)
    )
    assert whole.sought == [set()]
    parts = lived(tmp_path / "2", 8 * patience, seed, ("s", Role.SEED, True), ("l", Role.LEARNER, True))
    assert parts.sought == [{"seed"}], "a second seed may be with another part of the swarm"


def test_a_run_folder_knows_whom_all_its_peers_met_by_the_newest_word_of_each(tmp_path: Path) -> None:
    for place, heard in (("sampler-1", ("a", "b")), ("learner-1", ("b", "c"))):
        folder = tmp_path / "peers" / place
        lived(folder, 5.0, *((peer, Role.LEARNER, False) for peer in heard))
    found = contacts.of_run(tmp_path)
    assert sorted(contact.peer for contact in found) == ["a", "b", "c", "me"]
    assert [contact.heard for contact in found] == sorted((one.heard for one in found), reverse=True)
