"""AdamW in full precision: torch's arithmetic, without its class of an optimizer.

    parameters with gradients --torch.optim.adamw.adamw--> the same parameters, a step further

To make a torch.optim.Optimizer, or to step one, imports torch's compilers: three seconds of a processor in
each process that trains, half of a learner's start. Each step is that of torch.optim.AdamW to the last bit.
Invariant: `state` has what torch's has, by parameter. Not handled: groups of parameters, closures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

EPSILON = 1e-8
"""What is added to the root of the second moment: torch's."""


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) of `parameters` at the learning rate of
    `param_groups[0]["lr"]`."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._betas, self._decay = betas, weight_decay
        self.param_groups: list[dict[str, Any]] = [{"lr": lr}]
        self.state: dict[Tensor, dict[str, Any]] = {}

    def begin(self, parameter: Tensor) -> None:
        """Create the state of a parameter that has not stepped: `step` () and two moments of its shape."""
        moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
        self.state[parameter] = {"step": torch.tensor(0.0), **moments}

    @torch.no_grad()
    def step(self) -> None:
        """Step the parameters that have a gradient."""
        stepping = [parameter for parameter in self._parameters if parameter.grad is not None]
        for parameter in stepping:
            if parameter not in self.state:
                self.begin(parameter)
        states = [self.state[parameter] for parameter in stepping]
        beta1, beta2 = self._betas
        adamw(
            stepping,
            [parameter.grad for parameter in stepping if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=self.param_groups[0]["lr"],
            weight_decay=self._decay,
            eps=EPSILON,
            maximize=False,
        )
