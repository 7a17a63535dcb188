"""A run between homes behind NATs (tests/support/home_networks.py) and one machine with a public address."""

from pathlib import Path

from home_networks import internet
from swarm_processes import SETTINGS, UNHURRIED, admitted, averaged, started_swarm

from swarm import events

ANYWHERE = SETTINGS.replace('host = "127.0.0.1"', 'host = "0.0.0.0"')


def test_two_learners_and_a_sampler_in_three_homes_train_together(tmp_path: Path) -> None:
    with internet() as net, started_swarm(tmp_path, ANYWHERE) as house:
        seed = house.seed(wrap=net.machine().inside)
        learners = [
            house.join("learner", folder=tmp_path / f"learner-{n}", wrap=net.home().inside) for n in range(2)
        ]
        sampler = house.join("sampler", *UNHURRIED, folder=tmp_path / "sampler", wrap=net.home().inside)
        everybody = [*learners, sampler]
        house.wait_until(lambda: all(one.saw(events.Started) for one in everybody), 120, "not all started")
        house.wait_until(lambda: averaged(learners[0], learners), 120, "the homes did not average")
        house.wait_until(
            lambda: all(admitted(one, sampler.peer) for one in learners), 120, "a home took no group"
        )
        trained = max(event.version for event in learners[0].saw(events.Trained))
        house.wait_until(
            lambda: any(event.version >= trained for event in sampler.saw(events.Adopted)),
            120,
            "the sampler has no release of the homes",
        )
        house.wait_until(
            lambda: any(
                link.relayed
                for one in learners
                for event in one.saw(events.Transferred)
                for peer, link in event.links.items()
                if peer in {other.peer for other in everybody}
            ),
            60,
            "no link is told as relayed",
        )
        assert seed.process.poll() is None


def test_a_seed_alone_at_home_says_before_its_words_how_far_they_reach(tmp_path: Path) -> None:
    with internet() as net, started_swarm(tmp_path, ANYWHERE) as house:
        home = net.home()
        seed = house.seed("peer.listen.port=31337", wrap=home.inside)
        house.wait_until(lambda: "swarm join" in seed.log.read_text(), 60, "no word")
        said, _, words = seed.log.read_text().partition("swarm join")
        assert f"{home.address} is an address of a private network" in said and "TCP port 31337" in said
        assert "private network" not in words
