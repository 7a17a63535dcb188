"""Which gradient is due to be computed again."""

from __future__ import annotations

import random

from swarm.core.gradient_checks.recomputed import Rechecks
from swarm.types import PeerId

A, B = PeerId("a"), PeerId("b")
SHARE = 0.05


def checked(checks: Rechecks, peer: PeerId, zeros: bool) -> None:
    """A gradient of it agrees."""
    assert checks.found(peer, 1.0, 1.0, True, 0.0) is None
    checks.spent(peer, 1.0, 2, 0.0, zeros=zeros)


def test_a_new_member_is_due_until_more_than_zeros_of_its_gradient_agreed() -> None:
    checks = Rechecks(random.Random(1), SHARE)
    for _ in range(2):
        checked(checks, A, zeros=True)
        assert checks.is_blank(A) and checks.due([A], 0.0) == A
    checked(checks, A, zeros=False)
    assert not checks.is_blank(A) and checks.due([A], 0.0) is None


def test_a_member_that_others_name_is_due_likewise_and_others_are_not() -> None:
    checks = Rechecks(random.Random(1), SHARE)
    checked(checks, A, zeros=False)
    checked(checks, A, zeros=True)
    assert not checks.is_blank(A) and checks.due([A], 0.0) is None
    checks.heard({A: [B]})
    checked(checks, A, zeros=True)
    assert checks.is_blank(A) and checks.due([A], 0.0) == A and checks.due([B], 0.0) == B
