"""The table of mutants keeps up with the source that it changes."""

from __future__ import annotations

from lab import mutants


def test_each_mutant_changes_one_place_of_a_file() -> None:
    rows = mutants.load(mutants.TABLE)
    assert rows and len(rows) == len({row[:3] for row in rows})
    stale = [row for row in rows if not mutants.applies(row, mutants.ROOT) or row.old == row.new]
    assert not stale, "these rows of lab/mutants.toml need the text that stands in the source now"
