"""A private run: the invited train as in a public one; who only knows the run and an address is turned
away."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, admitted, started_swarm, swarm

from swarm import events
from swarm.membership import invite
from swarm.membership.identity import open_key
from swarm.membership.invite import Invite
from swarm.net.libp2p.node import Node
from swarm.net.ports import NetError, Refused
from swarm.protocol import Role, Service
from swarm.settings.config import Listen


def test_the_invited_train_and_a_word_without_the_owners_signature_opens_nothing(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed("run.private=true")
        learner, sampler = (
            house.join("learner"),
            house.join("sampler", *UNHURRIED, folder=tmp_path / "elsewhere"),
        )
        house.wait_until(
            lambda: learner.saw(events.Started) and sampler.saw(events.Started),
            60,
            "the invited did not start",
        )
        house.wait_until(
            lambda: admitted(learner, sampler.peer) >= 8, 40, "the sampler's groups were not admitted"
        )
        house.wait_until(
            lambda: any(e.release.version >= 2 for e in seed.saw(events.Released)), 30, "nothing was learned"
        )

        said = invite.read(house.invite("sampler"), time.time())
        unsigned = invite.make(said.run, said.addresses, Role.SAMPLER)
        ran = swarm("join", unsigned, "--folder", str(tmp_path / "stranger"), timeout=150.0)
        assert ran.returncode == 5, ran.stderr
        assert "an invite that makes members of it" in ran.stderr and "swarm invite --role" in ran.stderr
        answered = asyncio.run(answers_to_a_stranger(said, tmp_path / "strangers-key"))
        assert not answered, "who has the run's digest and an address has no more than these"


async def answers_to_a_stranger(word: Invite, key: Path) -> set[Service]:
    """Services by which the seed of this word answers somebody without a membership."""
    listen = Listen(host="127.0.0.1", dial_only=True)
    node = await Node.start(open_key(key), key, word.run, listen, word.addresses, lambda *_: None)
    answered = set()
    try:
        for service in Service:
            try:
                await node.mail.send(next(iter(node.peers())), service, b"", timeout=20)
                answered.add(service)
            except Refused as refusal:
                # what is asked for there is a membership, and an empty message is none
                if "private" not in str(refusal) and service is not Service.RENEW:
                    answered.add(service)
            except NetError:
                continue  # it does not serve that one
    finally:
        await node.close()
    return answered


def modes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Mode of each file and folder that is no link. One that a peer renames meanwhile is left out."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            if not path.is_symlink():
                yield path, path.lstat().st_mode


def test_no_other_user_of_the_machine_reads_a_word_or_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o022)  # as most machines have it; the programs inherit it
    try:
        with started_swarm(tmp_path) as house:
            (house.folder / "logs").mkdir(parents=True)
            (house.folder / "logs" / "of-an-older-version.log").write_text("a prompt\n")
            seed = house.seed("run.private=true")
            words = [house.invite(role) for role in ("learner", "sampler")]
            learner = house.join("learner", folder=tmp_path / "learner")
            monkeypatch.setenv("SWARM_WORD", words[1])
            sampler = house.run(
                *("sampler", "join", "--folder", str(tmp_path / "sampler")),
                *("--set", "peer.delay.upload.law=constant", "--set", "peer.delay.upload.seconds=0.3"),
                folder=tmp_path / "sampler",
            )
            monkeypatch.delenv("SWARM_WORD")
            house.wait_until(
                lambda: any(event.release.version >= 3 for event in seed.saw(events.Released)),
                120,
                "nothing was learned",
            )
            for program in (seed, learner, sampler):
                for process in program.tree():
                    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
                    assert not [word for word in words if word[:40] in shown or word[-40:] in shown], shown
            assert not [word for word in words if word in seed.log.read_text()], "a log has other readers"
            for folder in (house.folder, tmp_path / "learner", tmp_path / "sampler"):
                found = dict(modes(folder))
                assert len(found) > 20
                assert not {path: f"{mode:o}" for path, mode in found.items() if mode & 0o077}
    finally:
        os.umask(before)
