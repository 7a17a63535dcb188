"""A joiner's terminal, its log and `swarm why`, from the first line to the sum: real processes."""

import signal
from pathlib import Path

from swarm_processes import SETTINGS, UNHURRIED, Program, started_swarm, swarm

from swarm import events
from swarm.protocol import Phase

IN_ORDER = (
    "loading the program",
    "dialling the invite's addresses",
    "dialled /ip4/127.0.0.1/tcp/",
    "files of the run",
    "joined run e2e",
    "swarm why --folder",
    "loading the engine",
    "groups sent",
    "leaving: finishing what is at hand",
    "this sampler gave",
)
"""What is said, from the first second to the last."""


def waits(sampler: Program) -> bool:
    beats = [event.beat for event in sampler.saw(events.Heard) if event.subject == event.peer]
    return bool(beats) and beats[-1].phase is Phase.NO_CREDIT


def why(sampler: Program) -> tuple[int, str]:
    ran = swarm("why", "--folder", str(sampler.folder))
    return ran.returncode, ran.stdout


def test_a_joiner_says_what_it_does_and_why_it_is_idle_from_its_first_line_to_its_sum(tmp_path: Path) -> None:
    with started_swarm(tmp_path, SETTINGS) as it:
        it.seed()
        sampler = it.join("sampler", *UNHURRIED, folder=tmp_path / "helper")
        it.wait_until(lambda: waits(sampler), 120, "the sampler does not wait for a learner")
        code, said = why(sampler)
        assert code == 4 and "no learner" in said.lower() and f"process {sampler.pid}" in said
        learner = it.join("learner", folder=tmp_path / "other")
        it.wait_until(lambda: sampler.saw(events.Sampled), 120, "the sampler did not begin")
        it.wait_until(lambda: why(sampler)[0] == 0, 60, "a sampler that works is told to be idle")
        sampler.signal(signal.SIGINT)
        assert sampler.process.wait(60) == 130
        code, said = why(sampler)
        assert code == 3 and "does not run" in said and "as it was asked to" in said
        terminal = sampler.log.read_text()
        places = [terminal.find(words) for words in IN_ORDER]
        assert -1 not in places and places == sorted(places), terminal
        log = (tmp_path / "helper" / "peers" / "sampler-1" / "log").read_text()
        assert all(words in log for words in IN_ORDER[1:]), log
        for process in learner.tree():  # as systemd does by default
            process.terminate()
        assert learner.process.wait(60) == 143
        beneath = "go-libp2p"
        assert beneath not in learner.log.read_text()
        assert beneath in (tmp_path / "other" / "peers" / "learner-1" / "log").read_text()
