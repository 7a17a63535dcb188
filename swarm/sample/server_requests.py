"""Bodies of requests to a vLLM server's /v1/completions, one for each group, and what its answers tell.

    fixed | own_noise or named_noise --HTTP--> answers --told_by--> each token's Told

`named_noise` is for a server with this project's processor (vllm_processor.py), `own_noise` for any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from swarm.sample import vllm_noise
from swarm.sample.base import EngineError
from swarm.sample.vllm_noise import Told


def fixed(model: str, tokens: int) -> dict[str, Any]:
    """What all of them say, for so many tokens at most; with a temperature, all that a server would take from
    the model's generation_config.json otherwise."""
    return {
        "model": model,
        "max_tokens": tokens,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "skip_special_tokens": False,
    }


def own_noise(seed: int, group: int, temperature: float) -> dict[str, Any]:
    return {"n": group, "temperature": temperature, "seed": vllm_seed(seed)}


def named_noise(seed: int, group: int, temperature: float, shown: int = 0) -> dict[str, Any]:
    """`shown`: most probable tokens that are told with each token. vLLM adds a completion's number to the
    seed of a request."""
    argument = vllm_noise.argument(seed, group, temperature)
    return {"n": group, "temperature": 1.0, "seed": 0, "logprobs": shown, "vllm_xargs": argument}


def vllm_seed(seed: int) -> int:
    """The seed of a group for a server's own noise: 62 bits, so that adding a completion's number neither
    overflows nor collides with another group."""
    return int(np.random.SeedSequence(seed % (1 << 64)).generate_state(1, np.uint64)[0]) >> 2


def told_by(answers: Sequence[dict[str, Any]]) -> list[list[list[Told]]]:
    """Answers of the completions endpoint, one for each group. Raises EngineError for a malformed answer."""
    try:
        groups = [sorted(answer["choices"], key=lambda choice: choice["index"]) for answer in answers]
        return [[_row(choice) for choice in choices] for choices in groups]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(
            f"the server's answer lacks what was asked for ({error!r}): vLLM 0.27 or later is needed"
        ) from error


def _row(choice: dict[str, Any]) -> list[Told]:
    tokens, logprobs = choice["token_ids"], choice["logprobs"]
    shown = logprobs["top_logprobs"] or [{}] * len(tokens)
    return [
        Told(int(np.int32(token)), {**_scores(others), token: _finite(score)})
        for token, score, others in zip(tokens, logprobs["token_logprobs"], shown, strict=True)
    ]


def _scores(others: dict[str, float]) -> dict[int, float]:
    return {int(name.removeprefix("token_id:")): score for name, score in others.items()}


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ValueError("a log-probability that is not finite")
    return score
