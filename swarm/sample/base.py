"""The protocol of engines: load a policy, sample groups, answer greedily."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swarm.storage.weights import Weights
from swarm.types import Heads, Noise

REASON = 1000
"""Characters that are kept of an error that is not ours."""


class EngineError(Exception):
    """This call failed; another may succeed: memory ran out with a single task, the engine's process died or
    hangs, a server does not answer. The engine keeps its policy, or loads the next one."""


class EngineBroken(EngineError):
    """The engine is of no use any more in its process, which is to be ended."""

    @classmethod
    def by(cls, error: Exception) -> EngineBroken:
        """By one that no call may end with: a bug, or whatever vLLM raises."""
        return cls(f"{type(error).__name__}: {str(error).strip() or 'no reason given'}"[:REASON])


class StaleWeights(EngineBroken):
    """It takes these weights in a new process alone: in this one it keeps others."""


class NoRoom(EngineError):
    """A prompt that is too long for the model, whatever is tried: nothing is wrong with the engine."""


class Stopped(EngineError):
    """The call was stopped: its result is no longer needed."""

    def __init__(self) -> None:
        super().__init__("what was sampled is of no use any more")


class Tokenizer(Protocol):
    """The part of the run's tokenization (swarm.learn.models.tokenization) that engines need: the same ids
    and texts for every engine and for the learner."""

    ends: tuple[int, ...]
    """Ids that end a completion."""

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of each prompt, at least one."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        ...


@dataclass(frozen=True, eq=False)
class Completions:
    """G completions of one prompt, in flat arrays that `lengths` cuts."""

    lengths: tuple[int, ...]
    """(G,) tokens each, the end token included."""
    tokens: NDArray[np.int32]
    """(sum T_i,)"""
    logprobs: NDArray[np.float32]
    """(sum T_i,) natural-log probabilities of the distribution that was really sampled."""
    texts: tuple[str, ...]
    """(G,) without special tokens."""
    noise: Noise = Noise.UNKNOWN
    heads: Heads | None = None
    """Where the run asks for them."""


class SampleCounts:
    """An engine's totals, and the time that they took."""

    def __init__(self) -> None:
        self._groups, self._tokens, self._seconds = 0, 0, 0.0

    def add(self, groups: Sequence[Completions], began: float) -> None:
        """Groups of one call, which began then by `time.perf_counter`."""
        self._groups += len(groups)
        self._tokens += sum(len(group.tokens) for group in groups)
        self._seconds += time.perf_counter() - began

    def statistics(self) -> dict[str, float]:
        """`seconds` are those spent sampling."""
        return {"groups": self._groups, "tokens": self._tokens, "seconds": self._seconds}


class Engine(Protocol):
    """Samples from the policy that was loaded last."""

    name: str
    """As in `peer.engine.name`."""

    def load(self, weights: Weights) -> None:
        """Sample from these weights (already checked against their digest) from now on.

        Raises ValueError for weights of another model, and Damaged where their file is, keeping the old
        policy; and EngineError.
        """
        ...

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        """One group per prompt, from its seed, whatever its neighbours: a group can be replayed alone.

        Raises EngineError, and NoRoom for a prompt that the model has no room for with its completion.
        """
        ...

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        """The most likely completion of each prompt, token by token; an empty one of a prompt that the model
        or the engine has no room for with its completion."""
        ...

    def stop(self) -> None:
        """From any thread: stop the current call, whose result is no longer needed. It raises EngineError at
        its next token, and the engine keeps its policy; a call that has not begun, or takes no time, runs to
        its end."""
        ...

    def statistics(self) -> dict[str, float]:
        """Figures since the start, for example `version`, `groups`, `tokens`, `seconds`."""
        ...

    def close(self) -> None:
        """Free what outlives the object: processes, connections, files."""
        ...
