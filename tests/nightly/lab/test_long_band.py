"""The band of honest samplers is measured on what the learner that ships sees, and is reported by lag."""

from __future__ import annotations

from lab.studies.liars.band import honest, liars, measure
from lab.studies.liars.liars import suffer
from swarm.core.intake import claimed_logprobs


def test_a_liar_costs_less_where_the_learner_doubts_and_honest_groups_are_within_the_band():
    row = measure(honest(quick=True)[0])
    assert (
        max(float(value) for name, value in row.items() if name.endswith("evidence_max"))
        < claimed_logprobs.GROUP_EVIDENCE_LIMIT
    )
    last = {(one.nats > 0, one.doubts): float(suffer(one)["last"]) for one in liars(quick=True)}
    assert last[True, True] > last[True, False] + 0.1 and last[False, True] == last[False, False]
