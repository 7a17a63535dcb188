"""The status line of `swarm join`: what a person at the terminal is told of a peer, and when a log is."""

import os
import pty
import re
import subprocess
import sys
from random import Random

import pytest
from nouns import beat, release
from places import ROOT
from status_hosts import host
from still_host import still_host

from peers.runtime.host import Host
from peers.runtime.limits import idle
from peers.runtime.limits.idle import IdleSigns
from peers.runtime.watching.long_work import StageCounts
from peers.runtime.watching.status import Meter, PeerStatus
from peers.runtime.watching.status_line import REPEATED, live_line, sentence
from swarm.net.memory.network import EPOCH, MemoryNetwork
from swarm.protocol import Phase, Role, WorkStage
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, Fetching, PeerId


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
            "no learner answers",
            (
                "version 3, 11 groups sent, 9 admitted, 2 refused, 10 tokens/s, credit 8; waiting for credit:"
                " no learner answers"
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
        (
            Role.OBSERVER,
            PeerStatus(phase=Phase.NO_POLICY, version=-1, mirror=0),
            "",
            "version 0, a mirror, credit 8; waiting for a policy",
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


def test_a_peer_that_is_not_behind_says_nothing_of_it_and_one_that_lost_no_time_of_no_cause() -> None:
    told = status(Phase.SAMPLING, version=41)
    told.lags(versions=0.0, generation=3.0)
    assert "behind" not in sentence(told, Role.SAMPLER, 0.0)
    assert "old" not in sentence(told, Role.LEARNER, 0.0)
    late = status(Phase.SAMPLING, version=41)
    late.lags(versions=1.0)
    assert ", 1.0 versions behind; sampling" in sentence(late, Role.SAMPLER, 29.9)


def test_a_rate_is_that_of_the_last_half_minute_and_ends_with_the_work() -> None:
    meter = Meter()
    assert meter.rate(100.0) == 0.0
    meter.add(30.0, 100.0)
    meter.add(30.0, 110.0)
    assert [meter.rate(now) for now in (110.0, 120.0, 130.0, 135.0)] == [6.0, 3.0, 2.0, 1.0]
    assert meter.rate(141.0) == 0.0
    meter.add(60.0, 200.0)
    assert meter.rate(200.0) == 2.0


def test_what_a_peer_did_is_counted_and_its_pace_and_lags_are_smoothed() -> None:
    told, clock = PeerStatus(), iter([100.0, 103.0, 103.0])
    told.finished(2, 500, 100.0)
    told.finished(1, 100, 101.0)
    assert (told.done, told.handled, told.groups.rate(101.0), told.tokens.rate(101.0)) == (3, 600, 3.0, 600.0)
    with told.computing(lambda: next(clock)):
        pass
    assert told.busy.rate(103.0) == 3.0
    told.learnt(8, 2.0)
    assert told.speed == 4.0
    told.learnt(8, 1.0)
    told.learnt(8, 0.0)
    assert told.speed == pytest.approx(4.8)
    told.lags(versions=2.0, upload=1.0)
    told.lags(versions=3.0)
    assert (told.lag.versions, told.lag.upload) == (2.2, 1.0)


COMES = "fetching version 41, 12 MB of 140 MB"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (IdleSigns(Phase.SAMPLING, 1, 1, COMES), None),
        (IdleSigns(Phase.STARTING, 0, 0, COMES), COMES),
        (IdleSigns(Phase.NO_POLICY, 0, 0, COMES), COMES),
        (IdleSigns(Phase.CATCHING_UP, 1, 1, COMES), COMES),
        (IdleSigns(Phase.CATCHING_UP, 1, 1), "the swarm has a newer policy"),
        (IdleSigns(Phase.NO_POLICY, 0, 0), "no learner or seed answers"),
        (IdleSigns(Phase.NO_POLICY, 1, 0), "no peer has given a policy yet"),
        (IdleSigns(Phase.NO_POLICY, 0, 1), "no peer has given a policy yet"),
        (IdleSigns(Phase.NO_CREDIT, 0, 1, wait=12.0), "no learner answers"),
        (
            IdleSigns(Phase.NO_CREDIT, 1, 0, COMES, 12.4),
            "the learners took no group, and are asked again in 12 s",
        ),
        (IdleSigns(Phase.NO_CREDIT, 1, 0), "the learners have all the groups that they can use"),
        (IdleSigns(Phase.PAUSED, 1, 1, COMES, rests="paused until 18:00"), "paused until 18:00"),
        (IdleSigns(Phase.LIMITED, 1, 1), "it works at other times"),
        (IdleSigns(Phase.GATHERING, 1, 1, rests="paused until 18:00"), "not enough groups yet"),
    ],
)
def test_an_idle_peer_names_what_keeps_it_from_its_work(known: IdleSigns, said: str | None) -> None:
    cause = idle.cause(known)
    assert (cause.short if cause is not None else None) == said


def test_an_engine_that_went_away_is_told_with_its_last_words() -> None:
    cause = idle.cause(IdleSigns(Phase.NO_ENGINE, 1, 1, fault="CUDA out of memory"))
    assert cause is not None and cause.long == "its engine is away: CUDA out of memory"
    assert idle.cause(IdleSigns(Phase.NO_ENGINE, 1, 1)) == idle.AWAY


def short(host: Host) -> str:
    cause = idle.of(host)
    return cause.short if cause is not None else ""


def test_a_sampler_without_credit_says_whether_learners_are_there_full_or_asked_again_later() -> None:
    async def scene() -> None:
        mine, learner = host(), PeerId("learner-0")
        mine.status.phase = Phase.NO_POLICY
        assert short(mine) == "no learner or seed answers"
        mine.status.phase = Phase.NO_CREDIT
        assert short(mine) == "no learner answers"
        mine.roster.receive(learner, beat(credit=0, at=mine.now()), mine.now())
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
                mine.roster.receive(evaluator, told, mine.now())
                new = release(version=version, weights=Digest(f"{version:064x}"), groups=24)
                mine.releases.candidates.receive(new, b"sealed")
                await mine.ports.clock.sleep(2400.0)
            mine.status.admitted, mine.status.handled = 12, 3456

    run(scene())
    said = capsys.readouterr().err.splitlines()[-1]
    share = "25% of what the run trained meanwhile"
    rose = "held-out accuracy 25.0% -> 75.0%"
    assert said == f"this sampler gave 12 groups in 2.0 h (3,456 tokens), {share}; {rose}"


@pytest.mark.parametrize(("seconds", "lasted"), [(14.0, "14 s"), (300.0, "5 min")])
def test_at_its_end_a_short_stay_is_told_in_seconds_or_minutes(
    capsys: pytest.CaptureFixture[str], seconds: float, lasted: str
) -> None:
    async def scene() -> None:
        mine = host()
        async with live_line(mine):
            await mine.ports.clock.sleep(seconds)

    run(scene())
    assert capsys.readouterr().err.splitlines()[-1] == f"this sampler gave 0 groups in {lasted} (0 tokens)"


def test_a_log_gets_a_line_at_the_start_with_the_first_policy_and_every_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scene() -> None:
        mine = host()
        async with live_line(mine):
            mine.status.phase = Phase.NO_POLICY
            await mine.ports.clock.sleep(30.0)
            mine.status.version = 4
            for admitted in range(300):
                mine.status.admitted = admitted
                await mine.ports.clock.sleep(0.5)
            assert mine.now() == EPOCH + 180.0

    run(scene())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("no policy yet") and lines[1].startswith("version 4")
    assert len(lines) == 2 + 150 // REPEATED + 1, "and the sum"


def test_a_log_never_gets_the_same_line_twice_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        mine = host()
        async with live_line(mine):
            mine.status.version, mine.status.phase = 4, Phase.SAMPLING
            await mine.ports.clock.sleep(600.0)
            mine.status.admitted = 1
            await mine.ports.clock.sleep(600.0)

    run(scene())
    *lines, _ = capsys.readouterr().err.splitlines()
    assert [", 1 admitted" in line for line in lines] == [False, True]


def test_the_line_says_how_far_a_peer_is_in_a_long_stage_of_work() -> None:
    told, now = status(Phase.LEARNING, version=7), [0.0]
    done = [0]
    with told.work.within(WorkStage.GRADIENT, lambda: now[0], lambda: StageCounts(done[0], 8)):
        assert sentence(told, Role.LEARNER, 0.0).endswith("; learning")
        now[0], done[0] = 20.0, 2
        said = sentence(told, Role.LEARNER, 20.0)
    assert said.startswith("version 7, gradient 2 of 8 groups (6/min, about 60 s left), 0 groups admitted")


def test_a_log_gets_a_line_as_soon_as_the_first_policy_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scene() -> None:
        mine = host()
        async with live_line(mine):
            await mine.ports.clock.sleep(5.5)
            mine.status.version = 0
            await mine.ports.clock.sleep(1.0)

    run(scene())
    first, policy, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("no policy yet") and policy.startswith("version 0")


@pytest.mark.parametrize(("role", "credit"), [(Role.SAMPLER, 3), (Role.LEARNER, 5)])
def test_the_credit_is_what_learners_give_a_sampler_and_what_a_learner_gives(
    role: Role, credit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> None:
        network = MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1)))
        mine = still_host(network, "mine", role)
        mine.roster.receive(PeerId("learner-0"), beat(credit=3, at=mine.now()), mine.now())
        mine.status.credit = 5
        async with live_line(mine):
            await mine.ports.clock.sleep(0.5)

    run(scene())
    assert f", credit {credit}; " in capsys.readouterr().err


def test_a_log_says_how_much_of_a_release_has_come_and_how_fast(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        mine = host()

        def coming() -> Fetching | None:
            seconds = mine.now() - EPOCH
            if seconds > 35.0:
                return None
            held = int(2e6 * seconds) if seconds < 29.5 else int(1e6)  # the next release begins
            return Fetching(version=4, held=held, size=140_000_000)

        monkeypatch.setattr(mine.releases, "coming", coming)
        async with live_line(mine):
            mine.status.phase = Phase.NO_POLICY
            await mine.ports.clock.sleep(65.0)

    run(scene())
    first, later, after, _ = capsys.readouterr().err.splitlines()
    assert first.endswith("fetching version 4, 0 B of 140 MB")
    assert later.endswith("fetching version 4, 1 MB of 140 MB, 2 MB/s, about 70 s left")
    assert after.endswith("no learner or seed answers")


PROGRAM = """
import asyncio, sys
sys.path[:0] = ["tests/support"]
from status_hosts import host
from peers.runtime.watching.status_line import live_line
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


def on_a_terminal(kind: str) -> str:
    """What PROGRAM shows there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=theirs, env={**os.environ, "TERM": kind}
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
    return shown.decode()


def test_on_a_terminal_the_line_changes_in_place_and_stays_below_what_is_said() -> None:
    shown = on_a_terminal("xterm")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert plain.index("waiting for a policy") < plain.index("said meanwhile") < plain.rindex("version 12")
    assert "\x1b[2K" in shown, "a line that is out of date is wiped out"


def test_on_a_terminal_that_cannot_be_redrawn_the_line_is_said_as_in_a_log() -> None:
    assert "waiting for a policy" in on_a_terminal("dumb")
