"""Baselines of the row `engines`: the libraries behind the sampler engines without this project.

(prompts, group) -> number of tokens:

    hf             transformers' `generate`, the log-probabilities computed from its scores
    vllm           vllm.LLM in this process
    vllm-server    the completions endpoint, a request for each prompt, all at once; it tells logits

Each computes what an engine computes: texts and the log-probabilities of untruncated sampling. Not included:
a seed for each group, which a replay needs.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from lab.swarms.partner import Answer
from swarm.settings.config import Config

Way = Callable[[Sequence[str], int], int]
VLLM = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""vLLM's environment, as swarm.sample.vllm sets it."""

PATIENCE = 120.0
"""Seconds for one answer of a server."""


def way(setup: Answer, config: Config) -> Way:
    return {"hf": _generate, "vllm": _vllm, "vllm-server": _server}[setup["engine"]](
        Path(setup["model"]), config
    )


def _generate(model: Path, config: Config) -> Way:
    import torch

    from swarm.learn.models.model import load_policy
    from swarm.learn.models.pretrained import load_tokenizer

    sampling, device = config.run.sampling, "cuda" if torch.cuda.is_available() else "cpu"
    policy, tokenizer = load_policy(model, device, config.peer.engine.dtype), load_tokenizer(model)
    tokenizer.padding_side = "left"
    ends = torch.tensor(policy.generation_config.eos_token_id, device=device)

    @torch.inference_mode()
    def generate(prompts: Sequence[str], group: int) -> int:
        asked = tokenizer(list(prompts), add_special_tokens=False, return_tensors="pt", padding=True).to(
            device
        )
        out = policy.generate(
            **asked,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            top_p=1.0,
            num_return_sequences=group,
            max_new_tokens=sampling.max_tokens,
            output_scores=True,
            return_dict_in_generate=True,
        )
        policy.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).cpu()
        new = out.sequences[:, asked.input_ids.shape[1] :]
        tokenizer.batch_decode(new, skip_special_tokens=True)
        ended = torch.isin(new, ends)
        return int((ended.cumsum(-1) - ended.int() == 0).sum())  # up to the first end, which is a token

    return generate


def _vllm(model: Path, config: Config) -> Way:
    os.environ.update(VLLM)
    from vllm import LLM, SamplingParams

    sampling = config.run.sampling
    llm = LLM(
        model=str(model),
        max_num_seqs=config.peer.engine.tasks * sampling.group_size,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        generation_config="vllm",
        gpu_memory_utilization=config.peer.engine.memory / 2,
        **_common(),
    )

    def generate(prompts: Sequence[str], group: int) -> int:
        asked = SamplingParams(
            n=group, temperature=sampling.temperature, max_tokens=sampling.max_tokens, logprobs=0
        )
        told = llm.generate([{"prompt": prompt} for prompt in prompts], asked, use_tqdm=False)
        return sum(len(one.token_ids) for group in told for one in group.outputs)

    return generate


def _common() -> dict[str, Any]:
    """Precision and compilation, as the engine chooses them."""
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        return {"dtype": "float32", "enforce_eager": True}
    return {"dtype": "bfloat16"}


def _server(model: Path, config: Config) -> Way:
    sampling, url = config.run.sampling, config.peer.engine.url
    common = {
        "model": str(model),
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "logprobs": 0,
    }

    def ask(group: int, prompt: str) -> int:
        body = json.dumps({**common, "prompt": prompt, "n": group}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    def complete(prompts: Sequence[str], group: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(pool.map(partial(ask, group), prompts))

    return complete
