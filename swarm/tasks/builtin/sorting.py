"""Task `sorting`: write the digits of a number in ascending order.

`5231=` asks for `1235`. No digit of the answer follows from the answer's earlier digits alone: the policy has
to find the smallest digit that is still missing, repetitions included. A tenth of all exercises is held out,
chosen by a hash of the answer: not one arrangement of a held-out collection of digits occurs in training, so
the answers themselves cannot be learned by heart.
"""

from __future__ import annotations

from swarm.tasks.builtin.digits import Digits


class Sorting(Digits):
    """Options: `digits` (4), `partial` (false): credit per digit in its right place instead of all or
    nothing."""

    environment = "sorting"
    characters = "0123456789="
    digits = 4
    most = 60

    def answer(self, question: str) -> str:
        return "".join(sorted(question))

    def split(self, question: str) -> str:
        """About 70 of 715 collections of four digits are held out, in about 1000 arrangements."""
        return self.answer(question)
