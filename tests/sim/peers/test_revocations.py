"""A run folder's list of revocations and its keys: what its peers and `swarm revoke` write there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from private_labs import lab
from revoking import revoke
from still_host import still_host

from peers.build import run_folder
from peers.build.run_folder import RunFolder
from peers.runtime.membership import revocations, run_keys
from swarm import events
from swarm.core.revocation import sealed
from swarm.frames import wire
from swarm.frames.run_types import Revocation
from swarm.membership.identity import Keyring
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config, DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

__all__ = ["lab"]

ADA, BOB = (Keyring.new().me for _ in range(2))


def signed(lab: RunFolder, number: int, *out: PeerId) -> tuple[bytes, bytes]:
    """A list of the run's owner and the keys that belong to it, as another peer has them."""
    keys = bytes(32) + bytes([7]) * 32 * number
    entries = [Revocation(at=int(time.time()), peer=peer) for peer in out]
    return sealed(lab.name, number, entries, lab.owner().sign, run_keys.digest_of(keys)), keys


def on_disk(lab: RunFolder) -> tuple[bytes, bytes]:
    return revocations.kept(lab.path), run_keys.kept(lab.path)


class Follower:
    """A peer of the folder, for seconds of virtual time; `then` happens after ten of them."""

    def __init__(self, lab: RunFolder, then: Callable[[Follower], object] = lambda _: None) -> None:
        self.told: list[events.Event] = []

        async def scene() -> None:
            async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
                self.host = still_host(
                    network, "seed", Role.SEED, Config(run=lab.settings), private=True, trust=lab.trust
                )
                self.host.bus.add(self.told.append)
                following = asyncio.create_task(
                    revocations.follow(self.host, self.host.revocations, self.host.disk, lab.path)
                )
                await self.host.ports.clock.sleep(10)
                then(self)
                await self.host.ports.clock.sleep(50)
                following.cancel()

        run(scene())

    def faults(self) -> list[str]:
        return [one.detail for one in self.told if isinstance(one, events.Faulted)]


def test_a_peer_that_looks_between_the_two_writes_of_a_revocation_leaves_its_key(lab: RunFolder) -> None:
    new, keys = signed(lab, 1, ADA)
    run_keys.keep(lab.path, keys)
    there = Follower(lab, lambda _: revocations.keep(lab.path, new))
    assert on_disk(lab) == (new, keys) == (there.host.trust.revocations.sealed, there.host.frames.keys.all)
    assert revoke(lab, BOB) == 0 and lab.revocations.number == 2


def test_a_key_of_a_revocation_that_was_cut_off_is_nobody_s_and_the_next_one_goes_on(lab: RunFolder) -> None:
    run_keys.keep(lab.path, bytes(32) + bytes([9]) * 64)
    had = lab.keys()
    assert had is not None and had.all == bytes(32), "what others cannot read is not used"
    assert revoke(lab, ADA) == 0 == revoke(lab, BOB)
    keys = lab.keys()
    assert keys is not None and keys.epoch == 2 and lab.revocations.peers == (ADA, BOB)
    assert run_keys.digest_of(run_keys.kept(lab.path)) == lab.revocations.list.keys


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        (bytes(32) + bytes([7]) * 32, bytes(32) + bytes([7]) * 32),
        (bytes(32) + bytes([9]) * 96, bytes(32) + bytes([9]) * 32),
        (bytes([9]) * 64, b""),
        (bytes(32) + bytes([7]) * 96, bytes(32) + bytes([7]) * 64),
    ],
    ids=["older", "other", "of another run", "more"],
)
def test_of_the_keys_in_a_folder_those_of_its_list_count(lab: RunFolder, keys: bytes, left: bytes) -> None:
    new, _ = signed(lab, 2, ADA)
    revocations.keep(lab.path, new, keys)
    had = lab.keys()
    assert had is not None and had.all == left


def test_keys_and_a_list_that_are_newer_than_a_peer_s_stay(lab: RunFolder) -> None:
    older, newer = signed(lab, 1, ADA), signed(lab, 2, ADA, BOB)
    another = signed(lab, 2, BOB)[0], bytes(32) + bytes([9]) * 64
    for given in (older, (b"", bytes(32)), (newer[0], older[1]), another):
        revocations.keep(lab.path, *newer)
        known = run_folder.read(lab.path).trust.revocations  # type: ignore[union-attr]
        known.list, known.sealed = known.opened(given[0]), given[0]
        revocations.keep_newer(lab.path, known, given[1])
        assert on_disk(lab) == newer


def test_a_peer_writes_what_it_has_over_what_is_older_or_damaged(lab: RunFolder) -> None:
    new, keys = signed(lab, 1, ADA)
    Follower(lab, lambda it: it.host.revocations.take(new, keys))
    assert on_disk(lab) == (new, keys)
    for torn in (b"torn", new[:-20], b""):
        (lab.path / revocations.REVOKED).write_bytes(torn)
        there = Follower(lab, lambda it: it.host.revocations.take(new, keys))
        assert on_disk(lab) == (new, keys)
        assert [type(one) for one in there.told if not isinstance(one, events.Noted)] in (
            [],
            [events.Faulted, events.Recovered],
        )


def test_keys_that_a_folder_lost_come_back_from_a_peer_though_its_list_is_whole(lab: RunFolder) -> None:
    new, keys = signed(lab, 1, ADA)
    Follower(lab, lambda it: it.host.revocations.take(new, keys))
    (lab.path / run_keys.KEYS).unlink()
    Follower(lab, lambda it: it.host.revocations.take(new, keys))
    assert on_disk(lab) == (new, keys)


def test_a_damaged_list_that_nobody_has_another_of_is_told_and_costs_no_writes(
    lab: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: object) -> None:
        raise AssertionError("it is written")

    (lab.path / revocations.REVOKED).write_bytes(b"torn")
    monkeypatch.setattr(run_keys, "keep", keep)
    there = Follower(lab)
    assert len(there.faults()) == 1 and "is damaged" in there.faults()[0]
    assert "the file can be deleted" in there.faults()[0]
    assert not [one for one in there.told if isinstance(one, events.Recovered)]


def test_a_later_list_that_lacks_what_one_before_says_is_told(lab: RunFolder) -> None:
    (first, keys), (second, more) = signed(lab, 1, ADA), signed(lab, 2, BOB)

    def takes(it: Follower) -> None:
        it.host.revocations.take(first, keys)
        it.host.revocations.take(second, more)

    told = [one.text for one in Follower(lab, takes).told if isinstance(one, events.Noted)]
    assert f"list 2 of this run's revocations lacks {ADA}, which list 1 has" in told[-1]
    assert "revokes them again" in told[-1] and len(told) == 3


def test_a_list_that_another_owner_signed_is_not_taken_from_the_disk(lab: RunFolder, tmp_path: Path) -> None:
    other = sealed(lab.name, 5, [], Keyring.new().sign)
    (lab.path / revocations.REVOKED).write_bytes(other)
    with pytest.raises(wire.WireError):
        lab.revocations.opened(other)
    new, keys = signed(lab, 1, ADA)
    Follower(lab, lambda it: it.host.revocations.take(new, keys))
    assert on_disk(lab) == (new, keys)
