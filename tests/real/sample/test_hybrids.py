"""Engine `hf` on models whose layers keep other states than keys and values: linear attention, convolutions,
state spaces, compressed attention. Random ones, made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from nouns import seeds
from transformers import AutoConfig, AutoModelForCausalLM
from undecided_policy import rows

from peers.build.model import factory
from peers.commands.fit import table
from peers.errors import CannotHere
from peers.fit import fits, hardware
from peers.fit.model_shape import examine
from swarm.learn.files import weights
from swarm.learn.models import tiny, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.learn.models.tokenization import Tokenization
from swarm.sample.hf import HfEngine, cache_name
from swarm.settings.config import Config

PROMPTS = ["1+1=", "What is 12+30? Think step by step.", "Sort: b a"]
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
COMPRESSED: dict[str, Any] = {
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"],
    "compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4},
    "mlp_layer_types": ["moe", "moe"],
    "sliding_window": 8,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "o_groups": 1,
    "o_lora_rank": 32,
    "index_n_heads": 32,  # with few of them many scores are 0, and any of these the highest
    "index_head_dim": 32,
    "index_topk": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": LINEAR,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
    },
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "deepseek_v4": COMPRESSED,
}
"""States in layers of their own (the first four), and in those that have keys and values; and layers that put
tokens together, whose rows cannot be padded."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


def made(family: str, tokens: Tokenization, **own: Any) -> Any:
    sizes = {
        "vocab_size": tokens.vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = AutoConfig.for_model(family, **(own if "hidden_size" in own else {**sizes, **own}))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.08 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_group_is_the_learners_and_follows_from_its_seed_alone(folder: Path, family: str) -> None:
    tokens = tokenization.load(folder)
    model = made(family, tokens, **HYBRIDS[family])
    tokens.ends = tuple(range(0, tokens.vocabulary, 16))  # that some rows end early
    engine = HfEngine(model, tokens, weights.load_into, 12)
    together = engine.sample(PROMPTS, 4, seeds(7, PROMPTS))
    assert len({length for group in together for length in group.lengths}) > 2
    for i, (prompt, group) in enumerate(zip(PROMPTS, together, strict=True)):
        alone = engine.sample([prompt], 4, [7 + i])[0]
        assert np.array_equal(alone.tokens, group.tokens) and alone.lengths == group.lengths
        np.testing.assert_allclose(alone.logprobs, group.logprobs, atol=1e-4)
        learnt = LanguageModel(model, tokens).logprobs([prompt] * 4, rows(group), 1.0)
        np.testing.assert_allclose(learnt.logp.detach()[learnt.mask], group.logprobs, atol=1e-4)
    assert engine.greedy(PROMPTS) == [engine.greedy([prompt])[0] for prompt in PROMPTS]


UNSERVED: dict[str, dict[str, Any]] = {
    "mamba": {"vocab_size": 432, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    "mamba2": {"state_size": 16, "num_heads": 4},
    "openai-gpt": {"n_embd": 64, "n_layer": 2, "n_head": 2},
    "rwkv": {"attention_hidden_size": 64, "context_length": 128},
    "recurrent_gemma": {"lru_width": 64, "block_types": ["recurrent", "attention"]},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
}


@pytest.mark.parametrize("family", UNSERVED)
def test_a_model_without_a_cache_that_rows_can_be_taken_from_is_refused_at_once(
    folder: Path, family: str
) -> None:
    tokens = tokenization.load(folder)
    model = made(family, tokens, **UNSERVED[family])
    with pytest.raises(
        ValueError, match=rf"engine hf cannot sample from {family} .*transformers 5\..*peer\.engine\.name"
    ):
        HfEngine(model, tokens, weights.load_into, 12)


def test_whoever_has_such_a_model_is_told_what_to_do_and_what_fits(folder: Path, tmp_path: Path) -> None:
    tokens = tokenization.load(folder)
    made("mamba", tokens, **UNSERVED["mamba"]).save_pretrained(tmp_path)
    tokens.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CannotHere, match=r"engine hf cannot sample from mamba .*peer\.engine\.name"):
        factory.hf(tmp_path, Config())
    assert examine(tmp_path).cache == 0
    case = fits.Case.of(tmp_path, Config(), hardware.machine())
    can = {one.role for one in fits.rows(case) if one.fits != "no"}
    assert can == {"learner"} and all("than hf" in one.why for one in fits.rows(case) if one.fits == "no")
    assert any("cannot sample from mamba" in line for line in table.hints(case, fits.rows(case), 0))
    elsewhere = msgspec.structs.replace(Config().peer.engine, name="vllm")
    asked = Config(peer=msgspec.structs.replace(Config().peer, engine=elsewhere))
    assert "sampler" in {one.role for one in fits.rows(case._replace(config=asked)) if one.fits != "no"}


def test_a_mixture_whose_config_asks_for_its_routers_is_sampled_as_another(folder: Path) -> None:
    tokens = tokenization.load(folder)
    own: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    engine = HfEngine(made("mixtral", tokens, **own), tokens, weights.load_into, 6)
    asked = engine.sample(PROMPTS, 4, seeds(7, PROMPTS))
    own["output_router_logits"] = False
    plain = HfEngine(made("mixtral", tokens, **own), tokens, weights.load_into, 6)
    for group, other in zip(asked, plain.sample(PROMPTS, 4, seeds(7, PROMPTS)), strict=True):
        assert np.array_equal(group.tokens, other.tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_waits_for_its_first_release_is_no_model_without_a_cache(dtype: torch.dtype) -> None:
    """Its weights are all alike, and so are its logits, but for rounding."""
    shape = {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = AutoConfig.for_model("llama", head_dim=32, vocab_size=19, num_key_value_heads=2, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.01)
    assert cache_name(model) == "past_key_values"
