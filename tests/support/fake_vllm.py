"""As much of vLLM as swarm.sample.vllm calls, over transformers: what it draws and reports follows from the
weights that it was given. `install` puts it in vLLM's place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from swarm.learn.models.model import load_policy
from swarm.sample.vllm_noise import NoiseRows

AT_ONCE = 32
"""Completions of a step."""


class SamplingParams(SimpleNamespace):
    """Of one request."""

    extra_args, seed, stop_token_ids, prompt_logprobs, logprobs = None, None, (), None, 0


class LLM:
    """Its own engine, worker and configuration: one name for each call is enough here."""

    asked: dict[str, Any] = {}
    """What the last one was started with."""
    stale = False
    """A reload changes nothing."""

    def __init__(self, model: str, max_model_len: int, **asked: Any) -> None:
        LLM.asked = asked
        self._folder, self._policy = Path(model), load_policy(Path(model))
        self._adapters: dict[int, Any] = {}
        self._waiting: dict[int, Any] = {}
        self.llm_engine = self
        self._own = self._policy.config.max_position_embeddings
        most = self._own if max_model_len == -1 else max_model_len
        size = self._policy.config.vocab_size
        config = SimpleNamespace(max_model_len=most, get_vocab_size=lambda: size)
        config.get_and_verify_max_len = lambda _: self._own
        self.vllm_config = SimpleNamespace(model_config=config)

    def get_model(self) -> Any:
        return self._policy

    def collective_rpc(self, what: Any, args: Sequence[Any] = (), kwargs: Any = None) -> list[Any]:
        if what != "reload_weights":
            return [what(self, *args)]
        if not self.stale:
            self._policy = load_policy(Path(kwargs["weights_path"]))
        return [None]

    def reset_prefix_cache(self) -> bool:
        return True

    def add_lora(self, adapter: Any) -> None:
        from peft import PeftModel

        self._adapters[adapter.lora_int_id] = PeftModel.from_pretrained(
            load_policy(self._folder), adapter.path
        )

    def remove_lora(self, number: int) -> None:
        del self._adapters[number]

    def list_loras(self) -> set[int]:
        return {*self._adapters}

    def enqueue(self, asked: Any, parameters: Any, use_tqdm: bool, lora_request: Any) -> list[str]:
        assert not self._waiting, "nothing is left of the call before"
        policy = self._policy if lora_request is None else self._adapters[lora_request.lora_int_id]
        for k, (prompt, one) in enumerate(zip(asked, parameters, strict=True)):
            ids = prompt["prompt_token_ids"]
            self._waiting[k] = SimpleNamespace(policy=policy, prompt=ids, one=one, tokens=[], told=[])
        return [*map(str, self._waiting)]

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting)

    def abort_request(self, ids: Sequence[str], internal: bool) -> None:
        assert internal
        for number in ids:
            self._waiting.pop(int(number), None)

    @torch.inference_mode()
    def step(self) -> list[Any]:
        live = [*self._waiting.items()][:AT_ONCE]
        logits = torch.stack([self._logits(each)[-1] for _, each in live])
        rows = NoiseRows()
        added = [(k, each.one, None, each.tokens) for k, (_, each) in enumerate(live)]
        rows.update(SimpleNamespace(removed=(), added=added, moved=()))
        ended = []
        for (number, each), scores in zip(live, rows.apply(logits.clone()), strict=True):
            token = int(scores.argmax())
            shown = {token, *scores.topk(each.one.logprobs).indices.tolist()}
            each.told.append({other: SimpleNamespace(logprob=float(scores[other])) for other in shown})
            each.tokens.append(token)
            if token in each.one.stop_token_ids or len(each.tokens) == each.one.max_tokens:
                ended.append(self._ended(number))
        return ended

    def _logits(self, each: Any) -> torch.Tensor:
        return each.policy(torch.tensor([[*each.prompt, *each.tokens]])).logits[0]

    def _ended(self, number: int) -> Any:
        each = self._waiting.pop(number)
        out = SimpleNamespace(token_ids=each.tokens, logprobs=each.told)
        told = SimpleNamespace(request_id=str(number), finished=True, outputs=[out])
        if each.one.prompt_logprobs is not None:
            scores = self._logits(each).log_softmax(-1)
            told.prompt_logprobs = [None] + [
                {token: SimpleNamespace(logprob=float(scores[k, token]))}
                for k, token in enumerate(each.prompt[1:])
            ]
        return told


class LoRARequest(SimpleNamespace):
    def __init__(self, name: str, number: int, path: str) -> None:
        super().__init__(lora_int_id=number, path=path)


def modules() -> dict[str, Any]:
    """What `import vllm` and so on give."""
    vllm, platforms, lora = ModuleType("vllm"), ModuleType("vllm.platforms"), ModuleType("vllm.lora")
    vllm.__dict__.update(LLM=LLM, SamplingParams=SamplingParams, __version__="none")
    platforms.__dict__.update(current_platform=SimpleNamespace(device_type="cpu"))
    request = ModuleType("vllm.lora.request")
    request.__dict__.update(LoRARequest=LoRARequest)
    return {"vllm": vllm, "vllm.platforms": platforms, "vllm.lora": lora, "vllm.lora.request": request}


def install() -> None:
    """From here on `import vllm` gives it, in this process."""
    sys.modules.update(modules())
