"""Memory that a process keeps: what it takes again and again costs no page faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swarm.processes import allocation

TIMES = """
import resource, sys
from swarm.processes import allocation
allocation.keep_freed(*map(int, sys.argv[1:]))
for size in (48 << 20, 48 << 20, 48 << 20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * size
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
allocation.give_back()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * size
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*most: int) -> list[int]:
    """Page faults of the first, second and third time that a process takes 48 MiB and frees it, and once more
    after it gave all back."""
    told = subprocess.run([sys.executable, "-c", TIMES, *map(str, most)], capture_output=True, check=True)
    return [int(line) for line in told.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has mallopt")
def test_what_was_freed_is_taken_again_without_a_fault() -> None:
    first, *again, later = faults()
    assert first > 100 and max(again) < 0.1 * first and later > 0.5 * first
    assert min(faults(1 << 20)) > 0.5 * first, "more than may be kept goes back"


def test_a_person_who_said_what_torch_is_to_do_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    allocation.large_pages()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "0"
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    allocation.large_pages()
    assert os.environ.pop("THP_MEM_ALLOC_ENABLE") == "1"
