"""Micro-batch size: how many tokens go through a model at once, by measured and by free memory.

    PeakMemory: bytes that a chunk needed --> MicrobatchSize: groups of the next one, of any lengths
        --> memory ran out: half as many tokens; after RAISE_AFTER gradients without a failure twice as many

A MicrobatchSize predicts in proportion to a chunk's tokens (`Policy.tokens`) from the chunk that needed most
so far. That overestimates larger chunks: memory that does not grow with the chunk is scaled too.
Where free memory is unknown (no GPU, no `ram`) it only steps down. Not handled here: chunks themselves, and a
single group that does not fit.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from swarm.processes.allocation import give_back, resident

RAISE_AFTER = 50
"""Gradients without a failure after which twice as many groups are tried: a failure costs one forward pass,
two percent of fifty."""

MEMORY_SHARE = 0.8
"""Share of the free memory that a chunk may use; the rest covers fragmentation, other programs and the
prediction's error."""

_MESSAGES = re.compile(
    r"can't allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED", re.IGNORECASE
)


class OutOfMemory(Exception):
    """Memory does not suffice even for the smallest chunk; the message suggests a remedy."""


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out: CUDA's allocator has an exception type for it, torch's CPU
    allocator and the libraries below it only the text of a RuntimeError."""
    by_type = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return by_type or (isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None)


@contextlib.contextmanager
def oom_as(what: str) -> Iterator[None]:
    """Raise OutOfMemory with the message `what` when memory runs out inside."""
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        raise OutOfMemory(
            f"{what} ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from None


def free(device: torch.device) -> None:
    """Release unreferenced memory, and the caches of torch's and the C library's allocators."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back()


def available(device: torch.device, ram: Callable[[], int] | None = None) -> int | None:
    """Bytes that can be allocated on the device; on a CPU what `ram` returns. None when it is unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return ram() if ram is not None else None


class PeakMemory:
    """Peak of the memory in use: torch's on a GPU, the process's resident memory on a CPU (0 where there is
    no /proc)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._level = 0
        self._top = 0
        self.peak = 0
        """Bytes: the peak since this object was made or `peak` was set."""

    def start(self) -> None:
        """Begin a measurement that `rise` ends."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._level = torch.cuda.memory_allocated(self._device)
            return
        with contextlib.suppress(OSError):  # resetting may not be permitted: then only new peaks are seen
            Path("/proc/self/clear_refs").write_text("5")
        self._level, self._top = resident()

    def rise(self) -> int:
        """Bytes by which the peak since `start` exceeds the level at `start`."""
        if self._device.type == "cuda":
            top = torch.cuda.max_memory_allocated(self._device)
        else:
            now, top = resident()
            if top == self._top > self._level:
                self.peak = max(self.peak, self._level, now)
                return 0  # an old peak that could not be reset: how high the new one was is not known
        self.peak = max(self.peak, top)
        return max(0, top - self._level)


class MicrobatchSize:
    """How many groups go through the model together, at most `most`. `free` is asked once per batch."""

    def __init__(self, most: int, free: Callable[[], int | None]) -> None:
        self._most = most
        self.tokens = math.inf
        """Most tokens of a chunk of several groups, since memory ran out; failures halve it."""
        self._free = free
        self._budget: float | None = None
        self._measured: tuple[float, int] | None = None
        """Tokens and bytes of the chunk that needed the most memory."""
        self._good, self._patience, self._raised = 0, RAISE_AFTER, False

    def begin(self) -> None:
        """Begin a batch: ask how much memory is free."""
        free = self._free()
        self._budget = None if free is None else MEMORY_SHARE * free

    @property
    def unmeasured(self) -> bool:
        """Whether a chunk of one group has to be measured first: there is no measurement of this model
        yet."""
        return self._budget is not None and self._most > 1 and self._measured is None

    def measured(self, tokens: float, used: int) -> None:
        """Record that a chunk of `tokens` needed `used` bytes."""
        # on a CPU, memory that is freed and used again does not raise the peak
        if self._measured is None or used > self._measured[1]:
            self._measured = tokens, used

    def take(self, tokens: Sequence[float]) -> int:
        """How many of the next groups go through together, one at least; group i has `tokens[i]`."""
        together = itertools.accumulate(tokens[: self._most])
        within = itertools.takewhile(lambda sum_: sum_ <= self.tokens and self.fits(sum_), together)
        return max(1, sum(1 for _ in within))

    def fits(self, tokens: float) -> bool:
        """Whether a chunk of `tokens` is predicted to fit."""
        if self._measured is None or self._budget is None:
            return True
        known, used = self._measured
        return used * max(1.0, tokens / max(known, 1.0)) <= self._budget

    def failed(self, tokens: Sequence[float]) -> bool:
        """Record that groups of so many tokens were too much. False when it was a single one."""
        if self._raised:
            self._patience, self._raised = 2 * self._patience, False
        self._good, self.tokens = 0, sum(tokens) / 2
        return len(tokens) > 1

    def succeeded(self) -> None:
        """Record a batch without a failure."""
        self._good += 1
        if self._good >= self._patience and self.tokens < math.inf:
            self._good, self._raised, self.tokens = 0, True, 2 * self.tokens

    def reset(self) -> None:
        """Forget the measurements: the model needs less memory from now on."""
        self.tokens, self._measured, self._good = math.inf, None, 0


def recompute(module: nn.Module) -> int:
    """Keep only the inputs of the transformer's layers for the backward pass, which runs each once more.
    Returns their number.

    Wraps the forward of every layer that transformers can do this to, instead of asking transformers: that
    works in training mode alone, which would switch dropout on. Gradients are the same; nothing has to
    require one (non-reentrant checkpoints).
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        # Nothing is drawn in a forward pass without dropout: there is no random state to keep.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    return len(layers)
