"""An auditor joins a run of processes by its invite, and replays what strangers send to a learner."""

from __future__ import annotations

from pathlib import Path

from swarm_processes import UNHURRIED, started_swarm, swarm

from swarm import events
from swarm.protocol import Phase, Role
from swarm.types import Beat


def test_an_auditor_that_joins_by_its_word_replays_what_strangers_send_to_a_learner(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed()
        made = swarm("invite", "--role", "auditor", "--folder", str(house.folder))
        assert made.returncode == 0, made.stderr
        house.join("learner")
        word, home = made.stdout.strip(), tmp_path / "auditor"
        auditor = house.run("auditor", "join", word, "--folder", str(home), folder=home)
        house.join("sampler", *UNHURRIED, folder=tmp_path / "stranger")
        house.wait_until(lambda: auditor.saw(events.Started), 90, "the auditor did not start")
        honest = house.wait_until(
            lambda: (
                seen
                if len(seen := seed.saw(events.Audited, peer=auditor.peer, finding="honest")) > 8
                else None
            ),
            150,
            "the seed heard of no replay of the auditor",
        )
        assert all(event.until == 0 for event in honest)

        def beats() -> list[Beat]:
            return [event.beat for event in seed.saw(events.Heard) if event.subject == auditor.peer]

        # A replay is told at once, its count with the next heartbeat.
        house.wait_until(
            lambda: beats()[-1].phase is Phase.AUDITING and beats()[-1].done > 0,
            30,
            "no heartbeat of the auditor says what it replayed",
        )
        assert {beat.role for beat in beats()} == {Role.AUDITOR}
        assert not seed.saw(events.Rejected)
