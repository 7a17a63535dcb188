"""Invites for a number of uses: their claims are no memberships, and who has the owner's key makes so many of
them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest
from private_labs import lab
from still_host import still_host

from peers import cli
from peers.build.run_folder import RunFolder
from peers.runtime.membership import invite_quota
from peers.runtime.membership.renewal import MembershipRenewal, granter, renewer
from swarm.core.membership import Trust
from swarm.core.revocation import link
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.membership import identity, invite
from swarm.membership.identity import Keyring
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

__all__ = ["lab"]
OWNER, ADA, BOB, EVE = (Keyring.new() for _ in range(4))
EPOCH, DAY = 1_750_000_000, 86400
ADDRESS = [f"/ip4/192.0.2.7/tcp/1/p2p/{ADA.me}"]


def word(number: int = 2, final: bool = False, expires: int = EPOCH + 5 * DAY) -> invite.Delegate:
    return invite.delegate(OWNER, "lab", Role.LEARNER, expires, final, number)


def trust() -> Trust:
    return Trust("lab", OWNER.public, False, identity.verify)


def test_a_number_of_uses_travels_in_the_word_and_is_signed() -> None:
    made = word(300)
    text = invite.make(Digest("ab" * 32), ADDRESS, Role.LEARNER, made.delegation.expires, made)
    got = invite.read(text, EPOCH)
    assert got.delegate == made and got.uses == 300 and invite.read(text, EPOCH).role is Role.LEARNER
    more = word(300)
    forged = invite.Delegate(
        seed=more.seed,
        delegation=wire.decode(wire.encode({**_plain(more), "uses": 301}), type(more.delegation)),
    )
    assert "owner" in (trust().claim_objection(ADA.me, invite.admit(forged, ADA.me), EPOCH) or "")
    longer = invite.lengthen(OWNER, "lab", made, EPOCH + 9 * DAY)
    assert longer.delegation.uses == 300


def _plain(one: invite.Delegate) -> dict[str, object]:
    delegation = one.delegation
    return {name: getattr(delegation, name) for name in delegation.__struct_fields__}


def test_what_such_an_invite_signs_is_no_membership_but_a_claim() -> None:
    claim = invite.admit(word(), ADA.me)
    assert "number of uses" in (trust().objection(ADA.me, Role.LEARNER, claim, EPOCH) or "")
    assert trust().claim_objection(ADA.me, claim, EPOCH) is None
    assert "expired" in (trust().claim_objection(ADA.me, claim, EPOCH + 6 * DAY) or "")
    assert "another peer" in (trust().claim_objection(BOB.me, claim, EPOCH) or "")


def test_each_peer_takes_one_use_however_often_it_asks(tmp_path: Path) -> None:
    one, other = word(2).delegation, word(1).delegation
    for who in (ADA, ADA, BOB, ADA):
        invite_quota.take(tmp_path, one, who.me, EPOCH)
    with pytest.raises(Refused, match="all uses of this invite are taken"):
        invite_quota.take(tmp_path, one, EVE.me, EPOCH)
    invite_quota.take(tmp_path, other, EVE.me, EPOCH)
    assert invite_quota.used(tmp_path) == {one.key.hex(): {ADA.me, BOB.me}, other.key.hex(): {EVE.me}}


@pytest.mark.parametrize("end", [b"", b'\xff"}\n', b'","peer":' + b"[" * 100_000 + b"\n"])
def test_a_line_that_a_crash_cut_off_or_a_disk_changed_is_no_use_and_spoils_none(
    tmp_path: Path, end: bytes
) -> None:
    one = word(1).delegation
    (tmp_path / invite_quota.USED).write_bytes(b'{"invite":"' + one.key.hex().encode() + end)
    invite_quota.take(tmp_path, one, ADA.me, EPOCH)
    assert invite_quota.used(tmp_path) == {one.key.hex(): {ADA.me}}


@pytest.mark.parametrize("final", [False, True])
def test_who_has_the_owners_key_makes_a_membership_of_a_claim_and_nobody_else(
    tmp_path: Path, final: bool
) -> None:
    made = word(1, final)

    async def scene() -> list[Membership | str]:
        said: list[Membership | str] = []
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = still_host(network, "seed", Role.SEED, trust=trust())
            learner = still_host(network, "learner", Role.LEARNER, trust=trust())
            grants = granter(OWNER, "lab", tmp_path)
            mail = {who: network.ports(who.me, lambda kind: 0.0).mail for who in (ADA, BOB)}
            async with (
                MembershipRenewal(seed, seed.disk, tmp_path, renewer(OWNER, "lab"), grants).running(),
                MembershipRenewal(learner, learner.disk, tmp_path, renewer(OWNER.public, "lab")).running(),
            ):
                for who, asked in ((ADA, "learner"), (ADA, "seed"), (BOB, "seed"), (ADA, "seed")):
                    claim = wire.encode(invite.admit(made, who.me))
                    try:
                        answer = await mail[who].send(PeerId(asked), "renew", claim)
                        said.append(wire.decode(answer, Membership))
                    except Refused as error:
                        said.append(str(error))
        return said

    nobody, first, second, again = run(scene())
    assert isinstance(nobody, str) and "owner.key does" in nobody
    assert isinstance(second, str) and second.startswith(invite_quota.TAKEN)
    assert isinstance(first, Membership) and isinstance(again, Membership)
    assert trust().objection(ADA.me, Role.LEARNER, first, EPOCH) is None
    assert first.origin == link(made.delegation.key) != link(first.delegation.key)
    assert (first.delegation.expires == made.delegation.expires) is final and first.delegation.final is final


def test_the_list_of_words_says_how_many_uses_are_left(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(lab.path)]
    assert cli.main(["invite", "--role", "learner", "--uses", "3", "--note", "class", *folder]) == 0
    given = invite.read(capsys.readouterr().out, time.time()).delegate
    assert given is not None and given.delegation.uses == 3
    invite_quota.take(lab.path, given.delegation, ADA.me, time.time())
    assert cli.main(["invite", "--list", "--json", *folder]) == 0
    left = {one["note"]: one["uses_left"] for one in json.loads(capsys.readouterr().out)}
    assert left == {"class": 2, "printed by `swarm start`": None}
    assert cli.main(["invite", "--list", *folder]) == 0
    assert "  any  " in capsys.readouterr().out


def test_only_the_owner_makes_words_for_a_number_of_uses(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.path / "owner.key").unlink()
    assert cli.main(["invite", "--role", "learner", "--uses", "1", "--folder", str(lab.path)]) == 5
    assert "has no owner.key, which --expires and --uses need" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "many", "65536"])
def test_a_number_of_uses_is_a_number(
    number: str, lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["invite", "--uses", number, "--folder", str(lab.path)])
