"""Virtual time, worlds that repeat, and faults that do what their names say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT, SUPPORT
from rows import nightly
from stand_in import stand_in

from peers.commands import sim
from swarm.core.delays import draw
from swarm.events import Event, Noted
from swarm.journal import read_journal
from swarm.net.ports import Silent, Unreachable
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import Deadlock, run
from swarm.sim.flows import AccessLine
from swarm.sim.report import Summary
from swarm.sim.scenario import (
    Fault,
    LineLaw,
    RateLaw,
    Scenario,
    ScenarioError,
    SimulatedLinks,
    load,
    parse,
)
from swarm.sim.world import SimPeer, World
from swarm.types import PeerId

SCENARIOS = ROOT / "configs" / "scenarios"


def test_a_day_passes_at_once() -> None:
    async def day() -> float:
        await asyncio.sleep(86400)
        return asyncio.get_running_loop().time()

    assert run(day()) == 86400


def test_a_deadlock_says_who_waits() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="the one who waits")  # type: ignore[arg-type]

    with pytest.raises(Deadlock, match="the one who waits"):
        run(wait_for_nobody())


LAWS = ["none", "constant", "lognormal", "weibull", "exponential"]


@given(st.sampled_from(LAWS), st.floats(0.001, 1e5), st.floats(0.1, 3), st.integers())
def test_a_delay_lies_between_nothing_and_the_longest(
    law: str, seconds: float, shape: float, seed: int
) -> None:
    assert (
        0 <= draw(DelayLaw(law=law, seconds=seconds, shape=shape, longest=1800), random.Random(seed)) <= 1800
    )


def test_the_papers_delay_law_has_its_median_and_spread() -> None:
    rng = random.Random(1)
    law = DelayLaw(law="lognormal", seconds=339, shape=0.617, longest=1e9)
    delays = sorted(draw(law, rng) for _ in range(20_000))
    assert 330 < delays[10_000] < 348
    assert 0.99 < sum(60 < delay < 1920 for delay in delays) / 20_000 < 0.999


def short(name: str, minutes: float) -> Scenario:
    return msgspec.structs.replace(load(SCENARIOS / name), hours=minutes / 60)


@pytest.mark.parametrize("name", ["faults.toml", *nightly(["quick.toml"])])
def test_the_same_seed_gives_the_same_bytes_in_another_process(name: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from stand_in import stand_in; from swarm.sim.scenario import"
        " load; from swarm.sim.world import World; print(World(load(Path(sys.argv[1])),"
        " stand_in).run().sha256)"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(SUPPORT), str(ROOT)])
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", program, str(SCENARIOS / name)]
        digests.add(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        )
    assert len(digests) == 1


def test_another_seed_gives_another_journal() -> None:
    scenario = short("quick.toml", 5)
    assert (
        World(scenario, stand_in).run().sha256
        != World(msgspec.structs.replace(scenario, seed=2), stand_in).run().sha256
    )


def test_the_journal_holds_every_event_and_the_summary_counts_them(tmp_path: Path) -> None:
    summary, journal = Summary(), tmp_path / "journal"
    journal.write_bytes(b"of an earlier run\n")
    outcome = World(short("quick.toml", 5), stand_in, sinks=[summary], journal=journal).run()
    assert len(list(read_journal(journal))) == outcome.events > 100
    assert hashlib.sha256(journal.read_bytes()).hexdigest() == outcome.sha256
    figures = summary.as_dict()
    assert figures["verdicts"] == {"admit": sum(figures["lag_versions"].values())}  # type: ignore[attr-defined]
    assert figures["versions"] and figures["reward_last"] is not None
    json.dumps(figures)
    assert "lag in seconds" in summary.text()


class Told:
    """Runs peers that mail `learner-0` once a second and note what became of it."""

    def __init__(self, *faults: Fault, seconds: float = 60) -> None:
        self.told: list[tuple[int, str, str]] = []
        scenario = Scenario(
            name="told", hours=seconds / 3600, peers={"learner": 1, "sampler": 2}, faults=faults
        )
        World(scenario, self._spawn, sinks=[self._note]).run()

    def at(self, second: int, peer: str = "sampler-0") -> str:
        return next(text for at, who, text in self.told if at == second and who == peer)

    def _note(self, event: Event) -> None:
        assert isinstance(event, Noted)
        self.told.append((int(event.at) - 1_750_000_000, event.peer, event.text))

    async def _spawn(self, peer: SimPeer) -> None:
        clock = peer.ports.clock
        start = clock.now()

        async def answer(sender: PeerId, message: bytes) -> bytes:
            return b"life %d" % peer.life

        await peer.ports.mail.serve("hello", answer)
        while peer.role == "sampler":
            began = clock.now()
            try:
                text = (await peer.ports.mail.send(PeerId("learner-0"), "hello", b"", timeout=0.6)).decode()
            except (Silent, Unreachable) as error:
                text = type(error).__name__
            peer.bus.emit(Noted(at=began, peer=peer.ports.me, level="info", text=text))
            await clock.sleep(began + 1 - clock.now())
        await clock.sleep(start + 1e6 - clock.now())


def test_partitioned_peers_do_not_reach_each_other_until_the_repair() -> None:
    sides = (("sampler-0",), ("learner-*",))
    told = Told(
        Fault(at=9.5, fault="partition", between=sides), Fault(at=19.5, fault="repair", between=sides)
    )
    assert [told.at(second) for second in (5, 15, 25)] == ["life 0", "Unreachable", "life 0"]
    assert told.at(15, "sampler-1") == "life 0"


def test_what_is_held_is_silent_until_the_release() -> None:
    sides = (("sampler-0",), ("learner-0",))
    told = Told(Fault(at=9.5, fault="hold", between=sides), Fault(at=19.5, fault="release", between=sides))
    assert [told.at(second) for second in (5, 15, 25)] == ["life 0", "Silent", "life 0"]


def test_a_crashed_peer_is_gone_and_a_bounced_one_comes_back_as_another_life() -> None:
    told = Told(
        Fault(at=9.5, fault="bounce", peer="learner-0", down=10),
        Fault(at=29.5, fault="crash", peer="learner-0"),
    )
    assert [told.at(second) for second in (5, 15, 25, 35)] == [
        "life 0",
        "Unreachable",
        "life 1",
        "Unreachable",
    ]


def test_a_peer_that_crashes_while_it_is_away_does_not_come_back() -> None:
    told = Told(
        Fault(at=9.5, fault="bounce", peer="learner-0", down=20),
        Fault(at=19.5, fault="crash", peer="learner-0"),
    )
    assert [told.at(second) for second in (5, 15, 35)] == ["life 0", "Unreachable", "Unreachable"]


def test_a_peer_that_bounces_while_it_is_away_is_back_when_the_later_bounce_says() -> None:
    told = Told(
        Fault(at=9.5, fault="bounce", peer="learner-0", down=5),
        Fault(at=12.5, fault="bounce", peer="learner-0", down=20),
    )
    assert [told.at(second) for second in (5, 20, 35)] == ["life 0", "Unreachable", "life 1"]


@pytest.mark.parametrize(("first", "second"), [(10, 30), (40, 5)])
def test_a_disk_is_full_until_the_later_end_of_faults_that_overlap(
    first: int, second: int, tmp_path: Path
) -> None:
    refused: list[int] = []

    async def write(peer: SimPeer) -> None:
        assert peer.folder is not None
        for at in range(60):
            try:
                (peer.folder / f"{at}").touch()
            except OSError:
                refused.append(at)
            await peer.ports.clock.sleep(1.0)

    faults = (
        Fault(at=0.5, fault="full", peer="sampler-0", seconds=first),
        Fault(at=4.5, fault="full", peer="sampler-0", seconds=second),
    )
    World(
        Scenario(name="full", hours=1 / 60, peers={"sampler": 1}, faults=faults), write, disks=tmp_path
    ).run()
    assert refused == list(range(1, 1 + max(first, 4 + second)))


def test_a_world_whose_last_peers_are_all_away_goes_on_when_they_are_back() -> None:
    all_bounce = [
        Fault(at=9.5, fault="bounce", peer=name, down=down)
        for name, down in (("learner-0", 5), ("sampler-0", 8), ("sampler-1", 8))
    ]
    told = Told(*all_bounce)
    assert [told.at(second) for second in (5, 25)] == ["life 0", "life 1"]


class Goodbyes:
    """Two peers, of which one publishes whenever its coroutine is ended, and the other listens."""

    def __init__(self, *faults: Fault) -> None:
        self.heard: list[bytes] = []
        World(Scenario(name="bye", hours=30 / 3600, peers={"sampler": 2}, faults=faults), self._spawn).run()

    async def _spawn(self, peer: SimPeer) -> None:
        gossip = peer.ports.gossip
        if peer.name == "sampler-1":
            async with gossip.subscribe("bye") as messages:
                async for _, message in messages:
                    self.heard.append(message)
        await peer.ports.clock.sleep(1.0)
        await gossip.publish("bye", b"hello")
        try:
            await peer.ports.clock.sleep(1e6)
        finally:
            await gossip.publish("bye", b"goodbye")


def test_a_crashed_peer_says_no_goodbye() -> None:
    assert Goodbyes(Fault(at=9.5, fault="crash", peer="sampler-0")).heard == [b"hello"]


def test_one_way_passes_in_the_other_direction_and_a_repair_ends_it() -> None:
    to, back = (("sampler-0",), ("learner-0",)), (("learner-0",), ("sampler-0",))
    cut = Told(Fault(at=9.5, fault="oneway", between=to), Fault(at=19.5, fault="repair", between=to))
    assert [cut.at(second) for second in (5, 15, 25)] == ["life 0", "Unreachable", "life 0"]
    deaf = Told(Fault(at=9.5, fault="oneway", between=back), Fault(at=19.5, fault="repair", between=back))
    assert [deaf.at(second) for second in (5, 15, 25)] == ["life 0", "Silent", "life 0"]


def test_a_slow_link_takes_its_seconds_more_until_the_repair() -> None:
    sides = (("sampler-0",), ("learner-0",))
    slow, repair = (
        Fault(at=at, fault=fault, between=sides, seconds=0.5)
        for at, fault in ((9.5, "slow"), (19.5, "repair"))
    )
    told = Told(slow, repair)
    assert [told.at(second) for second in (5, 15, 25)] == ["life 0", "Silent", "life 0"]
    assert told.at(15, "sampler-1") == "life 0"


def test_a_host_comes_when_the_script_says() -> None:
    told = Told(Fault(at=9.5, fault="host", peer="sampler-1"))
    assert min(at for at, who, _ in told.told if who == "sampler-1") == 9


def test_a_line_is_drawn_once_for_each_peer_and_stays_its_own() -> None:
    home = LineLaw(up=RateLaw(law="lognormal", mbit=1.0, shape=0.5, least=0.1, most=10.0))
    told: list[tuple[str, int, float]] = []

    async def send(peer: SimPeer) -> None:
        clock, mail = peer.ports.clock, peer.ports.mail

        async def answer(sender: PeerId, message: bytes) -> bytes:
            return b""

        await mail.serve("large", answer)
        while peer.role == "sampler":
            began = clock.now()
            await mail.send(PeerId("learner-0"), "large", bytes(100_000), timeout=60)
            told.append((peer.name, peer.life, clock.now() - began))
        await asyncio.Event().wait()

    scenario = Scenario(
        name="lines",
        hours=0.05,
        peers={"learner": 1, "sampler": 2},
        links=SimulatedLinks(latency=DelayLaw(law="constant", seconds=0.1)),
        lines={"sampler": home},
        faults=(Fault(at=60.0, fault="bounce", peer="sampler-0", down=1.0),),
    )
    World(scenario, send).run()
    lives = [("sampler-0", 0), ("sampler-0", 1), ("sampler-1", 0)]
    taken = [{round(seconds, 3) for name, life, seconds in told if (name, life) == one} for one in lives]
    assert taken[0] == taken[1] != taken[2] and all(len(seconds) == 1 for seconds in taken)
    assert all(100_000 * 8 / 1e7 + 0.2 <= seconds <= 100_000 * 8 / 1e5 + 0.2 for (seconds,) in taken)


def test_a_peer_that_limits_its_line_has_the_less_of_both() -> None:
    text = """
        name = "limits"
        hours = 1
        [peers]
        learner = 1
        sampler = 1
        evaluator = 1
        [lines.learner]
        up = { mbit = 20.0 }
        [limits.learner]
        upload = 8.0
        download = 80.0
        [lines.sampler]
        up = { mbit = 4.0 }
        [limits.sampler]
        upload = 8.0
        """
    scenario, rng = parse(text.encode()), random.Random(1)
    assert scenario.line(Role.LEARNER, rng) == AccessLine(up=1e6, down=1e7)
    assert scenario.line(Role.SAMPLER, rng) == AccessLine(up=5e5)
    assert scenario.line(Role.EVALUATOR, rng) is None


@pytest.mark.nightly
def test_a_swarm_on_home_lines_is_the_same_twice_and_another_one_without_lines() -> None:
    scenario = load(SCENARIOS / "home-lines.toml")
    task = msgspec.structs.replace(scenario.run.task, options={"buckets": 2048})
    run = msgspec.structs.replace(scenario.run, task=task)
    scenario = msgspec.structs.replace(scenario, hours=0.05, run=run)
    summary = Summary()
    home, again, unlimited = (
        World(msgspec.structs.replace(scenario, lines=lines), sim.spawn, sinks=[summary]).run()
        for lines in (scenario.lines, scenario.lines, {})
    )
    assert home.sha256 == again.sha256 != unlimited.sha256
    assert summary.version > 0


def test_a_bug_of_a_peer_is_a_traceback() -> None:
    async def broken(peer: SimPeer) -> None:
        await peer.ports.clock.sleep(3)
        raise ZeroDivisionError("ours")

    with pytest.raises(ExceptionGroup):
        World(short("quick.toml", 1), broken).run()


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.toml")), ids=lambda file: file.name)
def test_every_scenario_file_loads(file: Path) -> None:
    assert load(file).name == file.stem


def on_learner(fault: str, more: str = "", at: str = "at = 1.0") -> str:
    return f'[[faults]]\n{at}\nfault = "{fault}"\npeer = "learner-0"\n{more}'


def crash(numbers: str) -> str:
    return on_learner("crash", at=numbers)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("hour = 3", "hour"),
        ("[peers]\ncook = 1", "cook"),
        ("[lines.cook]\nup = { mbit = 20.0 }", "lines.cook"),
        ("[lines.learner]\nup = { mbit = 0.0 }", "mbit"),
        ("[limits.cook]\nupload = 20.0", "limits.cook"),
        ("[limits.learner]\nupload = -20.0", "upload"),
        ("[limits.learner]\nupload = 20.0\ncpu = 0.01", "limits.learner.cpu"),
        ('[limits.learner]\nhours = "1-2"', "limits.learner.hours"),
        ("[prices.sampel]\nseconds = 4.0", "prices: .*'sampel' .did you mean 'sample'"),
        ('each = ["lern"]', "each: .*'lern' .did you mean 'learn'"),
        ('each = ["step"]', "each: 'step'.* learn, sample"),
        ("[peers]\nobserver = 1", "observer"),
        ('[prices.sample]\nlaw = "constant"\nseconds = nan', "prices.*seconds"),
        ('[slower]\n"learner-*" = inf', r"slower.learner-\* = inf"),
        ("[lines.learner]\none_way = nan", "lines.*one_way"),
        (crash("at = nan"), "at"),
        (crash("at = inf"), r"faults\[0\].at = inf"),
        (crash("at = -1.0"), "at"),
        (crash("at = 1.0\ndown = -5.0"), "down"),
        ('[[faults]]\nat = 1.0\nfault = "slow"\nbetween = [["*"], ["*"]]\nseconds = -30.0', "seconds = -30"),
        (on_learner("busy", "seconds = -1.0"), "seconds = -1"),
        (on_learner("full", "seconds = -1.0"), "seconds = -1"),
        (on_learner("damage"), "damage at 1.0: .*file"),
        (on_learner("damage", 'file = "../sampler-0/*"'), "damage at 1.0: .*file"),
        (on_learner("damage", 'file = "/etc/*"'), "damage at 1.0: .*file"),
        (on_learner("damage", 'file = "a**b"'), "damage at 1.0: .*file"),
        ('[[faults]]\nat = 1.0\nfault = "burn"', "burn"),
        ('[[faults]]\nat = 1.0\nfault = "crash"\npeer = "learner-9"', "learner-9"),
        ('[[faults]]\nat = 1.0\nfault = "hold"\nbetween = [["x"], ["y"]]', "names no peer"),
        (crash("at = 3600.0"), r"crash at 3600.0: .* after 3600 s \(hours = 1.0\)"),
        (on_learner("bounce", at="at = 7200.5"), "bounce at 7200.5: .* 3600 s"),
        (on_learner("bounce", at="at = 9.0") + crash("at = 5.0"), "bounce at 9.0: learner-0 crashes at 5.0"),
        (crash("at = 5.0") + on_learner("bounce", at="at = 5.0"), "bounce at 5.0: learner-0 crashes at 5.0"),
    ],
)
def test_a_scenario_with_a_mistake_is_refused_by_its_name(line: str, complaint: str) -> None:
    text = 'name = "x"\nhours = 1\n' + line + ("" if "[peers]" in line else "\n[peers]\nlearner = 1")
    if "hour = 3" in line:
        text = 'name = "x"\nhours = 1\nhour = 3\n[peers]\nlearner = 1'
    with pytest.raises(ScenarioError, match=complaint):
        parse(text.encode())


def test_a_peer_bounces_before_its_crash_and_when_it_is_a_host_again() -> None:
    bounces = (on_learner("bounce", at=at) for at in ("at = 4.0", "at = 20.0"))
    script = crash("at = 5.0") + on_learner("host", at="at = 9.0") + "".join(bounces) + crash("at = 3599.0")
    assert len(parse(f'name = "x"\nhours = 1\n[peers]\nlearner = 1\n{script}'.encode()).faults) == 5


def test_a_scenario_without_an_end_is_refused() -> None:
    for hours in ("inf", "nan", "0"):
        with pytest.raises(ScenarioError, match="hours"):
            parse(f'name = "x"\nhours = {hours}\n[peers]\nlearner = 1'.encode())


def test_a_clock_may_be_late_and_each_may_name_groups_and_tasks() -> None:
    text = 'name = "x"\nhours = 1\neach = ["learn", "sample"]\n[peers]\nlearner = 1\n'
    (fault,) = parse((text + on_learner("clock", "seconds = -70.0")).encode()).faults
    assert fault.seconds == -70.0


@pytest.mark.parametrize(("apart", "told"), [(0.0, True), (600.0, False)])
def test_a_simulation_says_how_far_it_is_and_its_journal_is_the_same(
    apart: float,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sim, "TOLD", apart)
    world = 'name = "x"\nhours = 0.0004\n[peers]\nseed = 1\nlearner = 1\nsampler = 1\n'
    (tmp_path / "x.toml").write_text(f'{world}[run.optimizer]\nlr = 0.1\n[run.task]\nname = "toy"\n')
    assert sim.simulate(tmp_path / "x.toml", None, tmp_path / "journal") == 0
    out, err = capsys.readouterr()
    assert ("of 0.0004 virtual hours, version 0\n" in err) is told
    assert f"journal sha256 {hashlib.sha256((tmp_path / 'journal').read_bytes()).hexdigest()}" in out
