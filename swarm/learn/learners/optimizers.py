"""AdamW over float32 master weights: a flat gradient in, updated parameters out.

    vector (P,), cut in the parameters' order --AdamW--> masters (float32)
        --round to bfloat16--> parameters (what forward and backward use)

Parameters have the values of a release, also where they are float32: a gradient follows from the version's
bytes and the batch, so that a learner that loaded a version and one that stepped to it compute the same one.
What training adds below those values is in the masters alone. The vector is moved to the device a bucket at a
time. Named tensors out and in (`dump`, `load`) reproduce the next step bit for bit. Not handled here: the
source of gradients, learning rates, several devices (each rank of a sharded learner steps its own shards).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from swarm import extras
from swarm.learn.files import weights
from swarm.learn.files.checkpoint import MOST
from swarm.settings import config

if TYPE_CHECKING:
    from torch.optim import Optimizer

BETAS = (0.9, 0.99)
"""Decay of the first and the second moment. The second averages over about 100 steps: a run has hundreds, and
the usual 0.999 would average over more than most have."""

BUCKET = 1 << 24
"""Parameters that step together: 64 MiB of gradient, and as much again for AdamW's intermediate results."""

BLOCK = 256
"""Values that share one scale in bitsandbytes' 8-bit moments; the library fixes it."""


class Form(NamedTuple):
    """Shape and dtype of a tensor of the optimizer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class MasterOptimizer:
    """AdamW with moments in 32 or 8 bits, over the float32 masters of `named` parameters: P values in all."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], settings: config.Optimizer, rounds_later: bool = False
    ) -> None:
        """`rounds_later`: the passes themselves round float32 parameters, which are their own masters then.

        Raises ValueError when the optimizer is not installed, and for a learning rate that is not above 0.
        """
        if not settings.lr > 0:
            raise ValueError(
                "run.optimizer.lr is 0: a run is given its rate where it begins (learning_rates.py)"
            )
        self._named, self._settings = dict(named), settings
        self.masters = {
            name: parameter if rounds_later else nn.Parameter(parameter.detach().to(torch.float32, copy=True))
            for name, parameter in self._named.items()
        }
        for name in self._named:
            self._cast(name)
        self._buckets = _buckets(self.masters)
        self._optimizer = self._new()

    @torch.no_grad()
    def prepare(self) -> None:
        """Allocate missing moments and the memory of a step, so that a lack of memory shows before anything
        changes. Raises torch's out-of-memory errors."""
        masters = list(self.masters.values())
        fresh = [(index, one) for index, one in enumerate(masters) if not self._optimizer.state.get(one)]
        try:
            for index, master in fresh:
                self._begin(index, master)
            if masters and masters[0].is_cuda:
                largest = max(sum(self.masters[name].numel() for name in bucket) for bucket in self._buckets)
                # The gradient and two intermediate results; freed at once, it stays in torch's cache for
                # them.
                torch.empty(3 * largest, device=masters[0].device)
        except Exception:
            for _, master in fresh:
                self._optimizer.state.pop(master, None)
            raise

    @torch.no_grad()
    def step(self, vector: Tensor, scale: float, rate: float) -> None:
        """One AdamW step along the gradient `vector` (P,) float32 times `scale`, at learning rate `rate`:
        masters first, then the parameters that are cast from them."""
        self._optimizer.param_groups[0]["lr"] = rate
        pieces = self.cut(vector)
        for bucket in self._buckets:
            for name in bucket:
                master = self.masters[name]
                master.grad = pieces[name].to(master.device) * scale
            self._optimizer.step()
            for name in bucket:
                self.masters[name].grad = None
                self._cast(name)

    @torch.no_grad()
    def refresh(self, exact: bool = False) -> None:
        """Update the masters after the parameters were set to a release: they follow it (`weights.follow`),
        or with `exact` take its values."""
        for name, parameter in self._named.items():
            if self.masters[name] is parameter:
                continue
            if exact:
                self.masters[name].copy_(parameter)
                self._cast(name)
            else:
                weights.follow(self.masters[name], parameter)

    def gather(self) -> Tensor:
        """All masters as one vector (P,) float32 on the CPU, a copy."""
        parts = [master.detach().reshape(-1).cpu() for master in self.masters.values()]
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    @torch.no_grad()
    def place(self, vector: Tensor) -> None:
        """Set masters and parameters to what `gather` returned."""
        for name, piece in self.cut(vector).items():
            self.masters[name].copy_(piece)
            self._cast(name)

    def cut(self, vector: Tensor) -> dict[str, Tensor]:
        """Name -> its part of `vector` (P,), in its shape: not copies."""
        parts = vector.split([master.numel() for master in self.masters.values()])
        both = zip(self.masters.items(), parts, strict=True)
        return {name: part.view_as(master) for (name, master), part in both}

    def forget(self) -> None:
        """Forget all moments and free their memory."""
        self._optimizer = self._new()

    def dump(self) -> dict[str, Tensor]:
        """The whole state as named tensors: `weight/NAME` (float32, of the parameter's shape), and for
        parameters that have stepped `step/NAME` (scalar) and their moments, for example `exp_avg/NAME`."""
        tensors: dict[str, Tensor] = {f"weight/{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            state = self._optimizer.state.get(master, {})
            for key in self._forms(master) if state else ():
                tensors[f"{key}/{name}"] = torch.as_tensor(state[key])
        return tensors

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless names, dtypes and shapes are those that `load` takes, and no parameter has
        stepped less than never: the next step divides by what follows from that."""
        for name, master in self.masters.items():
            wanted = {"weight": Form(tuple(master.shape), torch.float32)}
            if any(f"{key}/{name}" in tensors for key in self._forms(master)):
                wanted |= self._forms(master)
            for key, form in wanted.items():
                found = tensors.get(f"{key}/{name}")
                if found is None or Form(tuple(found.shape), found.dtype) != form:
                    raise ValueError(
                        f"this checkpoint is of another model: {key} of {name} is missing or of another shape"
                    )
                if key == "step" and not 0 <= float(found) <= MOST:
                    raise ValueError(f"this checkpoint cannot be read: {name} has stepped {found} times")

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the result of `dump`; the next step is then bit for bit that of the dumped optimizer. `check`
        decides before whether `tensors` fit."""
        self._optimizer = self._new()
        for index, (name, master) in enumerate(self.masters.items()):
            master.copy_(tensors[f"weight/{name}"])
            self._cast(name)
            if f"step/{name}" in tensors:
                self._begin(index, master)
                state = self._optimizer.state[master]
                for key in self._forms(master):
                    value = tensors[f"{key}/{name}"]
                    state[key] = (
                        int(value) if isinstance(state[key], int) else value.to(state[key].device, copy=True)
                    )

    @torch.no_grad()
    def _cast(self, name: str) -> None:
        if self._named[name] is not self.masters[name]:
            self._named[name].copy_(self.masters[name].to(torch.bfloat16))

    def _new(self) -> Optimizer:
        settings = self._settings
        rates: dict[str, Any] = {
            "lr": settings.lr,
            "betas": BETAS,
            "eps": 1e-8,
            "weight_decay": 0.0,  # at these rates and so few steps it would do nothing
        }
        if settings.name == "adamw":
            return torch.optim.AdamW(self.masters.values(), **rates)
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ValueError(f"adamw8bit is bitsandbytes' ({error}): {extras.install('quant')}") from error
        optimizer: Optimizer = AdamW8bit(list(self.masters.values()), **rates)
        return optimizer

    def _begin(self, index: int, master: Tensor) -> None:
        """Create the state of a parameter that has not stepped, as the optimizer itself would."""
        if self._settings.name == "adamw":
            moments = {key: torch.zeros_like(master) for key in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[master] = {"step": torch.tensor(0.0), **moments}
        else:
            optimizer: Any = self._optimizer
            optimizer.init_state(optimizer.param_groups[0], master, 0, index)

    def _forms(self, master: Tensor) -> dict[str, Form]:
        """Name -> form of the state of one parameter, without bitsandbytes' two constant tables."""
        shape = tuple(master.shape)
        if self._settings.name == "adamw":
            return {
                "step": Form((), torch.float32),
                **dict.fromkeys(("exp_avg", "exp_avg_sq"), Form(shape, torch.float32)),
            }
        optimizer: Any = self._optimizer
        forms = {"step": Form((), torch.int64)}
        if master.numel() < optimizer.args.min_8bit_size:
            return forms | dict.fromkeys(("state1", "state2"), Form(shape, torch.float32))
        codes, scales = Form(shape, torch.uint8), Form((-(-master.numel() // BLOCK),), torch.float32)
        return (
            forms | dict.fromkeys(("state1", "state2"), codes) | dict.fromkeys(("absmax1", "absmax2"), scales)
        )


def _buckets(masters: Mapping[str, Tensor]) -> list[list[str]]:
    """Names in order, cut into buckets of at most BUCKET values."""
    buckets: list[list[str]] = [[]]
    size = 0
    for name, master in masters.items():
        if buckets[-1] and size + master.numel() > BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += master.numel()
    return buckets
