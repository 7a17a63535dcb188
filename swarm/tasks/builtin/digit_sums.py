"""Task `digit-sums`: running digit sums modulo 10, the demo's task.

`52318=` asks for `57019`: digit k of the answer is the sum of the first k digits of the question, modulo 10.
100 000 tasks at five digits; an answer is right by guessing once in 100 000 tries. A
tenth of all exercises, chosen by a hash of the question alone, is held out: the split is the same for every
seed.
"""

from __future__ import annotations

from itertools import accumulate

from swarm.tasks.builtin.digits import Digits


class DigitSums(Digits):
    """Options: `digits` (5), `partial` (false): credit per right digit instead of all or nothing."""

    environment = "digit-sums"
    # more than the exercise needs: its embedded policy keeps the tokens it has always had
    characters = "0123456789=+-*, "

    def answer(self, question: str) -> str:
        return "".join(str(total % 10) for total in accumulate(map(int, question)))
