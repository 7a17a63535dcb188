"""Low-rank adapters: first ones, releases, files that peft loads, and whole weights with an adapter added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_batches import batch, gradient, learner, model, policy, settings
from rows import each_once, nightly
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from swarm.learn.files import weights
from swarm.learn.models import adapters
from swarm.learn.models.model import load_policy
from swarm.learn.models.pretrained import ModelError
from swarm.settings.config import Lora
from swarm.storage.blocks import Blocks

FAMILIES = ("llama", "qwen3", "gemma3")
LORA = Lora(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: model(root, family) for family in FAMILIES}


@pytest.fixture
def trained(folders: dict[str, Path]) -> bytes:
    """The release of a Qwen3's adapter after a step: B is not 0 any more."""
    one = learner(folders["qwen3"], settings("lora"))
    one.step(gradient(one, batch(one.policy, 4)).vector)  # type: ignore[arg-type]
    return one.weights().data


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_adapter_follows_from_the_seed_alone(folders: dict[str, Path], family: str) -> None:
    genesis = adapters.genesis(folders[family], LORA, 5)
    torch.manual_seed(123)  # nothing else that is drawn matters
    wrapped = adapters.wrap(
        AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32), LORA, 5
    )
    assert weights.release_bytes(wrapped) == genesis == adapters.genesis(folders[family], LORA, 5)
    assert adapters.genesis(folders[family], LORA, 6) != genesis


def test_drawing_the_first_adapter_leaves_the_random_state_alone(folders: dict[str, Path]) -> None:
    plain = AutoModelForCausalLM.from_pretrained(folders["llama"])
    before = torch.get_rng_state()
    adapters.wrap(plain, LORA, 5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_release_has_the_names_that_peft_gives_and_the_head_has_no_adapter(
    folders: dict[str, Path], family: str
) -> None:
    from peft import get_peft_model_state_dict

    wrapped = adapters.wrap(AutoModelForCausalLM.from_pretrained(folders[family]), LORA, 5)
    theirs = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    ours = weights.from_bytes(weights.release_bytes(wrapped))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any("lm_head" in name or "embed" in name for name in ours)
    assert len(ours) == 2 * 2 * 7  # A and B, two layers, seven matrices each


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_adapter_changes_nothing(folders: dict[str, Path], family: str) -> None:
    ids = torch.arange(5, 25)[None]
    plain = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32).eval()
    before = plain(ids).logits
    assert torch.equal(adapters.wrap(plain, LORA, 5)(input_ids=ids).logits, before)


def test_adapters_are_in_the_models_precision_and_alone_require_gradients(folders: dict[str, Path]) -> None:
    wrapped = adapters.wrap(
        AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.bfloat16), LORA, 5
    )
    trained = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    assert {parameter.dtype for parameter in wrapped.parameters()} == {torch.bfloat16}


def test_what_is_written_for_peft_is_the_policy(
    folders: dict[str, Path], trained: bytes, tmp_path: Path
) -> None:
    from peft import PeftModel

    adapters.write_folder(tmp_path / "adapter", Blocks.of(trained), LORA, str(folders["qwen3"]))
    plain = AutoModelForCausalLM.from_pretrained(folders["qwen3"], dtype=torch.float32)
    loaded = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    ours = load_policy(folders["qwen3"], data=trained, lora=LORA)
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(loaded(input_ids=ids).logits, ours(input_ids=ids).logits)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert set(written["target_modules"]) == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == trained


SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 64},
    "gpt_neox": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64},
    "qwen2": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    },
}
"""Of models beside FAMILIES: layers that are no nn.Linear, or have a bias, a head that is the embedding."""

MERGED = [
    *each_once(FAMILIES, (adapters.ALL, "lm_head", "q_proj,lm_head")),
    ("gpt2", "c_attn,lm_head"),
    ("gpt_neox", adapters.ALL),
    ("qwen2", "lm_head,down_proj"),
    *nightly([("gpt2", adapters.ALL), ("gpt_neox", "dense,lm_head"), ("qwen2", adapters.ALL)]),
]


@pytest.mark.parametrize(("family", "targets"), MERGED)
def test_a_merged_model_is_the_adapted_policy_as_transformers_loads_it(
    folders: dict[str, Path], family: str, targets: str, tmp_path: Path
) -> None:
    """peft adds a head's adapter to the embedding, too, where these are one tensor: another policy."""
    folder = folders.get(family, tmp_path / "base")
    if family in SMALL:
        config = AutoConfig.for_model(family, pad_token_id=0, **SMALL[family])
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    lora, random = Lora(rank=4, alpha=8.0, targets=targets), torch.Generator().manual_seed(1)
    first = weights.from_bytes(adapters.genesis(folder, lora, 1))
    data = weights.to_bytes(
        {name: tensor + 0.2 * torch.randn(tensor.shape, generator=random) for name, tensor in first.items()}
    )
    ids = torch.arange(5, 25)[None]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapters.merged(base, lora, data).save_pretrained(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        adapted = load_policy(folder, data=data, lora=lora)(input_ids=ids).logits
        assert (load_policy(folder)(ids).logits - adapted).abs().max() > 0.1
        torch.testing.assert_close(merged(ids).logits, adapted, atol=1e-3, rtol=1e-3)
        ours = load_policy(tmp_path / "merged")(ids).logits
        torch.testing.assert_close(ours, adapted, atol=1e-3, rtol=1e-3)


def test_adapters_of_another_rank_or_of_a_whole_model_are_refused(
    folders: dict[str, Path], trained: bytes
) -> None:
    wider = policy(folders["qwen3"], settings("lora", rank=8)).module
    before = weights.release_bytes(wider)
    with pytest.raises(ValueError, match="another model"):
        weights.load_into(wider, Blocks.of(trained))
    with pytest.raises(ValueError, match="another model"):
        weights.load_into(
            wider, Blocks.of(weights.to_bytes(load_file(folders["qwen3"] / "model.safetensors")))
        )
    assert weights.release_bytes(wider) == before
    with pytest.raises(ValueError, match="not an adapter"):
        adapters.write_folder(
            folders["qwen3"] / "x", Blocks.of(weights.to_bytes({"a": torch.zeros(2)})), LORA, "base"
        )


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ("nonesuch", "does not fit this model"),
        ("q_proj,nonesuch", "names nonesuch, which this model does not have"),
        ("q_proj,embed_tokens", "a layer that is not linear"),
    ],
)
def test_targets_that_a_model_does_not_have_are_told(
    folders: dict[str, Path], targets: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        adapters.genesis(folders["llama"], Lora(targets=targets), 1)


def test_chosen_targets_get_adapters_and_no_others(folders: dict[str, Path]) -> None:
    names = weights.from_bytes(adapters.genesis(folders["llama"], Lora(targets="q_proj, v_proj"), 1))
    assert {name.split(".")[-3] for name in names} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("targets", ["nonesuch", "q_proj,nonesuch", "q_proj,embed_tokens"])
def test_targets_that_do_not_fit_are_a_fault_of_the_settings_and_name_those_that_do(
    folders: dict[str, Path], targets: str
) -> None:
    there = "its linear layers are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    with pytest.raises(ModelError, match=there):
        adapters.genesis(folders["llama"], Lora(targets=targets), 1)


EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MIXTURES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "qwen3_moe": (EXPERTS, {"q_proj", "k_proj", "v_proj", "o_proj"}),
    "mixtral": ({"num_local_experts": 4}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
    "deepseek_v3": (
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "head_dim": 16,
        },
        {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"},
    ),
    "llama4_text": (
        {"intermediate_size_mlp": 128, "num_local_experts": 2, "moe_layers": [1]},
        {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    ),
}
"""Mixtures of experts, and the linear layers of them that get an adapter."""


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_and_routers_have_no_adapter_and_peft_loads_what_a_mixture_releases(
    family: str, tmp_path: Path
) -> None:
    from peft import PeftModel

    own, layers = MIXTURES[family]
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **{**sizes, **own})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "base")
    first = weights.from_bytes(adapters.genesis(tmp_path / "base", LORA, 1))
    assert {name.split(".")[-3] for name in first} == layers
    data = weights.to_bytes({name: tensor + 0.02 for name, tensor in first.items()})
    ids = torch.arange(5, 25)[None]
    ours = load_policy(tmp_path / "base", data=data, lora=LORA)(input_ids=ids).logits
    adapters.write_folder(tmp_path / "adapter", Blocks.of(data), LORA, "base")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    assert not torch.allclose(plain(input_ids=ids).logits, ours, atol=1e-3)
    theirs = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(input_ids=ids).logits, ours)


def test_a_router_that_is_named_alone_is_no_linear_layer(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen3_moe", hidden_size=64, num_hidden_layers=1, **EXPERTS)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a layer that is not linear"):
        adapters.genesis(tmp_path, Lora(targets="q_proj,gate"), 1)
