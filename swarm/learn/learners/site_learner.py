"""A learner of a run in `sites` mode: steps of its own between two versions, and an outer step to the next.

    version v: anchor (P,) = masters, the same at all learners
        --step_locally--> masters          H times, AdamW, its own
        --contribution--> bytes           of anchor - masters + residual   (swarm.learn.learners.contribution)
        --outer_step----> version v+1      mean of the contributions that count, Nesterov (DiLoCo, arXiv
                                           2311.08105): anchor and momentum, the same at all again

Invariants: anchor and momentum follow from the lists of contributions alone, bit for bit, since every
operation on them is a single rounded one per value, on the CPU. No training is lost: the part that a
contribution did not carry is the residual, and steps for a version that was made without them are carried
over to the next one. Weights and state are those of the version, whatever was stepped since; a checkpoint has
the residual besides, and steps that were not contributed are taken again after it. Costs 12 bytes a trained
parameter of main memory beside the model and its optimizer. Not handled here: which contributions count
(swarm.core.agreement.site_lists), a model on several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.learn.files.weights import Snapshot
from swarm.learn.learners import contribution as contributions
from swarm.learn.learners.learner import Learner
from swarm.learn.models.policy import Policy
from swarm.norm import norm
from swarm.settings.config import Run, Training
from swarm.storage.blocks import Damaged
from swarm.storage.image import MakeDraft, in_memory
from swarm.storage.weights import Weights

OUTER_RATE = 0.7
"""Step along the mean of the contributions, as in DiLoCo (arXiv 2311.08105): what runs adapt to the number of
their local steps is the momentum."""

MOMENTUM, RESIDUAL = "outer/momentum", "outer/residual"
"""Names of tensors (P,) in a state; the second is in checkpoints only."""


class CountedContribution(NamedTuple):
    """A contribution of a list."""

    data: bytes
    factor: float


class SiteLearner(Learner):
    def __init__(
        self, policy: Policy, run: Run, settings: Training | None = None, ram: Callable[[], int] | None = None
    ) -> None:
        """As `Learner`."""
        super().__init__(policy, run, settings, ram)
        self._anchor = self._optimizer.gather()
        self._momentum, self._residual = torch.zeros(self.size), torch.zeros(self.size)
        self._sent = b""
        """My contribution to the next version."""
        self._local = False
        """Whether the masters have left the anchor."""

    @property
    def largest(self) -> int:
        """Bytes of a contribution at most."""
        return contributions.largest(self.size, self.run.averaging.density)

    def norm(self, data: bytes) -> float:
        """L2 norm of a contribution. Raises ValueError where it is none to this model."""
        return contributions.norm(data, self.size, self.run.averaging.density)

    # --- a version ------------------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Whether I have steps that are in no version and no contribution before this one."""
        return self._local

    def step_locally(self, vector: Tensor) -> dict[str, float]:
        """As `step`, but of the masters alone: the version stays."""
        self._local = True
        return self._step(vector)

    def undo_steps(self) -> None:
        """Undo the steps since the version; the residual of earlier contributions stays."""
        self._go_on(None)

    def contribution(self) -> bytes:
        """The training since the version, plus the residual of earlier contributions. Raises ValueError when
        that is not finite."""
        owed = self._residual + (self._anchor - self._optimizer.gather())
        self._sent = contributions.encode(owed.numpy(), self.run.averaging.density)
        return self._sent

    def outer_step(self, counted: Sequence[CountedContribution], mine: bool) -> dict[str, float]:
        """The next version, of the contributions in this order; `mine`: whether this learner's last one is
        among them. Returns the norm of their mean."""
        settings = self.run.averaging
        mean = torch.zeros(self.size)
        for one in counted:
            contributions.add(mean.numpy(), one.data, one.factor, settings.density)
        progress = self._settled(self._optimizer.gather(), mine)
        self._momentum.mul_(settings.outer_momentum).add_(mean)
        change = torch.mul(self._momentum, settings.outer_momentum).add_(mean).mul_(OUTER_RATE)
        self._anchor.sub_(change)
        self._go_on(progress)
        self.version += 1
        return {"grad_norm": norm(mean)}

    def _settled(self, masters: Tensor, mine: bool) -> Tensor | None:
        """What these masters are from the anchor, where that is in no version; with `mine` nothing, and the
        residual is what my contribution did not carry."""
        progress = self._anchor - masters if self._local else None
        if mine and self._sent:
            if progress is not None:
                self._residual.add_(progress)
            contributions.subtract(self._residual.numpy(), self._sent, self.run.averaging.density)
            progress = None
        self._sent = b""
        return progress

    def _lose_steps(self) -> None:
        """The masters are of no use, and the residual of a sent contribution can no longer be computed."""
        if self._sent:
            self._residual.zero_()
        self._sent, self._local = b"", False

    def _go_on(self, progress: Tensor | None) -> None:
        """Set the masters to the anchor, or as far from it as they were from the last one."""
        self._local = progress is not None
        self._optimizer.place(self._anchor if progress is None else self._anchor - progress)

    # --- as every learner -----------------------------------------------------------------------------------

    def snapshot(self, draft: MakeDraft = in_memory) -> Snapshot:
        with self._at_the_version():
            return super().snapshot(draft)

    @contextmanager
    def _at_the_version(self) -> Iterator[None]:
        """The masters are the anchor in here."""
        if not self._local:
            yield
            return
        masters = self._optimizer.gather()
        self._optimizer.place(self._anchor)
        try:
            yield
        finally:
            self._optimizer.place(masters)

    def load(self, released: Weights, fresh: bool = False) -> None:
        """As `Learner.load`. Training since the version is carried over to the release; a contribution that
        was sent counts as part of it: it may be, and counting it twice does more harm than losing it.
        """
        first, masters = fresh or self.version < 0, self._optimizer.gather()
        self._optimizer.place(self._anchor)
        try:
            super().load(released, fresh)
        except (ValueError, Damaged):
            self._optimizer.place(masters)
            raise
        if first:
            self._momentum.zero_()
            self._lose_steps()
        if fresh:
            self._residual.zero_()
        progress = self._settled(masters, mine=True)
        self._anchor = self._optimizer.gather()
        self._go_on(progress)

    def restorer(self) -> Callable[[], None]:
        restore, masters = super().restorer(), self._optimizer.gather()
        residual, sent, local = self._residual.clone(), self._sent, self._local

        def whole() -> None:
            restore()
            self._optimizer.place(masters)
            self._residual, self._sent, self._local = residual, sent, local

        return whole

    def _only_in_checkpoints(self) -> dict[str, Tensor]:
        """The residual of contributions; one that was sent may count by now. Unsent steps since the version
        are left out: their groups are trained again."""
        residual = self._residual.clone()
        if self._sent:
            residual.add_(self._anchor - self._optimizer.gather())
            contributions.subtract(residual.numpy(), self._sent, self.run.averaging.density)
        return {RESIDUAL: residual}

    @contextmanager
    def _dumped(self) -> Iterator[dict[str, Tensor]]:
        anchor = {f"weight/{name}": piece for name, piece in self._optimizer.cut(self._anchor).items()}
        yield self._optimizer.dump() | anchor | {MOMENTUM: self._momentum}

    def _load_tensors(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Training since the version is carried over to another learner's state as to a release; after a load
        of this learner's own checkpoint its groups come again."""
        for name in (MOMENTUM, RESIDUAL):
            found = tensors.get(name)
            if found is None and name == RESIDUAL:
                continue
            if found is None or found.shape != (self.size,) or found.dtype is not torch.float32:
                raise ValueError(f"this checkpoint is of another run: it has no {name} of {self.size} values")
        masters = self._optimizer.gather()
        super()._load_tensors(tensors, steps)
        if RESIDUAL in tensors or self.version < 0:
            self._lose_steps()
        progress = self._settled(masters, mine=True)
        self._anchor = self._optimizer.gather()
        self._momentum = tensors[MOMENTUM].clone()
        self._residual = tensors.get(RESIDUAL, self._residual).clone()
        self._go_on(progress)


def of_mode(run: Run) -> type[Learner]:
    """The learner on one device of this run."""
    return SiteLearner if run.averaging.mode == "sites" else Learner
