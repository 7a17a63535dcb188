"""Memberships end, and are renewed while the owner allows it: months of virtual time, and the words of `swarm
invite`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from nouns import beat
from private_labs import lab
from still_host import still_host

from peers import cli
from peers.build.joining import invitations
from peers.build.run_folder import RunFolder
from peers.runtime import peer_folder
from peers.runtime.membership.renewal import DAY, MembershipRenewal, ending, renewer
from peers.runtime.watching.status_line import sentence
from swarm import events
from swarm.core import revocation
from swarm.core.membership import Trust
from swarm.core.revocation import LINKS, link, named
from swarm.frames import wire
from swarm.frames.run_types import Membership, Revocation
from swarm.membership import identity, invite
from swarm.membership.invite import InviteError
from swarm.net.memory.network import EPOCH, MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Phase, Role
from swarm.settings.config import Config, DelayLaw, Run
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

__all__ = ["lab"]

OWNER = invite.keyring(bytes(range(32)))
SEED, LEARNER = PeerId("seed"), PeerId("learner")


class Peer:
    """A host that does not run, with a membership of the run's owner."""

    def __init__(
        self,
        network: MemoryNetwork,
        me: PeerId,
        role: Role,
        lasts: float,
        peer_folder: Path,
        final: bool = False,
    ) -> None:
        given = invite.admit(invite.delegate(OWNER, "lab", role, int(EPOCH + lasts), final), me)
        trust = Trust("lab", OWNER.public, False, identity.verify)
        self.told: list[events.Event] = []
        self.host = still_host(network, me, role, Config(run=Run(name="lab")), trust=trust, membership=given)
        self.host.bus.add(self.told.append)
        self.renewal = MembershipRenewal(
            self.host, self.host.disk, peer_folder, renewer(OWNER, "lab") if role is Role.SEED else None
        )

    def hears(self, peer: PeerId) -> None:
        now = self.host.now()
        told = beat(name=peer, role=Role.SEED, state="serving", phase=Phase.SERVING, at=now)
        self.host.roster.receive(peer, told, now)

    def objection(self, day: float) -> str | None:
        me, role, mine = self.host.ports.me, self.host.who.role, self.host.frames.membership
        return Trust("lab", OWNER.public, False, identity.verify).objection(me, role, mine, EPOCH + day * DAY)


def months(
    tmp_path: Path, days: int, seed_for: int, lasts: float = invite.LIFETIME, final: bool = False
) -> tuple[Peer, Peer]:
    """A learner beside a seed that is there for `seed_for` days."""

    async def scene() -> tuple[Peer, Peer]:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = Peer(network, SEED, Role.SEED, invite.LIFETIME, tmp_path / "seed")
            learner = Peer(network, LEARNER, Role.LEARNER, lasts, tmp_path / "learner", final)
            learner.hears(SEED)
            async with learner.renewal.running():
                async with seed.renewal.running():
                    await learner.host.ports.clock.sleep(seed_for * DAY)
                network.crash(SEED)
                await learner.host.ports.clock.sleep((days - seed_for) * DAY)
            return seed, learner

    return run(scene())


def test_a_member_that_runs_for_months_is_renewed_and_so_is_its_seed(tmp_path: Path) -> None:
    seed, learner = months(tmp_path, days=100, seed_for=100)
    assert learner.objection(100) is None and seed.objection(100) is None
    assert not [event for event in learner.told if isinstance(event, events.Faulted)]
    kept = peer_folder.membership(tmp_path / "learner")
    assert kept == learner.host.frames.membership and kept is not None
    assert kept.delegation.expires > EPOCH + 100 * DAY


def test_a_week_before_its_end_a_member_whom_nobody_renews_says_so(tmp_path: Path) -> None:
    _, learner = months(tmp_path, days=25, seed_for=1)
    told = [event for event in learner.told if isinstance(event, events.Faulted)]
    assert told and told[0].part == "membership" and "ends in 7 days" in told[0].detail
    assert EPOCH + 23 * DAY <= told[0].at < EPOCH + 23.2 * DAY
    now = EPOCH + 25 * DAY
    assert ending(learner.host.frames.membership, now).startswith("its membership ends in 5 days")
    assert not ending(learner.host.frames.membership, EPOCH + 20 * DAY)
    assert "ends in 1 hour:" in ending(learner.host.frames.membership, EPOCH + 30 * DAY - 4000)
    assert sentence(learner.host.status, Role.LEARNER, now)


def test_a_member_that_was_given_a_longer_word_renews_others_without_any_seed(tmp_path: Path) -> None:
    longer = invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 90 * DAY))
    friend = PeerId("friend")

    async def scene() -> Peer:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = Peer(network, LEARNER, Role.LEARNER, 12 * DAY, tmp_path / "learner")
            other = Peer(network, friend, Role.LEARNER, 12 * DAY, tmp_path / "friend")
            other.renewal = MembershipRenewal(
                other.host,
                other.host.disk,
                tmp_path / "friend",
                renewer(OWNER.public, "lab", {Role.LEARNER: longer}.get),
            )
            told = beat(name=friend, role=Role.LEARNER, at=EPOCH)
            learner.host.roster.receive(friend, told, learner.host.now())
            async with learner.renewal.running(), other.renewal.running():
                await learner.host.ports.clock.sleep(20 * DAY)
            assert other.objection(89) is None, "its own is renewed by its word"
            return learner

    learner = run(scene())
    assert learner.objection(89) is None and learner.objection(91) is not None
    assert not [event for event in learner.told if isinstance(event, events.Faulted)]


def test_a_member_recovers_when_the_seed_is_back_before_the_end(tmp_path: Path) -> None:
    async def scene() -> Peer:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            learner = Peer(network, LEARNER, Role.LEARNER, 5 * DAY, tmp_path / "learner")
            async with learner.renewal.running():
                await learner.host.ports.clock.sleep(DAY)
                async with Peer(
                    network, SEED, Role.SEED, invite.LIFETIME, tmp_path / "seed"
                ).renewal.running():
                    learner.hears(SEED)
                    await learner.host.ports.clock.sleep(DAY)
            return learner

    learner = run(scene())
    assert [type(event) for event in learner.told if isinstance(event, events.Faulted | events.Recovered)][
        -1
    ] is events.Recovered
    assert learner.objection(2) is None and not ending(learner.host.frames.membership, EPOCH + 2 * DAY)


@pytest.mark.parametrize("minutes", [1, 10, 40, 120])
def test_a_member_with_little_time_left_asks_again_before_its_end(tmp_path: Path, minutes: int) -> None:
    """The seed is heard after the first try."""

    async def scene() -> Peer:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = Peer(network, SEED, Role.SEED, invite.LIFETIME, tmp_path / "seed")
            learner = Peer(network, LEARNER, Role.LEARNER, 60.0 * minutes, tmp_path / "learner")
            async with learner.renewal.running(), seed.renewal.running():
                await learner.host.ports.clock.sleep(2)
                learner.hears(SEED)
                await learner.host.ports.clock.sleep(3 * 3600)
            return learner

    assert run(scene()).objection(1 / 8) is None


def test_a_renewed_membership_that_a_full_disk_refused_is_on_it_when_there_is_room(tmp_path: Path) -> None:
    async def scene() -> Peer:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = Peer(network, SEED, Role.SEED, invite.LIFETIME, tmp_path / "seed")
            learner = Peer(network, LEARNER, Role.LEARNER, 5 * DAY, tmp_path / "learner")
            learner.hears(SEED)
            (tmp_path / "learner").touch()  # where its folder is to be
            async with learner.renewal.running(), seed.renewal.running():
                await learner.host.ports.clock.sleep(DAY)
                (tmp_path / "learner").unlink()
                await learner.host.ports.clock.sleep(DAY / 8)
            return learner

    learner = run(scene())
    assert peer_folder.membership(tmp_path / "learner") == learner.host.frames.membership
    told = [event for event in learner.told if isinstance(event, events.Faulted | events.Recovered)]
    assert {event.part for event in told} == {"disk"} and isinstance(told[-1], events.Recovered)


def test_nobody_renews_a_membership_that_the_owner_gave_an_end(tmp_path: Path) -> None:
    _, learner = months(tmp_path, days=9, seed_for=9, lasts=8 * DAY, final=True)
    assert "expired" in (learner.objection(9) or "")
    assert any(
        "end of its own" in event.detail for event in learner.told if isinstance(event, events.Faulted)
    )


def test_a_seed_renews_nobody_whose_membership_is_not_good(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        refused = []
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            seed = Peer(network, SEED, Role.SEED, invite.LIFETIME, tmp_path / "seed")
            member = Peer(network, LEARNER, Role.LEARNER, invite.LIFETIME, tmp_path / "learner")
            thief = network.ports(PeerId("thief"), lambda kind: 0.0)
            good = member.host.frames.membership
            stranger = invite.admit(
                invite.delegate(invite.keyring(bytes(32)), "lab", Role.LEARNER, int(EPOCH + DAY)), thief.me
            )
            sampler = invite.admit(
                invite.delegate(invite.keyring(bytes(32)), "lab", Role.SAMPLER, int(EPOCH + DAY)), thief.me
            )
            async with seed.renewal.running():
                for what in (wire.encode(good), wire.encode(stranger), wire.encode(sampler), b"junk"):
                    try:
                        await thief.mail.send(SEED, "renew", what)
                    except Exception as error:
                        refused.append(str(error))
        return refused

    refused = run(scene())
    assert len(refused) == 4
    assert "another peer" in refused[0] and "owner" in refused[1]
    assert "needs no membership" in refused[2] and "not a" in refused[3]


# --- the word by which a peer came --------------------------------------------------------------------------

ADA, WORD, BOBS = (
    invite.keyring(bytes([1]) * 32),
    *(invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 9 * DAY)) for _ in range(2)),
)


def renewed(origin: bytes = b"", *, by: invite.Delegate | None = None) -> Membership:
    """Ada's, who came by WORD, after the owner's machine renewed it; before that by another member's word."""
    mine = invite.admit(WORD, ADA.me, origin)
    if by is not None:
        mine = renewer(OWNER.public, "lab", lambda _: by)(ADA.me, mine, EPOCH)
    return renewer(OWNER, "lab")(ADA.me, mine, EPOCH)


def out_with(word: invite.Delegate, mine: Membership) -> bool:
    """Whether who revokes the word reaches this membership."""
    trust = Trust("lab", OWNER.public, False, identity.verify)
    assert trust.objection(ADA.me, Role.LEARNER, mine, EPOCH) is None
    entries = [Revocation(at=int(EPOCH), invite=word.delegation.key)]
    trust.revocations.take(revocation.sealed("lab", 1, entries, OWNER.sign))
    return trust.objection(ADA.me, Role.LEARNER, mine, EPOCH) is not None


@pytest.mark.parametrize(
    "said",
    [b"", b"x" * 32, b"x" * 64, b"x", BOBS.delegation.key, 2 * BOBS.delegation.key, bytes(range(63))],
    ids=len,
)
def test_a_renewed_member_is_out_with_its_word_whatever_it_says_of_where_it_came_from(said: bytes) -> None:
    once = renewed(said)
    again = renewer(OWNER, "lab")(ADA.me, once, EPOCH)
    assert out_with(WORD, once) and out_with(WORD, again)
    assert named(again, OWNER.public)[0] == link(WORD.delegation.key), "the one that is proven"


def test_who_was_renewed_by_a_member_s_word_is_out_with_either_word() -> None:
    longer = invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 90 * DAY))
    for mine in (renewed(by=longer), renewer(OWNER, "lab")(ADA.me, renewed(by=longer), EPOCH)):
        assert out_with(longer, mine) and out_with(WORD, mine) and not out_with(BOBS, mine)
        assert named(mine, OWNER.public) == (link(longer.delegation.key), link(WORD.delegation.key))


def words(count: int) -> list[invite.Delegate]:
    """Each of which ends a day later than the one before."""
    ends = (int(EPOCH + (10 + number) * DAY) for number in range(count))
    return [invite.delegate(OWNER, "lab", Role.LEARNER, end) for end in ends]


def by(word: invite.Delegate, mine: Membership) -> Membership:
    return renewer(OWNER.public, "lab", lambda _: word)(ADA.me, mine, EPOCH)


@pytest.mark.parametrize("owners", [(), (0,), (1,), (3,), (0, 2, 4)], ids=str)
def test_a_way_is_kept_whole_and_each_of_its_words_ends_it(owners: tuple[int, ...]) -> None:
    """Of one that members' words renewed, and the owner's machine before some of them."""
    mine, ways = invite.admit(WORD, ADA.me), words(5)
    came = [WORD]
    for number, word in enumerate(ways):
        if number in owners:
            mine = renewer(OWNER, "lab")(ADA.me, mine, EPOCH - 25 * DAY)  # it ends before the words do
        mine = by(word, mine)
        came.append(word)
        keys = tuple(link(each.delegation.key) for each in reversed(came))
        assert named(mine, OWNER.public) == keys
        assert all(out_with(each, mine) for each in came) and not out_with(BOBS, mine)
    assert named(renewer(OWNER, "lab")(ADA.me, mine, EPOCH), OWNER.public) == keys


@pytest.mark.parametrize("made_up", range(65))
def test_links_that_a_member_makes_up_wash_no_revocation_off(made_up: int) -> None:
    mine = invite.admit(WORD, ADA.me, bytes(range(made_up)))
    for word in words(LINKS + 2):
        try:
            mine = by(word, mine)
        except Refused as refused:
            assert "owner.key alone renews it" in str(refused)
            mine = renewer(OWNER, "lab")(ADA.me, mine, EPOCH - 25 * DAY)  # it ends before the words do
        assert out_with(WORD, mine)


def test_beyond_so_many_words_the_owner_alone_renews_and_forgets_none() -> None:
    mine, ways = invite.admit(WORD, ADA.me), words(LINKS)
    for word in ways[:-1]:
        mine = by(word, mine)
    with pytest.raises(Refused, match=f"came by {LINKS} invites"):
        by(ways[-1], mine)
    longer = invite.lengthen(OWNER, "lab", ways[0], int(EPOCH + 60 * DAY))
    mine = by(longer, mine)  # one of its own is no other link
    mine = renewer(OWNER, "lab")(ADA.me, mine, EPOCH)
    assert all(out_with(each, mine) for each in (WORD, *ways[:-1]))
    assert wire.decode(wire.encode(mine), Membership) == mine
    mine = renewer(OWNER, "lab")(ADA.me, mine, EPOCH)
    assert len(named(mine, OWNER.public)) == LINKS
    with pytest.raises(Refused, match=f"came by {LINKS} invites"):
        by(invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 90 * DAY)), mine)


def test_nobody_is_renewed_without_a_word_that_ends_later_and_has_no_end_of_its_own() -> None:
    mine = invite.admit(WORD, ADA.me)
    for by in (None, BOBS, invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 90 * DAY), True)):
        renew = renewer(OWNER.public, "lab", {Role.LEARNER: by}.get)
        with pytest.raises(Refused, match="ends no later" if by is BOBS else "neither the owner's key nor"):
            renew(ADA.me, mine, EPOCH)


def test_who_was_renewed_by_earlier_software_is_out_with_its_word() -> None:
    made = invite.delegate(OWNER, "lab", Role.LEARNER, int(EPOCH + 30 * DAY))
    before = invite.admit(made, ADA.me, WORD.delegation.key)
    again = renewer(OWNER, "lab")(ADA.me, before, EPOCH)
    assert out_with(WORD, before) and out_with(WORD, again)
    assert out_with(WORD, renewer(OWNER, "lab")(ADA.me, again, EPOCH))


def test_nobody_but_the_owner_makes_a_membership_that_is_renewed_by_the_owner() -> None:
    forged = msgspec.structs.replace(renewed(), origin=BOBS.delegation.key)
    why = Trust("lab", OWNER.public, False, identity.verify).objection(ADA.me, Role.LEARNER, forged, EPOCH)
    assert why is not None and "not signed by its delegation" in why


# --- words --------------------------------------------------------------------------------------------------


def test_invite_prints_a_fresh_word_and_says_that_nobody_listens(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["invite", "--role", "learner", "--folder", str(lab.path)]) == 0
    said = capsys.readouterr()
    got = invite.read(said.out, time.time())
    assert got.delegate is not None and not got.delegate.delegation.final
    assert abs(got.expires - time.time() - invite.LIFETIME) < 60
    assert "no peer answers this invite now, as far as this folder knows: start a peer" in said.err
    with lab.peer_folder("seed"):
        cli.main(["invite", "--role", "learner", "--folder", str(lab.path)])
        assert not capsys.readouterr().err


def test_a_word_with_an_end_of_its_own_gives_memberships_that_end_with_it(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["invite", "--role", "learner", "--expires", "12h", "--json", "--folder", str(lab.path)])
        == 0
    )
    got = invite.read(json.loads(capsys.readouterr().out)["invite"], time.time())
    assert abs(got.expires - time.time() - 12 * 3600) < 60
    assert got.delegate is not None and got.delegate.delegation.final
    kept = invite.read((lab.path / "invites" / "learner").read_text(), time.time())
    assert kept.expires > got.expires, "the word for this machine's own peers stays as it is"


def test_what_renewing_a_word_does_not_do_is_refused(
    lab: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    def invited(*words: str) -> tuple[int, str, str]:
        code = cli.main(["invite", "--folder", str(lab.path), *words])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err

    _, endless, _ = invited("--role", "learner")
    _, ending_, _ = invited("--role", "learner", "--expires", "7d")
    for words, code, why in (
        (("--renew", endless, "--expires", "60d"), 2, "do not end with it"),
        (("--renew", endless, "--uses", "3"), 2, "leave --role and --uses out"),
        (("--renew", endless, "--role", "seed"), 2, "leave --role and --uses out"),
        (("--renew", ending_, "--expires", "1h"), 5, "`swarm revoke INVITE`"),
    ):
        got, out, err = invited(*words)
        assert (got, out) == (code, "") and why in err
    code, longer, _ = invited("--renew", ending_, "--expires", "9d")
    got = invite.read(longer, time.time())
    assert code == 0 and abs(got.expires - time.time() - 9 * DAY) < 60
    assert got.delegate is not None and got.delegate.delegation.final
    (lab.path / "owner.key").unlink()
    assert invited("--renew", longer, "--expires", "12d")[0] == 5


@pytest.mark.parametrize("time_", ["", "7", "d", "-1d", "1.5h", "0d", "99999d", "tomorrow"])
def test_an_expiry_that_is_no_time_is_refused(
    lab: RunFolder, time_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["invite", "--expires", time_, "--folder", str(lab.path)])
    assert "not a time such as 30m, 12h or 7d" in capsys.readouterr().err or time_ == "-1d"


def test_a_peer_comes_back_with_an_ended_word_while_its_membership_lasts(lab: RunFolder) -> None:
    word, now = (lab.path / "invites" / "learner").read_text(), time.time()
    later = now + invite.LIFETIME + DAY
    with pytest.raises(InviteError, match="expired"):
        invitations.usable_invite(word, lab.path, later)
    peer = invite.keyring(bytes(32)).me
    renewed = renewer(lab.owner(), lab.name)(
        peer, lab.member(invite.keyring(bytes(32)), Role.LEARNER), now + 20 * DAY
    )
    peer_folder = lab.path / "peers" / "learner-1"
    peer_folder.mkdir(parents=True)
    (peer_folder / "membership").write_bytes(wire.encode(renewed))
    assert invitations.usable_invite(word, lab.path, later).run == lab.digest
    with pytest.raises(InviteError, match="expired"):
        invitations.usable_invite(word, lab.path, now + 51 * DAY)
