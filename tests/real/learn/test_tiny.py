"""Tiny models: each family loads with transformers alone, and has what makes its real ones awkward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarm.learn.models import tiny

TEXT = "héllo 12 + 30 = 42, 🙂\n"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_family_loads_and_its_tokenizer_gives_text_back(tmp_path: Path, family: str) -> None:
    folder = tiny.make(tmp_path / family, family)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer(TEXT).input_ids, skip_special_tokens=True) == TEXT
    assert model(input_ids=torch.tensor([tokenizer(TEXT).input_ids])).logits.isfinite().all()
    assert 100_000 <= sum(p.numel() for p in model.parameters()) <= 1_000_000 and model.config.head_dim == 32
    assert None not in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.chat_template)


def test_the_families_are_awkward_in_the_ways_of_their_real_models(tmp_path: Path) -> None:
    folders = {family: tiny.make(tmp_path / family, family) for family in tiny.FAMILIES}
    models = {family: AutoModelForCausalLM.from_pretrained(folder) for family, folder in folders.items()}
    tokenizers = {family: AutoTokenizer.from_pretrained(folder) for family, folder in folders.items()}
    assert models["qwen3"].config.vocab_size > len(tokenizers["qwen3"]), "padding"
    assert tokenizers["llama"]("a").input_ids[0] == tokenizers["llama"].bos_token_id, (
        "a text begins with <bos> by itself"
    )
    assert tokenizers["gemma3"].eos_token_id != max(models["gemma3"].generation_config.eos_token_id), (
        "another end of a turn"
    )
    tied = [
        family
        for family, m in models.items()
        if m.get_output_embeddings().weight is m.get_input_embeddings().weight
    ]
    assert tied == ["qwen3", "gemma3"]


def test_a_seed_is_a_model(tmp_path: Path) -> None:
    first, again, other = (
        tiny.make(tmp_path / name, "qwen3", seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    contents = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert contents[0] == contents[1] != contents[2]
    assert (first / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def test_entries_of_the_config_replace_the_tiny_ones(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "wide", "qwen3", vocab_size=1000, num_attention_heads=4, head_dim=16)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.get_input_embeddings().weight.shape == (1000, 64)
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (4 * 16, 64)
