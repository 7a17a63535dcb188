"""A learner that sends its gradient turned around and four times as long, as a process; all else is what
`swarm` runs.

    python tests/support/lying_learner.py join WORD --as learner --folder DIR ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from peers import cli
from swarm.net.averaging.averager import HiveAverager
from swarm.net.ports import Average

honest = HiveAverager.average


async def average(
    averager: HiveAverager, version: int, tensors: Sequence[torch.Tensor], *more: Any
) -> Average | None:
    for tensor in tensors:
        tensor.mul_(-4)
    return await honest(averager, version, tensors, *more)


if __name__ == "__main__":
    with mock.patch.object(HiveAverager, "average", average):
        sys.exit(cli.main(sys.argv[1:]))
