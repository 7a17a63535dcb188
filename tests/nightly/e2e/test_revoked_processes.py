"""A member of a private run is revoked: its process says so and ends, others obey within half a minute, and
it does not come back. An invite for one use lets one peer in."""

import signal
import time
from pathlib import Path

from swarm_processes import UNHURRIED, admitted, started_swarm, swarm

from peers.build.run_folder import read
from peers.runtime.membership import run_keys
from peers.runtime.membership.run_keys import RunKeys
from swarm import events
from swarm.membership.identity import human_name

WITHIN = 30.0
"""Seconds from `swarm revoke` until everybody obeys."""


def test_a_revoked_sampler_is_out_everywhere_and_stays_out(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed("run.private=true")
        learner = house.join("learner", folder=tmp_path / "learner")
        ada = house.join("sampler", *UNHURRIED, folder=tmp_path / "ada")
        bob = house.join("sampler", *UNHURRIED, folder=tmp_path / "bob")
        house.wait_until(
            lambda: learner.saw(events.Started) and ada.saw(events.Started) and bob.saw(events.Started),
            90,
            "the invited did not start",
        )
        house.wait_until(
            lambda: min(admitted(learner, ada.peer), admitted(learner, bob.peer)) >= 4,
            60,
            "none was admitted",
        )
        name = human_name(ada.peer)
        house.wait_until(
            lambda: any((house.folder / "peers").glob("*/members")), 20, "nobody wrote down who was heard"
        )
        began = time.time()
        ran = swarm("revoke", name, "--folder", str(house.folder))
        assert ran.returncode == 0 and f"{name} ({ada.peer}) is revoked" in ran.stdout, ran.stderr
        assert "1 other that came by it stays" in ran.stdout

        code = ada.process.wait(WITHIN)
        assert code == 5 and "your membership of this run was revoked by its owner" in ada.tail(40)
        lists = [tmp_path / one / "revoked" for one in ("learner", "bob")]
        house.wait_until(lambda: all(one.exists() for one in lists), WITHIN, "not everybody has the list")
        obeyed, ended = max(one.stat().st_mtime for one in lists) - began, time.time() - began
        signed = (house.folder / "revoked").stat().st_mtime - began
        print(f"seconds to the list {signed:.1f}, the last folder {obeyed:.1f}, the peer's end {ended:.1f}")
        assert obeyed < WITHIN

        keys = {one: RunKeys(run_keys.kept(tmp_path / one)) for one in ("run", "learner", "bob", "ada")}
        assert {one: had.epoch for one, had in keys.items()} == {"run": 1, "learner": 1, "bob": 1, "ada": 0}

        before = admitted(learner, bob.peer)
        house.wait_until(
            lambda: admitted(learner, bob.peer) > before, 60, "the other one is not taken any more"
        )
        taken = [e for e in learner.saw(events.Judged, since=began + WITHIN) if e.sampler == ada.peer]
        assert not taken

        words = ["join", house.invite("sampler"), "--as", "sampler", "--folder", str(tmp_path / "ada")]
        for _ in ("with the list", "without it"):
            again = swarm(*words, timeout=150.0)
            assert again.returncode == 5 and "was revoked by its owner" in again.stderr, again.stderr
            (tmp_path / "ada" / "revoked").unlink(missing_ok=True)
        run = read(house.folder)
        assert run is not None and run.revocations.peers == (ada.peer,) and seed.process.poll() is None


def test_an_invite_for_one_use_lets_one_peer_in_and_again(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        house.seed("run.private=true")
        made = swarm("invite", "--role", "sampler", "--uses", "1", "--folder", str(house.folder))
        assert made.returncode == 0, made.stderr
        words = ["join", made.stdout.strip(), "--as", "sampler", "--folder"]
        for _ in range(2):
            ada = house.run("sampler", *words, str(tmp_path / "ada"), folder=tmp_path / "ada")
            house.wait_until(lambda: ada.saw(events.Started), 120, "who has the use did not start")  # noqa: B023
            ada.signal(signal.SIGTERM)
            ada.process.wait(60)
        bob = swarm(*words, str(tmp_path / "bob"), timeout=150.0)
        assert bob.returncode == 5 and "all uses of this invite are taken" in bob.stderr, bob.stderr
