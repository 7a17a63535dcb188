"""vLLM's logits processor that draws with this project's noise, for both of its runners.

    LLM(logits_processors=[NAME], logprobs_mode="processed_logits")
    python -m vllm.entrypoints.openai.api_server --logits-processors NAME --logprobs-mode processed_logits

with NAME = swarm.sample.vllm_processor:GumbelProcessor. Requests that do not ask for a draw are left as they
are. What is drawn is swarm.sample.vllm_noise; importing this module needs vLLM.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

from swarm.sample.vllm_noise import NoiseRows, NoiseSlots, draw_of

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor
except ImportError:  # an older one, whose second runner takes no processors
    SlotProcessor = object


class GumbelProcessor(LogitsProcessor, SlotProcessor):  # type: ignore[misc]
    """The first runner calls `update_state` and `apply(logits)`; the second `add_request`,
    `apply_staged_writes` and `apply(logits, context)`."""

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool | None = None) -> None:
        """`where`: the first runner's device, or what the second one tells of its requests."""
        self._rows = NoiseRows()
        if is_pin_memory is None:
            self._prompts = where.prompt_len.np
            self._slots = NoiseSlots(where.max_num_reqs, where.vocab_size, where.device)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        draw_of(sampling_params.extra_args, sampling_params.seed)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is not None:
            self._rows.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        draw = draw_of(sampling_params.extra_args, sampling_params.seed)
        self._slots.add(req_idx, draw, int(self._prompts[req_idx]))
        return draw is not None

    def apply_staged_writes(self) -> None:
        self._slots.settle()

    def apply(self, logits: Tensor, context: Any = None) -> Tensor:
        if context is None:
            return self._rows.apply(logits)
        slots = context.idx_mapping_np.tolist()
        return self._slots.apply(logits, slots, context.expanded_idx_mapping, context.pos)
