"""The swarm's figures in Prometheus' text format: `/metrics`.

Everything is computed from a SwarmState at each request, so that a scrape and the dashboard cannot differ.
Figures have base units (seconds, bytes, ratios 0 to 1); an unknown figure is left out instead of being zero.
Labels have few values; only `swarm_peer_up` is labelled by peer, and a SwarmState keeps a bounded number of
those. Not handled here: drawing (dashboard/grafana.json).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dashboard import views
from dashboard.fold.state import SwarmState
from dashboard.serve.source import Moment
from dashboard.serve.state_view import view_of

CURVES = {
    "accuracy": ("swarm_accuracy_ratio", "Held-out accuracy of the version that was judged last."),
    "average_seconds": ("swarm_averaging_seconds", "Length of the last averaging round."),
    "cosine": ("swarm_gradient_cosine_ratio", "Cosine between the gradients of two half batches."),
    "entropy": ("swarm_entropy_nats", "Policy entropy per token."),
    "ess": ("swarm_effective_sample_size_ratio", "Effective sample size of a group's importance weights."),
    "flat": ("swarm_flat_groups_ratio", "Groups whose rewards are all equal, which teach nothing."),
    "grad_norm": ("swarm_gradient_norm", "Norm of the averaged gradient."),
    "kl": ("swarm_kl_nats", "KL divergence from sampler to learner per token."),
    "length": ("swarm_completion_length_tokens", "Mean length of a completion."),
    "reward": ("swarm_reward", "Mean reward of the trained groups."),
    "weight_max": ("swarm_importance_weight_max", "Largest importance weight of a step."),
    "weight_var": ("swarm_importance_weight_variance", "Variance of the importance weights of a step."),
    "zero": ("swarm_zero_weight_ratio", "Samples whose importance weight is zero."),
}
"""Curve -> the gauge of its last value."""

LAG_VERSIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LAG_SECONDS = tuple(2.0**power for power in range(-4, 21))
"""Bounds as the learners count them: a power of two, from a sixteenth of a second to twelve days."""

INFINITE = "+Inf"


def exposition(moment: Moment, readers: int) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(moment, readers))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, moment: Moment, readers: int) -> None:
        self._moment, self._readers = moment, readers

    def collect(self) -> Iterable[Metric]:
        state, now = self._moment.state, self._moment.now
        view = view_of(state, now, quiet=self._moment.quiet, replay=self._moment.span)
        yield from _run(view)
        yield from _head(view.head)
        yield from _peers(view.peers)
        yield from _last_values(state)
        yield from _groups(view)
        yield _counter(
            "swarm_received_bytes", "Bytes that peers received, by purpose.", "purpose", view.traffic.total
        )
        levels = dict.fromkeys(("info", "warning", "error"), 0.0) | Counter(
            problem.level for problem in view.problems
        )
        yield _labelled("swarm_problems", "Problems that last, by level.", "level", levels)
        yield _gauge("swarm_page_readers", "Open streams of this dashboard.", self._readers)
        yield CounterMetricFamily(
            "swarm_events_folded", "Events that this window has folded.", value=view.revision
        )
        yield _gauge("swarm_last_event_age_seconds", "Time since this window heard another peer.", view.quiet)


def _run(view: views.StateView) -> Iterator[Metric]:
    run = view.run
    labels = {"name": run.name, "task": run.task, "model": run.model, "objective": run.objective}
    yield InfoMetricFamily("swarm_run", "What the swarm trains.", value=labels)
    yield _gauge(
        "swarm_window_versions",
        "Admission: lag in versions beyond which nothing is trained on.",
        run.window.versions,
    )
    yield _gauge(
        "swarm_window_seconds", "Admission: age beyond which nothing is trained on.", run.window.seconds
    )


def _head(head: views.HeadView) -> Iterator[Metric]:
    yield _gauge("swarm_policy_version", "Newest release.", head.version)
    yield _gauge("swarm_release_age_seconds", "Time since the newest release.", head.age)
    yield CounterMetricFamily("swarm_trained_groups", "Groups in all optimizer steps.", value=head.trained)
    yield _gauge(
        "swarm_groups_per_second", "Groups trained per second, as the learners claim.", head.groups_per_second
    )
    yield _gauge(
        "swarm_tokens_per_second", "Tokens trained per second, as the learners claim.", head.tokens_per_second
    )
    yield _gauge(
        "swarm_learner_busy_ratio", "Share of their time that learners compute, as they claim.", head.busy
    )
    yield _gauge(
        "swarm_strangers",
        "Peers here without a membership, and without a group that a learner took.",
        head.strangers,
    )


def _peers(rows: Iterable[views.Row]) -> Iterator[Metric]:
    counts = GaugeMetricFamily(
        "swarm_peers", "Known peers that are no strangers, by role and status.", labels=("role", "status")
    )
    up = GaugeMetricFamily(
        "swarm_peer_up", "1 while the peer, no stranger, is alive.", labels=("peer", "name", "role")
    )
    rows = [row for row in rows if row.proven]
    for (role, status), count in sorted(Counter((row.role, row.status) for row in rows).items()):
        counts.add_metric((role, status), count)
    for row in rows:
        up.add_metric((row.id, row.name, row.role), float(row.status == "alive"))
    yield counts
    yield up


def _last_values(state: SwarmState) -> Iterator[Metric]:
    for curve, (name, text) in CURVES.items():
        known = state.series.get(curve)
        yield _gauge(name, text, known.last() if known else None)
    judged = state.evaluations.last
    sets = {name: one.accuracy for name, one in judged.sets.items()} if judged else {}
    text = "Accuracy on an evaluation set of the version that was judged last."
    yield _labelled("swarm_set_accuracy_ratio", text, "set", sets)


def _groups(view: views.StateView) -> Iterator[Metric]:
    yield _counter("swarm_verdicts", "Groups by the verdict of admission.", "verdict", view.verdicts)
    yield _counter("swarm_tokens", "Tokens by what became of them.", "end", view.tokens)
    versions = view.lag.versions
    total = sum(lag * groups for lag, groups in versions)
    yield _histogram(
        "swarm_trained_lag_versions", "Lag of trained groups in versions.", LAG_VERSIONS, versions, total
    )
    # Learners count ages by upper bound, so their sum is unknown.
    yield _histogram(
        "swarm_trained_lag_seconds", "Age of trained groups.", LAG_SECONDS, view.lag.seconds, None
    )


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric((), value)
    return family


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family


def _histogram(
    name: str, text: str, bounds: Iterable[float], counts: Iterable[tuple[float, int]], total: float | None
) -> HistogramMetricFamily:
    counts = list(counts)
    buckets = [
        (str(float(bound)), float(sum(groups for lag, groups in counts if lag <= bound))) for bound in bounds
    ]
    buckets.append((INFINITE, float(sum(groups for _, groups in counts))))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)
