"""/metrics: what Prometheus reads is what the SwarmState says, and Grafana draws what is there."""

from __future__ import annotations

import json
import re
import time

import msgspec
import pytest
from dashboard_story import HOSTILE, heard, still, story, who
from places import ROOT
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.testclient import TestClient

from dashboard.fold.bounds import Bounds
from dashboard.fold.snapshot import dump, load
from dashboard.fold.state import SwarmState
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from swarm import events as happened
from swarm.core import intervals
from swarm.protocol import Role

GRAFANA = json.loads((ROOT / "dashboard" / "grafana.json").read_text(encoding="utf-8"))
EVERYTHING = (
    "reward kl ess weight_var weight_max grad_norm entropy zero flat cosine length lag_versions lag_seconds"
).split()
LABELS = {"role", "status", "level", "verdict", "purpose", "le", "name", "task", "model", "objective", "set"}


def fed(versions: int = 30) -> Feed:
    feed = still()
    for event in story(versions, start=time.time() - 0.6 * versions):
        feed(event)
    metrics = dict.fromkeys(EVERYTHING, 0.5)
    phases = {"gather": 0.1, "learn": 0.1, "average": 0.1, "step": 0.1}
    feed(
        happened.Trained(
            at=time.time(), peer=who(2), version=versions + 1, groups=1, members=1, metrics=metrics, **phases
        )
    )
    moved = {"rollouts": 1000, "weights": 2000}
    feed(happened.Transferred(at=time.time(), peer=who(2), seconds=1.0, sent={}, received=moved, links={}))
    return feed


def scrape(feed: Feed) -> dict[str, list[Sample]]:
    answer = TestClient(create_app(feed), base_url="http://localhost").get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def value(samples: dict[str, list[Sample]], name: str, **labels: str) -> float:
    (one,) = [sample.value for sample in samples[name] if sample.labels == labels]
    return one


def test_a_scrape_says_what_the_state_says() -> None:
    feed = fed(30)
    samples, state = scrape(feed), feed.state
    assert value(samples, "swarm_policy_version") == 30
    assert value(samples, "swarm_trained_groups_total") == 30 * 32 + 1
    assert value(samples, "swarm_verdicts_total", verdict="admit") == 30 * 32
    assert value(samples, "swarm_peers", role="learner", status="alive") == 2
    assert value(samples, "swarm_reward") == state.series["reward"].last()
    assert value(samples, "swarm_events_folded_total") == state.revision
    assert value(samples, "swarm_received_bytes_total", purpose="weights") == 2000
    assert 0 <= value(samples, "swarm_release_age_seconds") < 60
    assert {sample.labels["peer"]: sample.value for sample in samples["swarm_peer_up"]} == {
        row.id: float(row.status == "alive") for row in state.rows(time.time())
    }


def test_each_evaluation_set_has_a_gauge_a_curve_and_a_place_in_the_sentence() -> None:
    feed = fed(3)
    sets = {
        "hard": happened.SetResult(accuracy=0.125, tasks=64),
        "<b>x": happened.SetResult(accuracy=1.0, tasks=1),
    }
    feed(happened.Evaluated(at=time.time(), peer=who(2), version=3, accuracy=0.5, tasks=256, sets=sets))
    assert [sample.labels for sample in scrape(feed)["swarm_set_accuracy_ratio"]] == [{"set": "hard"}]
    assert value(scrape(feed), "swarm_set_accuracy_ratio", set="hard") == 0.125
    assert feed.state.series["set_hard"].last() == 0.125
    judged = feed.state.evaluations.last
    assert judged is not None and (judged.low, judged.sets["hard"].tasks) == (
        intervals.of_share(0.5, 256)[0],
        64,
    )
    assert feed.state.events()[-1].text.endswith("with 95 % confidence); hard 12.5%.")


def test_a_histogram_is_cumulative_and_ends_with_everything() -> None:
    feed = fed(30)
    samples = scrape(feed)
    for name in ("swarm_trained_lag_versions_bucket", "swarm_trained_lag_seconds_bucket"):
        counts = [sample.value for sample in samples[name]]
        assert counts == sorted(counts) and samples[name][-1].labels["le"] == "+Inf"
        assert counts[-1] == 30 * 32
    assert value(samples, "swarm_trained_lag_versions_count") == 30 * 32
    assert value(samples, "swarm_window_versions") == 64 and value(samples, "swarm_window_seconds") == 1800


def test_a_hostile_name_stays_a_label() -> None:
    feed = fed(3)
    feed(heard(who(9), 3, time.time(), name=HOSTILE + '"} 1\nswarm_policy_version 666\n\\'))
    samples = scrape(feed)
    assert value(samples, "swarm_policy_version") == 3
    assert [sample for sample in samples["swarm_peer_up"] if sample.labels["peer"] == who(9)]


def test_peers_are_labels_of_one_metric_alone() -> None:
    feed = fed()
    for name, samples in scrape(feed).items():
        if name != "swarm_peer_up":
            assert LABELS.issuperset(label for sample in samples for label in sample.labels), name
            assert not set(feed.state.peers).intersection(*(sample.labels.values() for sample in samples)), (
                name
            )


def test_a_counter_never_falls() -> None:
    feed, at = Feed(SwarmState(bounds=Bounds(peers=2))), time.time()

    def said(number: int, seq: int, doomed: int, start: int = 1, invited: bool = True) -> float:
        made = heard(who(number), 3, at, seq=seq, role=Role.SAMPLER)
        beat = msgspec.structs.replace(made.beat, incarnation=start, wasted={"doomed": doomed})
        feed(msgspec.structs.replace(made, beat=beat, invited=invited))
        return value(scrape(feed), "swarm_tokens_total", end="doomed")

    assert said(4, 1, 100) == 100 and said(5, 1, 50) == 150
    assert said(4, 2, 40) == 150, "it says less"
    assert said(4, 3, 120, invited=False) == 150 and said(4, 4, 120) == 170
    assert said(4, 1, 5, start=2) == 175, "it was started again"
    feed(happened.Left(at=at, peer=who(5), name="", reason="done"))
    assert said(6, 1, 1) == 176 and who(5) not in feed.state.peers, "its row made room"
    feed(happened.Left(at=at, peer=who(6), name="", reason="done"))
    assert said(5, 2, 60) == 186, "and it is back"
    again = load(dump(feed.state))
    assert again.tokens() == {"doomed": 186} and again.tally.lives == feed.state.tally.lives


def test_an_empty_swarm_leaves_figures_out_instead_of_saying_zero() -> None:
    samples = scrape(Feed(SwarmState()))
    assert (
        "swarm_reward" not in samples
        and "swarm_release_age_seconds" not in samples
        and "swarm_peer_up" not in samples
    )
    assert value(samples, "swarm_problems", level="error") == 0


def test_grafana_draws_what_there_is() -> None:
    samples = set(scrape(fed()))
    asked = {
        name
        for panel in GRAFANA["panels"]
        for target in panel["targets"]
        for name in re.findall(r"swarm_\w+", target["expr"])
    }
    assert len(asked) > 25 and asked <= samples, asked - samples
    drawn = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples} - drawn == {"swarm_run_info"}


@pytest.mark.parametrize("panel", GRAFANA["panels"], ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows(panel: dict) -> None:  # type: ignore[type-arg]
    assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} and panel["targets"]


def test_the_panels_tile_the_board() -> None:
    places = [panel["gridPos"] for panel in GRAFANA["panels"]]
    taken = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in GRAFANA["panels"]}) == len(places)


def test_strangers_are_counted_apart_and_are_no_peers() -> None:
    feed = fed()
    before = scrape(feed)
    for number in range(100, 120):
        stranger = heard(who(number), 30, time.time(), role=Role.SAMPLER)
        feed(msgspec.structs.replace(stranger, invited=False))
    samples = scrape(feed)
    assert value(before, "swarm_strangers") == 0 and value(samples, "swarm_strangers") == 20
    for name in ("swarm_peers", "swarm_peer_up"):
        assert samples[name] == before[name], name


def test_the_alarm_for_refusals_counts_no_group_twice() -> None:
    rules = (ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8")
    refuses = rules.split("alert: SwarmRefuses")[1].split("alert:")[0]
    refused, judged = re.findall(r"swarm_verdicts_total\{(.*?)\}", refuses)
    assert (refused, judged) == ('verdict!~"admit|expired"', 'verdict!="expired"'), "admitted, then too old"
