"""The real averager: real processes, real p2pd, real DHT; every fault is a real signal."""

import asyncio
import json
import math
import os
import select
import signal
import socket
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import averager_peer
import base58
import psutil
import pytest
from process_tree import ended

from swarm.core.agreement.shares import (
    LARGE_PART,
    LARGEST_PART,
    MANY,
    SEVERAL,
    USUAL_PART,
    AnnouncedLine,
    part_bytes,
)
from swarm.core.gradient_checks.reducer_checks import LEAST
from swarm.net.averaging import averager
from swarm.net.averaging.codec import SCALE
from swarm.net.uplink import connections
from swarm.processes.start import start
from swarm.settings.config import Averaging

SETTINGS = {"match": 2.0, "request": 1.0, "chunk": 2.0}
NUMEL = 300_000
LARGE = 4_000_000


class Peer:
    """A fork that lives as averager_peer.py says, in a group of its own: all of it can be killed at once."""

    def __init__(
        self,
        bootstrap,
        numel=NUMEL,
        hostile=False,
        false_means=False,
        dial_only=False,
        door=0,
        cores=2,
        log=None,
        limits=None,
        settings=None,
    ):
        setup = {
            "bootstrap": bootstrap,
            "numel": numel,
            "settings": {**SETTINGS, **(settings or {})},
            "hostile": hostile,
            "false_means": false_means,
            "dial_only": dial_only,
            "door": door,
            "cores": cores,
            "limits": limits or {},
        }
        messages = os.dup(2) if log is None else os.dup(log.fileno())
        self.process = start(partial(averager_peer.live, setup, messages), {}, ())
        os.close(messages)

    def meet(self):
        hello = self.receive(40)
        self.me, self.addresses = hello["me"], hello["addresses"]
        return self

    def tell(self, **command):
        self.process.stdin.write(f"{json.dumps(command)}\n".encode())

    def receive(self, timeout=30.0):
        assert select.select([self.process.stdout], [], [], timeout)[0], "the peer did not answer"
        return json.loads(self.process.stdout.readline())

    def ask(self, **command):
        self.tell(**command)
        return self.receive()

    def begin(self, version, peers, fill=1.0, weight=1.0, deadline=10.0, marks=b"", key=0, against=()):
        self.tell(
            do="average",
            version=version,
            fill=fill,
            weight=weight,
            peers=[peer.me for peer in peers if peer is not self],
            deadline=deadline,
            marks=marks.hex(),
            key=key,
            against=list(against),
        )

    def through_p2pd(self):
        """Bytes that its p2pd has sent on the connections of the moment."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        p2pd = [child.pid for child in children if child.name() == "p2pd"]
        return sum(sent.acked for sent in connections(p2pd).values())

    def crash(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def trio():
    first = Peer([]).meet()
    rest = [Peer(first.addresses) for _ in range(2)]
    peers = [first, *(peer.meet() for peer in rest)]
    yield peers
    for peer in peers:
        peer.crash()


versions = iter(range(100, 10_000))


def round_of(peers, fills=(2.0, 1.0, 3.0), weights=(1.0, 2.0, 5.0), version=None):
    version = next(versions) if version is None else version
    for peer, fill, weight in zip(peers, fills, weights, strict=False):
        peer.begin(version, peers, fill, weight)
    return [peer.receive() for peer in peers]


def assert_averaged(answers, peers, value):
    assert all(answer.get("members") == sorted(peer.me for peer in peers) for answer in answers), answers
    assert len({answer["sha"] for answer in answers}) == 1
    for answer in answers:
        assert [float(edge) for edge in answer["value"]] == pytest.approx([value, value], rel=1e-3)


@pytest.mark.parametrize("size", [2, 3])
def test_members_end_with_identical_bytes_equal_to_the_weighted_mean(trio, size):
    peers = trio[:size]
    expected = [4 / 3, (2 + 2 + 15) / 8][size - 2]
    for _ in range(2):
        answers = round_of(peers)
        assert_averaged(answers, peers, expected)
    assert max(answer["seconds"] for answer in answers) < SETTINGS["match"], "a full group starts at once"
    told = zip(peers, answers, strict=True)
    passed = {
        (peer.me, other): size_ for peer, answer in told for other, size_ in answer["exchanged"].items()
    }
    assert all(passed[one, other] == passed[other, one] for one, other in passed)
    # Each value goes to its reducer from all members but one, and comes back: as float16 with a scale a part,
    # twice in `passed`.
    parts = math.ceil(2 * NUMEL / part_bytes([AnnouncedLine()] * size, 2 * NUMEL))
    assert sum(passed.values()) == 2 * (2 * NUMEL + SCALE.size * parts) * (size - 1)
    assert all(answer["scaled"] == {} for answer in answers)


def test_a_member_on_a_slow_line_reduces_nothing_for_the_others(trio):
    for peer, mbit in zip(trio, (5, 100, 100), strict=True):
        peer.ask(do="announce", uplink=125_000 * mbit)
    try:
        answers = round_of(trio)
        assert_averaged(answers, trio, 19 / 8)
        slow, *fast = (sum(answer["exchanged"].values()) for answer in answers)
        # Its values go out and their means come back; the others carry as much for it and for each other.
        assert slow == pytest.approx(2 * NUMEL, rel=0.01)
        assert fast == pytest.approx([3 * NUMEL, 3 * NUMEL], rel=0.2)
    finally:
        for peer in trio:
            peer.ask(do="announce", uplink=0)


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_a_round_keeps_to_a_members_limit_and_ends_with_the_same_bytes(trio, direction):
    limited, mbit = Peer(trio[0].addresses, limits={direction: 4.0}).meet(), 4.0
    try:
        answers = round_of([trio[0], limited], fills=(1.0, 3.0), weights=(1.0, 1.0))
        assert_averaged(answers, [trio[0], limited], 2.0)
        passed = sum(answers[1]["exchanged"].values())
        # Whose means come early has some of its own on their way still: the other waits for these.
        seconds = max(answer["seconds"] for answer in answers)
        assert passed * 8 / seconds <= 1.1 * mbit * 1e6
    finally:
        limited.crash()


def test_who_has_no_gradient_gets_the_mean_of_the_others(trio):
    assert_averaged(round_of(trio, fills=(2.0, 0.0, 3.0), weights=(1.0, 0.0, 5.0)), trio, 17 / 6)
    lost = round_of(trio, fills=(0.0, 0.0, 0.0), weights=(0.0, 0.0, 0.0))
    assert all("has a gradient that counts" in answer["lost"] and answer["unchanged"] for answer in lost)
    assert_averaged(round_of(trio), trio, 19 / 8)


def test_a_lone_peer_gets_none_after_the_matching_time(trio):
    trio[0].begin(next(versions), trio[:2])
    answer = trio[0].receive()
    assert answer["members"] is None and answer["unchanged"]
    assert SETTINGS["match"] - 0.2 < answer["seconds"] < SETTINGS["match"] + 1


def test_two_that_expect_different_numbers_still_meet(trio):
    version = next(versions)
    trio[0].begin(version, trio, 1.0)
    trio[1].begin(version, trio[:2], 3.0)
    assert_averaged([trio[0].receive(), trio[1].receive()], trio[:2], 2.0)


def by_id(peers):
    """Smallest first: the first one leads."""
    return sorted(peers, key=lambda peer: base58.b58decode(peer.me))


def test_a_member_that_comes_late_is_met_whatever_its_id(trio):
    for late in range(3):
        version, peers = next(versions), by_id(trio)
        early = [peer for peer in peers if peer is not peers[late]]
        for peer, value in zip(early, (1.0, 3.0), strict=True):
            peer.begin(version, peers, value)
        time.sleep(SETTINGS["match"] / 2)
        peers[late].begin(version, peers, 5.0)
        assert_averaged([peer.receive() for peer in peers], peers, 3.0)


@pytest.mark.nightly
def test_two_meet_when_a_third_is_frozen_or_does_not_come(trio):
    smallest, *others = by_id(trio)
    smallest.ask(do="signal", signal=signal.SIGSTOP)
    for _ in ("frozen", "there and not matching"):
        version = next(versions)
        for peer in others:
            peer.begin(version, trio, 2.0)
        answers = [peer.receive() for peer in others]
        assert_averaged(answers, others, 2.0)
        assert max(answer["seconds"] for answer in answers) < SETTINGS["match"] + 0.8
        smallest.ask(do="signal", signal=signal.SIGKILL)
        time.sleep(1)
    assert_averaged(round_of(trio), trio, 19 / 8)


def sent_by_p2pd(peers):
    """Bytes that each one's p2pd sent in a round of all."""
    before = [peer.through_p2pd() for peer in peers]
    assert_averaged(round_of(peers), peers, 4 / 3)
    return [peer.through_p2pd() - one for peer, one in zip(peers, before, strict=True)]


@contextmanager
def pair(door=0, numel=LARGE, cores=2):
    """Two with enough to average that a round is fast; the second one's tickets lead to the port `door`. They
    are as patient as a run's are: who knocks in vain sends its first part 1.5 s late."""
    alike = {"numel": numel, "cores": cores, "settings": {"chunk": Averaging().chunk}}
    first = Peer([], **alike).meet()
    peers = [first, Peer(first.addresses, door=door, **alike).meet()]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.crash()


def test_parts_go_past_p2pd_after_a_fast_round():
    with pair() as peers:
        assert max(sent_by_p2pd(peers)) > LARGE, "nobody knows their lines"
        for _ in range(20):  # on a busy machine not every one is fast
            if max(sent_by_p2pd(peers)) < LARGE / 4:
                return
    pytest.fail("p2pd carried parts in all rounds")


@pytest.mark.parametrize(("cores", "large"), [(2, LARGE_PART), (MANY, LARGEST_PART)])
def test_parts_are_large_after_a_fast_round(cores, large):
    with pair(numel=SEVERAL * large, cores=cores) as peers:  # two bytes a value: enough for large parts
        parts = []
        for _ in range(20):
            answers = round_of(peers)
            assert_averaged(answers, peers, 4 / 3)
            parts += {answer["part"] for answer in answers}
            if parts[-1] == large:
                break
        assert parts[0] == USUAL_PART, "nobody knows their lines"
        assert parts[-1] == large


@pytest.mark.nightly
def test_parts_go_through_p2pd_where_another_program_answers_at_the_door_which_is_tried_once():
    with socket.create_server(("127.0.0.1", 0)) as another, pair(another.getsockname()[1]) as peers:
        for _ in range(20):  # on a busy machine the ticket may be late, and nobody knocks
            answers = round_of(peers)
            assert_averaged(answers, peers, 4 / 3)
            if answers[0]["through"] and select.select([another], [], [], 0)[0]:
                break
        assert answers[0]["through"] == [peers[1].me] and not answers[1]["through"]
        another.accept()[0].close()
        for _ in range(2):
            sent = sent_by_p2pd(peers)
            # half of the first one's values to the second, and half of the means back
            assert min(sent) > LARGE * 3 / 4, sent
        another.settimeout(0.5)
        with pytest.raises(TimeoutError):
            another.accept()


@pytest.mark.nightly
def test_one_that_only_dials_joins(trio):
    dialling = [Peer(trio[0].addresses, dial_only=True) for _ in range(2)]
    try:
        for dialler in map(Peer.meet, dialling):
            peers = [*trio[:2], dialler]
            answers = round_of(peers)
            assert_averaged(answers, peers, 19 / 8)
            assert max(answer["seconds"] for answer in answers) < SETTINGS["match"]
    finally:
        for dialler in dialling:
            dialler.crash()


def test_learners_of_different_versions_never_meet(trio):
    version = next(versions)
    trio[0].begin(version, trio[:3])
    trio[1].begin(version + 1, trio[:3])
    trio[2].begin(version + 2, trio[:3])
    for peer in trio:
        answer = peer.receive()
        assert answer["members"] is None and answer["unchanged"], answer


def test_an_uninvited_peer_is_not_averaged_with(trio):
    version = next(versions)
    trio[2].begin(version, trio, 100.0)
    trio[0].begin(version, trio[:2], 1.0)
    trio[1].begin(version, trio[:2], 3.0)
    stranger = trio[2].receive()
    assert_averaged([trio[0].receive(), trio[1].receive()], trio[:2], 2.0)
    assert stranger.get("members") is None and stranger["unchanged"]


def test_an_uninvited_peers_streams_are_closed_before_anything_of_them_is_read(trio):
    assert_averaged(round_of(trio[:2]), trio[:2], 4 / 3)
    for method in ("rpc_join_group", "rpc_aggregate_part"):
        assert trio[2].ask(do="knock", peer=trio[0].me, method=method)["closed"], method


def test_a_stopped_averager_process_costs_a_round_and_keeps_the_deadline(trio):
    trio[0].ask(do="status")
    trio[0].ask(do="signal", signal=signal.SIGSTOP)
    trio[0].begin(next(versions), trio[:2], deadline=1.5)
    lost = trio[0].receive()
    assert "lost" in lost and lost["unchanged"] and lost["seconds"] < 1.9
    assert_averaged(round_of(trio[:2]), trio[:2], 4 / 3)
    status = trio[0].ask(do="status")
    assert [why == "" for _, why, _ in status["reports"]] == [False, True]
    assert status["longest"] < 0.5, "replacing blocked the loop"
    assert status["sigint"], "SIGINT is ignored in the peer"


def test_a_stopped_averager_process_whose_pipe_is_full_costs_a_round_and_does_not_block_its_peer(trio):
    trio[0].ask(do="status")
    trio[0].ask(do="signal", signal=signal.SIGSTOP)
    peers = [f"peer-{number}-of-more-than-a-pipe-holds" for number in range(20_000)]
    trio[0].tell(do="average", version=next(versions), fill=1.0, weight=1.0, peers=peers, deadline=1.5)
    lost = trio[0].receive()
    assert "lost" in lost and lost["unchanged"]
    assert_averaged(round_of(trio[:2]), trio[:2], 4 / 3)
    assert trio[0].ask(do="status")["longest"] < 0.5, "the order blocked the loop"


@pytest.mark.nightly
def test_why_a_process_did_not_start_is_told_and_in_the_log(trio, tmp_path):
    with (tmp_path / "log").open("w") as log:
        peer = Peer(trio[0].addresses, log=log).meet()
    try:
        peer.ask(do="lose")
        peer.begin(next(versions), [peer, trio[0]], deadline=5.0)
        assert "lost" in peer.receive()
        peer.ask(do="find")
        assert_averaged(round_of([peer, trio[0]]), [peer, trio[0]], 4 / 3)
        reports = [why for _, why, _ in peer.ask(do="status")["reports"]]
    finally:
        peer.crash()
    words = "the averager process ended its process with exit code 1, after printing: "
    assert [why for why in reports if words in why and "FileNotFoundError" in why], reports
    assert "FileNotFoundError" in (tmp_path / "log").read_text()


def test_a_killed_averager_process_is_replaced_before_it_is_needed(trio):
    trio[1].ask(do="signal", signal=signal.SIGKILL)
    time.sleep(1)
    assert_averaged(round_of(trio[:2]), trio[:2], 4 / 3)


def test_a_new_p2pd_gets_a_new_process(trio):
    before = trio[2].ask(do="status")["pid"]
    trio[2].ask(do="renew")
    assert_averaged(round_of(trio), trio, 19 / 8)
    assert trio[2].ask(do="status")["pid"] != before


def test_a_member_that_is_not_finite_is_not_met_and_the_others_average_without_it(trio):
    answers = round_of(trio, fills=(2.0, float("nan"), 3.0))
    assert "my own tensors are not finite" in answers[1]["lost"] and answers[1]["unchanged"], answers
    assert answers[1]["not_finite"]
    assert_averaged([answers[0], answers[2]], [trio[0], trio[2]], (2 + 15) / 6)
    assert_averaged(round_of(trio), trio, 19 / 8)


def test_a_gradient_far_beyond_the_others_counts_for_little_and_is_named_by_all(trio):
    answers = round_of(trio, fills=(1.0, -1000.0, 1.0), weights=(1.0, 1.0, 1.0))
    assert len({answer["sha"] for answer in answers}) == 1
    assert all(0.63 < float(edge) < 1.01 for edge in answers[0]["value"])
    assert all(
        answer["scaled"].keys() == {trio[1].me} and answer["scaled"][trio[1].me] < 1e-4 for answer in answers
    )


def test_a_reducer_keeps_sketches_of_what_each_other_member_sent_it(trio):
    """Whoever reduces nothing, since its line was measured to be slow, has none."""
    sent = dict(zip((peer.me for peer in trio), (1.0, 2.0, 4.0), strict=True))
    keeping = 0
    for key in (7, 0):
        version = next(versions)
        for peer in trio:
            peer.begin(version, trio, sent[peer.me], 1.0, key=key)
        for peer, answer in zip(trio, [peer.receive() for peer in trio], strict=True):
            assert ("sent" in answer) == (key != 0)
            if kept := answer.get("sent"):
                keeping += 1
                others = {other: fill for other, fill in sent.items() if other != peer.me}
                assert {other: its[1] for other, its in kept.items()} == pytest.approx(others)
                assert all(its[0] == pytest.approx(1.0) for its in kept.values())
    assert keeping


def test_of_two_members_with_one_group_one_counts(trio):
    version = next(versions)
    for peer, fill, marks in zip(trio, (1.0, 2.0, 4.0), (b"group..1", b"group..2", b"group..2"), strict=True):
        peer.begin(version, trio, fill, 1.0, marks=marks)
    answers = [peer.receive() for peer in trio]
    (left_out,) = {peer.me for peer in trio} - {*answers[0]["counting"]}
    assert left_out in (trio[1].me, trio[2].me)
    assert all(answer["counting"] == answers[0]["counting"] for answer in answers)
    assert_averaged(answers, trio, 1.5 if left_out == trio[2].me else 2.5)


def test_a_member_that_most_others_name_does_not_count(trio):
    liar = trio[2].me

    def one_round(naming):
        version = next(versions)
        for k, (peer, fill) in enumerate(zip(trio, (1.0, 1.0, -1.0), strict=True)):
            named = [liar] if peer in naming else []
            peer.begin(version, trio, fill, marks=f"group..{k}".encode(), against=named, key=7)
        return [peer.receive() for peer in trio]

    answers = one_round(trio[:1])
    reduces = bool(answers[0]["sent"])
    for answer in answers:
        assert len(answer["counting"]) == 3 and answer["named"] == {liar: [trio[0].me]}
        least, most = map(float, answer["value"])
        assert (most == pytest.approx(1.0)) is reduces, "who names it leaves it out of its own means"
        assert least == pytest.approx(1 / 3, rel=1e-3)
    answers = one_round(trio[:2])
    assert_averaged(answers, trio, 1.0)
    for answer in answers:
        assert answer["counting"] == sorted(peer.me for peer in trio[:2])
        assert {peer: sorted(by) for peer, by in answer["named"].items()} == {
            liar: sorted(peer.me for peer in trio[:2])
        }


def test_values_that_float16_does_not_hold_are_averaged(trio):
    assert_averaged(round_of(trio, fills=(2e9, 1e9, 3e9)), trio, 19e9 / 8)
    answers = round_of(trio, fills=(2e-9, 1e-9, 3e-9))
    assert_averaged(answers, trio, 19e-9 / 8)
    assert len({answer["value"][0] for answer in answers}) == 1


def test_a_hostile_member_is_screened_at_the_reducers(trio):
    """It announces the norm of ordinary gradients, whatever it sends."""
    hostile = Peer(trio[0].addresses, hostile=True).meet()
    try:
        for bad in (float("inf"), float("nan")):
            answers = round_of([trio[0], trio[1], hostile], fills=(1.0, 2.0, bad))
            for answer in answers[:2]:
                kept = "lost" in answer and answer["unchanged"]
                assert kept or all(math.isfinite(float(edge)) for edge in answer["value"]), answers
        honest = round_of([trio[0], trio[1], hostile], fills=(1.0, 1.0, -6e4), weights=(1.0, 1.0, 1.0))[:2]
        assert len({answer["sha"] for answer in honest}) == 1
        assert all(answer["scaled"].keys() <= {hostile.me} for answer in honest) and any(
            a["scaled"] for a in honest
        )
        assert all(abs(float(edge)) < 10 * NUMEL**0.5 for answer in honest for edge in answer["value"])
    finally:
        hostile.crash()
    assert_averaged(round_of(trio), trio, 19 / 8)


@pytest.mark.nightly
def test_a_member_whose_means_are_false_is_named_by_both_others_and_reduces_nothing_from_then_on(trio):
    liar = Peer(trio[0].addresses, false_means=True).meet()
    peers = [trio[0], trio[1], liar]
    try:
        for peer, uplink in zip(peers, (2_000_000, 2_000_000, 8_000_000), strict=True):
            peer.ask(do="announce", uplink=uplink)  # few values are few parts: the fastest has one
        for _ in range(LEAST):
            before = round_of(peers)
        assert all(answer["false"] == [] and float(answer["value"][0]) == 0 for answer in before), before
        answers = round_of(peers)
        assert all(answer["false"] == [liar.me] for answer in answers)
        assert_averaged(answers, peers, 19 / 8)
    finally:
        for peer in trio[:2]:
            peer.ask(do="announce", uplink=0)
        liar.crash()


@pytest.mark.nightly
def test_a_member_killed_in_mid_round_costs_the_others_one_round(trio):
    numel = 12_000_000
    peers = [Peer(trio[0].addresses, numel=numel) for _ in range(3)]
    try:
        peers = [peer.meet() for peer in peers]
        version = next(versions)
        for peer in peers:
            peer.begin(version, peers, deadline=15.0)
        time.sleep(0.35)
        peers[2].crash()
        answers = [peer.receive() for peer in peers[:2]]
        done = [answer for answer in answers if "lost" not in answer]
        assert all(answer["unchanged"] for answer in answers if "lost" in answer)
        assert len({answer["sha"] for answer in done}) <= 1, answers
        assert_averaged(round_of(peers[:2]), peers[:2], 4 / 3)
    finally:
        for peer in peers:
            if peer.process.poll() is None:
                peer.crash()


def test_who_is_gone_is_waited_for_no_longer(trio):
    version, dead = next(versions), "12D3KooWSmGyvUY4BRQK8E9BgUKp3pS4PLfxCSbvAJK5p7mDFuUX"
    pair = trio[:2]
    for peer in pair:
        others = [*(other.me for other in pair if other is not peer), dead]
        round_of_three = {"version": version, "fill": 1.0, "weight": 1.0, "peers": others}
        peer.tell(do="average", deadline=100.0, patience=60.0, **round_of_three)
    time.sleep(1.0)
    for peer in pair:
        peer.tell(do="gone", peers=[dead])
    assert_averaged([peer.receive() for peer in pair], pair, 1.0)


def test_close_leaves_no_process(trio):
    peer = Peer(trio[0].addresses).meet()
    try:
        pid = peer.ask(do="status")["pid"]
        peer.ask(do="close")
        assert not psutil.pid_exists(pid)
    finally:
        peer.crash()


@pytest.mark.nightly
def test_the_averager_process_dies_with_its_parent(trio):
    peer = Peer(trio[0].addresses).meet()
    try:
        pid = peer.ask(do="status")["pid"]
        os.kill(peer.process.pid, signal.SIGKILL)
        peer.process.wait()
        assert ended(pid)
    finally:
        os.killpg(peer.process.pid, signal.SIGKILL)


def test_an_averager_that_was_killed_says_what_may_be_behind_that(monkeypatch):
    monkeypatch.setattr(averager, "serve", lambda _: os.kill(os.getpid(), signal.SIGKILL))

    async def killed():
        gone = asyncio.get_running_loop().create_future()
        child = averager.AveragerProcess(SimpleNamespace(daemon=""), lambda _, why: gone.set_result(why))
        try:
            return await gone
        finally:
            await child.end("")

    assert asyncio.run(killed()) == (
        "the averager process ended its process with signal SIGKILL (the kernel does that when the machine's"
        " memory runs out: see dmesg)"
    )
