"""The status line of `swarm join`: what a person at the terminal is told of a peer, and when a log is."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from nouns import beat, release
from still_host import still_host

from peers.runtime import idle
from peers.runtime.host import Host
from peers.runtime.status import PeerStatus
from peers.runtime.status_line import REPEATED, live_line, sentence
from swarm.config import DelayLaw
from swarm.net.in_memory import EPOCH, MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

ROOT = Path(__file__).parents[2]


def status(phase: Phase, **more: int) -> PeerStatus:
    made = PeerStatus(phase=phase, **more)
    made.tokens.add(300.0, 0.0)
    return made


@pytest.mark.parametrize(
    ("role", "told", "why", "said"),
    [
        (
            Role.SAMPLER,
            PeerStatus(phase=Phase.NO_POLICY),
            "no peer has given a policy yet",
            (
                "no policy yet, 0 groups sent, 0 admitted, credit 8; waiting for a policy: no peer has given"
                " a policy yet"
            ),
        ),
        (
            Role.SAMPLER,
            status(Phase.SAMPLING, version=41, admitted=1312, inbox=3),
            "",
            "version 41, 1,315 groups sent, 1,312 admitted, 10 tokens/s, credit 8; sampling",
        ),
        (
            Role.SAMPLER,
            status(Phase.NO_CREDIT, version=3, admitted=9, refused=2),
            "no learner is heard",
            (
                "version 3, 11 groups sent, 9 admitted, 2 refused, 10 tokens/s, credit 8; waiting for credit:"
                " no learner is heard"
            ),
        ),
        (
            Role.LEARNER,
            status(Phase.GATHERING, version=7, admitted=80, done=64),
            "",
            "version 7, 80 groups admitted, 64 trained, 10 tokens/s, credit 8; gathering",
        ),
        (
            Role.EVALUATOR,
            status(Phase.EVALUATING, version=20, done=3),
            "",
            "version 20, 3 versions evaluated, 10 tokens/s, credit 8; evaluating",
        ),
        (
            Role.AUDITOR,
            status(Phase.AUDITING, version=20, done=3),
            "",
            "version 20, 3 groups replayed, 10 tokens/s, credit 8; auditing",
        ),
    ],
)
def test_the_line_says_version_groups_and_why_it_is_idle(
    role: Role, told: PeerStatus, why: str, said: str
) -> None:
    assert sentence(told, role, 29.9, 8, why) == said


def test_the_line_says_how_far_behind_a_peer_is_and_what_takes_most_of_the_time() -> None:
    told = status(Phase.SAMPLING, version=41)
    told.lags(versions=2.25, download=0.5, generation=3.0)
    assert "2.2 versions behind, mostly generation (3.0 s)" in sentence(told, Role.SAMPLER, 0.0)
    assert "groups 2.2 versions old" in sentence(told, Role.LEARNER, 0.0)


def short(host: Host) -> str:
    cause = idle.of(host)
    return cause.short if cause is not None else ""


def test_a_sampler_without_credit_says_whether_learners_are_there_full_or_asked_again_later() -> None:
    async def scene() -> None:
        mine, learner = host(), PeerId("learner-0")
        mine.status.phase = Phase.NO_POLICY
        assert short(mine) == "no learner and no seed is heard"
        mine.status.phase = Phase.NO_CREDIT
        assert short(mine) == "no learner is heard"
        mine.roster.hear(learner, beat(credit=0, at=mine.now()), mine.now())
        assert short(mine) == "the learners have all the groups that they can use"
        assert mine.roster.start_pause(learner, mine.steady(), mine.steady())
        assert "the learners took no group, and are asked again in" in short(mine)

    run(scene())


def test_at_its_end_a_sampler_says_what_it_gave_and_how_the_accuracy_went(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scene() -> None:
        mine = host()
        evaluator = PeerId("evaluator-0")
        async with live_line(mine):
            for version, accuracy in ((3, 0.25), (4, 0.5), (5, 0.75)):
                told = beat(role=Role.EVALUATOR, seq=version, accuracy=accuracy, at=mine.now())
                mine.roster.hear(evaluator, told, mine.now())
                new = release(version=version, weights=Digest(f"{version:064x}"), groups=24)
                mine.releases.candidates.hear(new, b"sealed")
                await mine.ports.clock.sleep(2400.0)
            mine.status.admitted, mine.status.handled = 12, 3456

    run(scene())
    said = capsys.readouterr().err.splitlines()[-1]
    share = "25% of what the run trained meanwhile"
    rose = "held-out accuracy 25.0% -> 75.0%"
    assert said == f"this sampler gave 12 groups in 2.0 h (3,456 tokens), {share}; {rose}"


def host() -> Host:
    network = MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))
    return still_host(network, "sampler-0", Role.SAMPLER)


def test_a_log_gets_a_line_at_the_start_with_the_first_policy_and_every_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scene() -> None:
        mine = host()
        async with live_line(mine):
            mine.status.phase = Phase.NO_POLICY
            await mine.ports.clock.sleep(30.0)
            mine.status.version = 4
            for phase in [Phase.SAMPLING, Phase.NO_CREDIT] * 150:
                mine.status.phase = phase
                await mine.ports.clock.sleep(0.5)
            assert mine.now() == EPOCH + 180.0

    run(scene())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("no policy yet") and lines[1].startswith("version 4")
    assert len(lines) == 2 + 150 // REPEATED + 1, "and the sum"


PROGRAM = """
import asyncio, sys
sys.path[:0] = ["tests", "tests/peers"]
from test_status_line import host
from peers.runtime.status_line import live_line
from swarm.protocol import Phase

async def main():
    mine = host()
    async with live_line(mine):
        mine.status.phase = Phase.NO_POLICY
        await asyncio.sleep(1.5)
        mine.status.version, mine.status.phase = 12, Phase.SAMPLING
        print("said meanwhile", file=sys.stderr)
        await asyncio.sleep(1.5)

asyncio.run(main())
"""


def test_on_a_terminal_the_line_changes_in_place_and_stays_below_what_is_said() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as ran:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert ran.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert plain.index("waiting for a policy") < plain.index("said meanwhile") < plain.rindex("version 12")
    assert "\x1b[2K" in shown.decode(), "a line that is out of date is wiped out"
