"""Stand-ins: small bytes in place of a large model's, in a world that is as much smaller as they are.

    scenario     release = 1.2 GB, patch = 0.8 %     sizes of a real one
    stand-in     100 kB, of which 0.8 % change       made, hashed, patched and held, by the code that
                                                     ships
    lines        each byte counts as 12 kB           as long under way as the real one

A stand-in is the small policy that is really trained, and a filler beside it: values of which a version
changes enough to give its patches the required size. The filler of a version follows from seed and version
alone, so that all learners have the same. Not to scale, and in real seconds and bytes: gossip, requests, leaf
lists, and constants derived from a size in bytes, for example the seconds that a learner's state may take. A
version has fewer blocks than a real one, so that its receivers have less to give each other at first; a patch
over eight versions is twice as large as one, a real one four times.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.frames.wire import decode
from swarm.learn.files.weights import release_bytes
from swarm.learn.models.policy import Policy
from swarm.learn.models.tabular import Tabular
from swarm.net.blobs.sharing import Holding
from swarm.protocol import Service
from swarm.sim.scenario import Scenario, ScenarioError
from swarm.storage import patch_files
from swarm.storage.blocks import Blocks, grain
from swarm.tasks.toy import Toy

Values = NDArray[Any]
"""uint16, each a bfloat16."""

LEAST = 64 << 10
"""Bytes of a stand-in at least."""

PATCH = 600
"""Bytes of its patches at least, beside twice those of the policy in it: half of them are lengths and heads
of streams."""

MOST = 8 << 20
"""Bytes of a stand-in at most: a thousand peers hold some of them each."""

VERSIONS = 16
"""Versions of which the filler is kept: learners are at most a few apart."""

EPOCH = 0x3C00
"""A bfloat16 of 2**-7. Changes of one bit, thousands of times, leave its sign and keep it finite."""

NEAR = 8
"""Values of which one changes, where any do, as in a real model. The others are the same in all versions."""


BLOCKS = (Service.BLOBS, Service.PATCHES, Service.STATES)
"""Services whose answers hold blocks."""


class Filler:
    """The values beside the policy, by version."""

    def __init__(self, count: int, changes: int, seed: int) -> None:
        """`count` values, of which each version changes `changes`."""
        self._count, self._changes, self._seed = count, changes, seed
        self._first = EPOCH + self._rng(0).integers(0, 1 << 10, count, np.uint16)
        self._versions: dict[int, Values] = {0: self._first}

    def at(self, version: int) -> Values:
        """Those of a version from 0 on."""
        found = self._versions.get(version)
        if found is None:
            known = max((one for one in self._versions if one < version), default=0)
            found = self._versions.get(known, self._first).copy()
            for step in range(known + 1, version + 1):
                self._change(found, step)
            self._versions[version] = found
            if len(self._versions) > VERSIONS:
                del self._versions[next(iter(self._versions))]
        return found

    def _change(self, values: Values, version: int) -> None:
        rng = self._rng(version)
        chosen = rng.choice(min(self._count, NEAR * self._changes), self._changes, replace=False)
        values[chosen] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(chosen))

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=(self._seed << 32) + stream))


class ScaledModel:
    """Small contents in place of a scenario's messages."""

    def __init__(self, scenario: Scenario) -> None:
        """Raises ScenarioError where there is no such stand-in."""
        sizes = scenario.bytes
        if sizes is None or scenario.run.task.name != Toy.environment:
            raise ScenarioError("[bytes] is for scenarios of the task 'toy', whose policy is a table")
        self._sizes = sizes
        self._options = {name: int(size) for name, size in scenario.run.task.options.items()}
        policy = 2 * sum(parameter.numel() for parameter in Tabular(**self._options).module.parameters())
        self._count = max(LEAST, round((PATCH + 2 * policy) / sizes.patch)) // 2
        self._seed = scenario.seed
        few, many = 0, self._count
        if 2 * self._count > MOST or self._patch(few) > sizes.patch:
            raise ScenarioError(
                f"bytes.patch = {sizes.patch}: too little for a policy of {policy} bytes; give it fewer rows,"
                " as run.task.options = { buckets = 4 }"
            )
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (middle, many) if self._patch(middle) <= sizes.patch else (few, middle)
        self.filler = Filler(self._count, few, self._seed)
        self.values = round(sizes.release / 2)
        """Of a gradient."""
        self.unit = sizes.release / self._size
        """Bytes that a byte of a block counts as."""
        self._contribution = self.values / (policy // 2)
        """Bytes that a byte of a contribution counts as: it has no filler."""

        with self.cut():
            self.first = Blocks.of(release_bytes(self.table().module))
        """Version 0, as it is released."""
        self.begun = sizes.begun
        """Whether all peers have it from the start."""

    def table(self) -> Tabular:
        """The policy with its filler, at version 0."""
        table = Tabular(**self._options, filler=self._count)
        self.fill(table, 0)
        return table

    def fill(self, table: Policy, version: int) -> None:
        """Set the filler to that of a version."""
        values = torch.from_numpy(self.filler.at(version).view(np.int16)).view(torch.bfloat16)
        table.module.get_buffer("filler").copy_(values)

    def cut(self) -> AbstractContextManager[None]:
        """Cut blocks as the scenario says."""
        return grain(_cut(self._size, self._sizes.blocks), math.ceil(self._step / self._sizes.patch_blocks))

    def weigh(self, service: str, message: bytes, is_answer: bool) -> int:
        """Bytes that a message counts as on a line."""
        if service == Service.GROUPS and not is_answer:
            return self._sizes.group or len(message)
        if service == Service.CONTRIBUTIONS and is_answer:
            return round(self._contribution * len(message))
        if service in BLOCKS and is_answer:
            return len(message) + round((self.unit - 1) * carried(message))
        return len(message)

    def _patch(self, changes: int) -> float:
        """The share of a release that a patch has when all of the policy changes, and `changes` values of the
        filler."""
        self.filler = Filler(self._count, changes, self._seed)
        before, after = self.table(), self.table()
        self.fill(after, 1)
        with torch.no_grad():
            logits = after.module.get_parameter("logits")
            logits += torch.randn(logits.shape, generator=torch.Generator().manual_seed(self._seed))
        old, new = (release_bytes(table.module) for table in (before, after))
        self._size = len(new)
        with grain(_cut(self._size, self._sizes.blocks), 1):
            self._step = len(patch_files.make(Blocks.of(old), Blocks.of(new)))
        return self._step / self._size


def carried(answer: bytes) -> int:
    """Bytes of the block in an answer."""
    return len(decode(answer, Holding).data)


def _cut(size: int, blocks: int) -> int:
    """Bytes of a block of `size` bytes in `blocks`: even, since values have two."""
    return 2 * math.ceil(size / blocks / 2)
