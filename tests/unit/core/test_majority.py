"""Members that most of the others name."""

from __future__ import annotations

import pytest

from swarm.core.gradient_checks.majority import named_by_most


@pytest.mark.parametrize(
    ("named", "out"),
    [
        ({"a": ["liar"], "b": ["liar"], "c": [], "liar": ["a"]}, ["liar"]),
        ({"a": ["liar"], "b": [], "c": [], "liar": ["liar"]}, []),
        ({"a": ["liar"], "b": [], "liar": []}, []),
        ({"a": ["b"], "b": ["a"]}, []),
        ({"a": ["liar", "liar"], "b": [], "liar": ["a"]}, []),
        ({"a": ["b", "liar"], "b": ["a", "liar"], "c": ["a", "b"], "liar": ["a", "b"]}, []),
    ],
)
def test_a_member_that_more_than_half_of_the_others_name_is_left_out(
    named: dict[str, list[str]], out: list[str]
) -> None:
    assert list(named_by_most(named)) == out
