"""Samples with transformers, on a CPU or a GPU: any causal model that keeps its past in a cache of
transformers'.

    prompts -> the tokens that all begin with, once -> the rest, padded on the left, in one prefill
            -> cache repeated G times -> one token a step until every row has ended

The loop over the model's forward and KV cache is our own: `generate` spends more time outside of a small
model than in it. The distribution sampled is softmax(logits / temperature) over all rows of the head, in
float32 and untruncated, and its log-probabilities are returned: a learner computes the same figures, up to
the rounding of a smaller dtype. Of quantized weights they are the quantized policy's. A token is the argmax
of log-probability plus the noise of its group's seed, completion and position (swarm.draws.noise): a group
does not depend on its neighbours, and any peer with the policy can replay it.

The prompts of a call may differ in length, except with a model that cannot tell padding, which gets one task
at a time. When memory runs out, the same tasks are sampled again in halves, and no later call is larger; with
one task it is an EngineError. So is a prompt that the model has no room for with its completion.
"""

from __future__ import annotations

import gc
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from swarm import extras
from swarm.draws.heads import Head, pack
from swarm.draws.noise import GroupNoise
from swarm.sample.base import Completions, EngineError, NoRoom, SampleCounts, Stopped, Tokenizer
from swarm.sample.growing_cache import bears_padding, growing_cache, holds, keep_rows, keeps_states, sees_all
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Noise

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

T = TypeVar("T")

CACHE_NAMES = ("cache", "past_key_values")
"""A forward pass's name for its cache: transformers since 5.24, and before."""

APART = 0.25
"""Mean difference of logits with and without a cache, in their standard deviations, that no rounding makes:
8 bits make a tenth of it, states of other tokens a whole one."""

SHARED = 64
"""Tokens that a common beginning has to save, to be read in a pass of its own: on a CPU a pass costs as much
as some ten tokens, on a GPU most rows of a prefill cost nothing."""

STRETCHED = ("linear", "dynamic", "yarn")
"""Kinds of rotary positions whose config may give their number before they are stretched."""


class HfEngine:
    """`load_weights` loads a release into the model: all weights, an adapter, or weights to quantize; of
    these, what changed since its last call. It raises ValueError, with nothing changed, when they do not fit.
    `alive` is called before every step of a call that samples, with how many of the call's completions are
    done: those that go on count by the part of `max_tokens` that they have.
    """

    name = "hf"

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: Tokenizer,
        load_weights: Callable[[nn.Module, Blocks], None],
        max_tokens: int,
        temperature: float = 1.0,
        heads: int = 0,
        alive: Callable[[int], None] = lambda done: None,
        tasks: int | None = None,
    ) -> None:
        """`tasks`: most prompts that `greedy` answers at a time; None: all. Raises ValueError for a model
        that keeps no cache whose rows can be chosen."""
        self._policy = model.eval()
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        if getattr(self._model.config, "output_router_logits", False):
            # A mixture's loss of balance counts the tokens of the mask, and beside a cache a pass has others.
            self._model.config.output_router_logits = False
        self._cache_name = "" if _awaits_weights(self._model) else cache_name(self._model)
        """Empty until the first call that samples from a model that awaits its weights."""
        empty = growing_cache(self._model.config, max_tokens)
        self._masked, self._padding = keeps_states(empty), bears_padding(empty)
        self._shares = sees_all(empty)
        """Prompts that begin alike may be read from there on: padding may stand behind what they share."""
        self._tokenizer = tokenizer
        self._load_weights = load_weights
        self._max_tokens = max_tokens
        self._room = positions(self._model.config) - max_tokens
        """Most tokens of a prompt."""
        self._temperature = temperature
        self._heads = heads
        self._alive = alive
        self._tasks = tasks
        self._ends = torch.tensor(tokenizer.ends, device=model.device)
        self._largest_call: int | None = None
        """Most completions in one call; set when memory has run out."""
        self._stopped = False
        """The call that samples now is to end."""
        self._ended = 0
        """Completions of the parts of the current call that are done."""
        self._half_loaded = False
        """A load failed half way: the weights belong to no version."""
        self.version = -1
        self._counts = SampleCounts()

    def load(self, weights: Weights) -> None:
        try:
            self._load_weights(self._policy, weights.blocks)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            self._half_loaded = True
            raise EngineError(
                f"version {weights.version} does not fit into memory beside the policy: {_brief(error)}"
            ) from error
        self.version, self._half_loaded = weights.version, False

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began, rows = time.perf_counter(), self._tokenizer.encode(prompts)
        if (longest := max(map(len, rows), default=0)) > self._room:
            raise NoRoom(
                f"a prompt of {longest} tokens and {self._max_tokens} of completion do not fit into"
                f" {self._room + self._max_tokens}, the model's own limit: the run needs shorter prompts or"
                " completions"
            )

        def part(start: int, stop: int) -> list[Completions]:
            return self._groups_of(rows[start:stop], group_size, seeds[start:stop])

        out = self._in_parts(len(rows), group_size, part)
        self._counts.add(out, began)
        return out

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        rows = self._tokenizer.encode(prompts)
        asked = [row for row in rows if len(row) <= self._room]

        def part(start: int, stop: int) -> list[str]:
            tokens, _, _, lengths = self._generate(asked[start:stop], 1, None)
            return self._texts(tokens, lengths)

        answers = iter(self._in_parts(len(asked), 1, part, self._tasks))
        return [next(answers) if len(row) <= self._room else "" for row in rows]

    def stop(self) -> None:
        self._stopped = True

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, **self._counts.statistics()}

    def close(self) -> None:
        """Nothing to free."""

    def _in_parts(
        self, count: int, copies: int, part: Callable[[int, int], list[T]], most: int | None = None
    ) -> list[T]:
        """`part(start, stop)` for all of `count` prompts, of which each is `copies` rows, at most `most` at a
        time; smaller parts when memory runs out."""
        if self._half_loaded:
            raise EngineError(
                "memory ran out while a release was loaded: there is no policy until one is loaded whole"
            )
        if not self._cache_name:
            try:
                self._cache_name = cache_name(self._model)
            except ValueError as error:
                raise EngineError(str(error)) from error
        out: list[T] = []
        self._stopped, self._ended = False, 0
        while len(out) < count:
            size = (most or count) if self._padding else 1
            if self._largest_call is not None:
                size = min(size, max(1, self._largest_call // copies))
            stop = min(count, len(out) + size)
            failed = None
            try:
                out += part(len(out), stop)
                self._ended = len(out) * copies
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                failed = _brief(error)
            # Only here, where the error and the tensors of its frames are gone, is there anything to free.
            if failed is not None:
                if stop - len(out) == 1:
                    raise EngineError(f"one task of {copies} completions does not fit into memory: {failed}")
                self._largest_call = (stop - len(out)) // 2 * copies
                gc.collect()
                if self._model.device.type == "cuda":
                    torch.cuda.empty_cache()
        return out

    def _groups_of(
        self, prompts: Sequence[list[int]], group_size: int, seeds: Sequence[int]
    ) -> list[Completions]:
        tokens, logprobs, head, lengths = self._generate(prompts, group_size, seeds)
        texts = self._texts(tokens, lengths)
        mask = np.arange(tokens.shape[1]) < lengths[:, None]
        out = []
        for start in range(0, len(texts), group_size):
            rows = slice(start, start + group_size)
            out.append(
                Completions(
                    lengths=tuple(lengths[rows].tolist()),
                    tokens=tokens[rows][mask[rows]].astype(np.int32),
                    logprobs=logprobs[rows][mask[rows]].astype(np.float32),
                    texts=tuple(texts[rows]),
                    noise=Noise.GUMBEL,
                    heads=pack(*head.at(rows, mask[rows])) if head is not None else None,
                )
            )
        return out

    @torch.inference_mode()
    def _generate(
        self, prompts: Sequence[list[int]], copies: int, seeds: Sequence[int] | None
    ) -> tuple[np.ndarray, np.ndarray, Head | None, np.ndarray]:
        """Tokens (N, T), log-probabilities (N, T), heads (N, T, k) and lengths (N,), N = prompts x copies;
        greedy without seeds, one for each prompt."""
        device = self._model.device
        shared = self._shared(prompts)
        cache = growing_cache(self._model.config, max(map(len, prompts)) + self._max_tokens)
        if shared:
            self._forward(torch.tensor([prompts[0][:shared]], device=device), None, cache)
            cache.reorder_cache(torch.zeros(len(prompts), dtype=torch.long, device=device))
        ids, attend = self._padded(prompts, shared)
        logits = self._forward(ids, attend, cache)
        if copies > 1:
            cache.reorder_cache(torch.arange(len(logits), device=device).repeat_interleave(copies))
            logits = logits.repeat_interleave(copies, 0)
            attend = None if attend is None else attend.repeat_interleave(copies, 0)
        # which completion each live row of the cache belongs to
        rows = torch.arange(len(logits), device=device)
        tokens = torch.zeros(len(logits), self._max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(len(logits), self._max_tokens, device=device)
        lengths = torch.zeros(len(logits), dtype=torch.long, device=device)
        k = min(self._heads, logits.shape[-1])
        head_tokens = tokens[..., None].repeat(1, 1, k)
        head_logprobs = logprobs[..., None].repeat(1, 1, k)
        noise = (
            None if seeds is None else GroupNoise(seeds, copies, self._max_tokens, logits.shape[-1], device)
        )
        for t in range(self._max_tokens):
            self._alive(self._ended + len(lengths) - len(rows) + len(rows) * t // self._max_tokens)
            if self._stopped:
                raise Stopped
            logp = torch.log_softmax(logits.float() / self._temperature, -1)
            scores = logp if noise is None else logp + noise.at(t, rows)
            chosen = scores.argmax(-1, keepdim=True)
            tokens[rows, t] = chosen[:, 0]
            logprobs[rows, t] = logp.gather(1, chosen)[:, 0]
            if k:
                head_logprobs[rows, t], head_tokens[rows, t] = logp.topk(k)
            lengths[rows] = t + 1
            live = ~torch.isin(chosen[:, 0], self._ends)
            left = int(live.sum())
            if left == 0 or t + 1 == self._max_tokens:
                break
            if left < len(rows):
                # A row that has ended would cost as much as a live one: the last live ones take their places.
                keep = torch.arange(left, device=device)
                keep[~live[:left]] = left + live[left:].nonzero()[:, 0]
                keep_rows(cache, keep)
                rows, chosen = rows[keep], chosen[keep]
                attend = None if attend is None else attend[keep]
            if attend is not None:
                attend = torch.cat([attend, attend.new_ones(len(rows), 1)], 1)
            logits = self._forward(chosen, attend, cache)
        head = Head(head_tokens.cpu().numpy(), head_logprobs.cpu().numpy()) if k else None
        return tokens.cpu().numpy(), logprobs.cpu().numpy(), head, lengths.cpu().numpy()

    def _forward(self, ids: Tensor, attend: Tensor | None, cache: DynamicCache) -> Tensor:
        """Logits after the last token (N, V); the cache grows by `ids` (N, new)."""
        return _read(self._model, self._cache_name, ids, attend, cache)[:, -1]

    def _shared(self, rows: Sequence[list[int]]) -> int:
        """Tokens that all rows begin with, of which each has one more; 0 where reading them once saves too
        little."""
        if not self._shares:
            return 0
        places = zip(*(row[:-1] for row in rows), strict=False)
        shared = sum(1 for _ in takewhile(lambda tokens: len({*tokens}) == 1, places))
        return shared if shared * (len(rows) - 1) >= SHARED else 0

    def _padded(self, rows: Sequence[list[int]], shared: int) -> tuple[Tensor, Tensor | None]:
        """Ids (B, L) from token `shared` on, padded on the left, and the attention mask (B, shared + L), None
        when nothing is padded.

        Models that keep states get a mask all the same, and with it the places of their tokens: left to
        itself, Bamba counts each new token as the first one.
        """
        rows = [row[shared:] for row in rows]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=self._model.device)
        if not self._masked and all(len(row) == width for row in rows):
            return ids, None
        mask = [[1] * shared + [0] * (width - len(row)) + [1] * len(row) for row in rows]
        return ids, torch.tensor(mask, device=self._model.device)

    def _texts(self, tokens: np.ndarray, lengths: np.ndarray) -> list[str]:
        return [
            self._tokenizer.decode(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)
        ]


def positions(config: PretrainedConfig) -> int:
    """Most tokens of a row that a model of this config is made for, as vLLM counts them: with those that it
    stretches its own to. `sys.maxsize` where the config names none."""
    text = config.get_text_config()
    own = getattr(text, "max_position_embeddings", None) or sys.maxsize
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in STRETCHED:
        return int(own)
    return max(own, int(rope.get("factor", 1.0) * rope.get("original_max_position_embeddings", own)))


def refusal(model: PreTrainedModel) -> str:
    """Why the engine cannot sample from a model, whatever its weights; empty where it can, and where a model
    on the meta device does not show it."""
    try:
        cache_name(model)
    except ValueError as error:
        return str(error)
    except RuntimeError:
        if model.device.type != "meta":
            raise
    return ""


def cache_name(model: PreTrainedModel) -> str:
    """The forward pass's name for the cache: with the right one a token is read after two others, of two
    rows.

    Raises ValueError for a model that does not keep its past in transformers' cache, and a forward pass's
    errors for a lack of memory, or of values on the meta device.
    """
    why = list[str]()
    likely = inspect.signature(model.forward).parameters  # what decides is the token
    for name in sorted(CACHE_NAMES, key=lambda name: name not in likely):
        try:
            if not (fault := _fault(model, name)):
                return name
            why.append(fault)
        except Exception as error:  # of code that differs from model to model and from version to version
            if out_of_memory(error) or (model.device.type == "meta" and isinstance(error, RuntimeError)):
                raise
            why.append(f"{type(error).__name__}: {_brief(error)}")
    raise ValueError(
        f"engine hf cannot sample from {model.config.model_type} ({type(model).__name__}) with"
        f" {extras.with_version('transformers')}: a token was tried, and {'; '.join(dict.fromkeys(why))}. The"
        " engine chooses rows of transformers' cache: set peer.engine.name to vllm or vllm-server, if that"
        " has the architecture, or take another model for the run"
    )


def _awaits_weights(model: nn.Module) -> bool:
    """Whether it has layers that are made, quantized, of the first release."""
    return any(isinstance(layer, nn.Linear) and layer.weight is None for layer in model.modules())


@torch.inference_mode()
def _fault(model: PreTrainedModel, name: str) -> str:
    """What is wrong when the model reads two tokens and then one by one, with a cache under this name; empty
    where nothing is. Weights that are all alike, before the first release, tell less."""
    cache = growing_cache(model.config, 4)
    ids = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]], device=model.device)
    attend = torch.ones_like(ids) if keeps_states(cache) else None
    values = model.device.type != "meta"
    for old, new in ((0, 2), (2, 3), (3, 4)) if values else ((0, 2),):
        mask = None if attend is None else attend[:, :new]
        logits = _read(model, name, ids[:, old:new], mask, cache)[:, -1]
        if not holds(cache, len(ids)):
            return "nothing of it is in the cache"
    if not values:
        return ""
    whole = model(input_ids=ids, use_cache=False).logits[:, -1].float()
    # Of weights that are all alike logits are, too: rounding is no difference between them.
    spread = torch.maximum(whole.std(), whole.abs().mean() / 16)
    apart = (logits.float() - whole).abs().mean() > APART * spread
    return "the next token with a cache is not the one without" if apart else ""


def _read(
    model: PreTrainedModel, name: str, ids: Tensor, attend: Tensor | None, cache: DynamicCache
) -> Tensor:
    """Logits after the last token at least (N, 1, V); the cache, which the model calls so, grows by `ids`
    (N, new)."""
    inputs: dict[str, Tensor] = {"input_ids": ids}
    if attend is not None:
        inputs["attention_mask"] = attend
        inputs["position_ids"] = (attend.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    logits: Tensor = model(**inputs, **{name: cache}, use_cache=True, logits_to_keep=1).logits
    return logits


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: a GPU's allocator has an exception class, those of a CPU,
    of cuBLAS and of cuDNN are known by their messages."""
    words = ("can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
        word in str(error) for word in words
    )


def _brief(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
