"""The table of roles names programs that are there, and that can be built as the table says."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

import pytest

from swarm.protocol import ROLES, PolicyUse, Role

GIVEN = {
    PolicyUse.TRAINED: 6,
    PolicyUse.SAMPLED: 4,
    PolicyUse.USED: 4,
    PolicyUse.REPLAYED: 4,
    PolicyUse.KEPT: 2,
    PolicyUse.UNUSED: 2,
}
"""What a program is built from, by number: `PolicyUse` says what they are."""


@pytest.mark.parametrize("role", Role)
def test_every_role_has_a_program_that_is_built_from_what_its_row_says(role: Role) -> None:
    row = ROLES[role]
    program = resolve_name(row.program)
    inspect.signature(program).bind(*range(GIVEN[row.policy]))
    assert row.policy is PolicyUse.UNUSED or inspect.iscoroutinefunction(program.run)
