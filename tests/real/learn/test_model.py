"""Policies from folders: what loads, and what is said of what does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm.learn.files import weights
from swarm.learn.models import adapters, model, tiny, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.learn.models.pretrained import ModelError, config_of, load_tokenizer
from swarm.settings.config import Lora
from swarm.storage.blocks import Blocks

LORA = Lora(rank=4, alpha=8.0)

DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "[" * 600 + "]" * 600
"""Python's own reader takes as many levels, and transformers does not."""
"""JSON that no parser of Python's reads."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "model")


@pytest.fixture
def bare(folder: Path) -> Path:
    """Without weights, as a joiner has it."""
    (folder / "model.safetensors").unlink()
    return folder


def edit(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **changes}))


def test_a_joiner_without_weights_has_the_policy_once_a_release_is_loaded(whole: Path, bare: Path) -> None:
    data = weights.release_bytes(model.load_policy(whole))
    joined = model.load_policy(bare, data=data)
    assert weights.release_bytes(joined) == data
    assert joined.get_output_embeddings().weight is joined.get_input_embeddings().weight, (
        "tied as in the config"
    )
    empty = LanguageModel(model.load_policy(bare), tokenization.load(whole))
    weights.load_into(empty.module, Blocks.of(data))
    of_whole = LanguageModel(model.load_policy(whole), tokenization.load(whole))
    ours, theirs = (policy.logprobs(["12", "345"], [[5, 6], [7]], 1.0).logp for policy in (empty, of_whole))
    torch.testing.assert_close(ours, theirs)
    assert empty._head is not None, "what the weights were before does not decide how a policy is scored"


def test_a_release_names_what_the_files_of_a_model_name(whole: Path) -> None:
    assert set(weights.from_bytes(weights.release_bytes(model.load_policy(whole)))) == set(
        load_file(whole / "model.safetensors")
    )


@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_an_adapter_trains_alone_and_travels_alone(whole: Path, quantize: str) -> None:
    policy = model.load_policy(whole, quantize=quantize, lora=LORA)
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    data = adapters.genesis(whole, LORA, 1)
    weights.load_into(policy, Blocks.of(data))
    assert weights.release_bytes(policy) == data and len(data) < (whole / "model.safetensors").stat().st_size


def test_qlora_trains_through_the_quantized_base_even_after_it_has_sampled(whole: Path) -> None:
    policy = model.load_policy(whole, quantize="nf4", lora=LORA, data=adapters.genesis(whole, LORA, 1))
    learner = LanguageModel(policy, tokenization.load(whole))
    with torch.no_grad():
        before = learner.logprobs(["12"], [[5, 6]], 1.0).logp
    scored = learner.logprobs(["12"], [[5, 6]], 1.0)
    torch.testing.assert_close(scored.logp.detach(), before)
    scored.logp.sum().backward()
    moved = [
        name
        for name, p in learner.module.named_parameters()
        if p.grad is not None and bool(p.grad.abs().sum() > 0)
    ]
    assert any("layers.0." in name for name in moved), "the gradient reaches the first layer"


def test_nf4_is_not_the_model_but_near_it(whole: Path) -> None:
    ids = torch.tensor([tokenization.load(whole).encode(["What is 12+30?"])[0]])
    with torch.no_grad():
        plain, small = (
            torch.log_softmax(model.load_policy(whole, quantize=kind)(ids).logits, -1)
            for kind in ("none", "nf4")
        )
    assert 1e-3 < float((plain - small).abs().mean()) < 0.3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_of_the_type_that_was_asked_for(whole: Path, bare: Path, dtype: str) -> None:
    for folder in (whole, bare):
        assert {p.dtype for p in model.load_policy(folder, dtype=dtype).parameters()} == {
            getattr(torch, dtype)
        }
    assert (
        model.dtype_of("auto", "cpu") is torch.float32 and model.dtype_of("auto", "cuda:1") is torch.bfloat16
    )


def test_a_base_is_written_tensor_by_tensor_as_a_release_would_be(
    whole: Path, folder: Path, tmp_path: Path
) -> None:
    policy = model.load_policy(whole)
    shutil.rmtree(folder)
    policy.save_pretrained(folder, max_shard_size="100KB")  # in float32, in several files
    assert len(list(folder.glob("*.safetensors"))) > 2
    save_file({"copy": torch.zeros(2)}, folder / "consolidated.safetensors")
    model.write_base(folder, tmp_path / "new" / "model.safetensors")
    state = load_file(tmp_path / "new" / "model.safetensors")
    assert weights.to_bytes(state) == weights.release_bytes(policy)
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == weights.release_bytes(policy)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda folder: (folder / "config.json").unlink(),
            r"no config.json: it is not a model folder; save_pretrained writes one",
        ),
        (
            lambda folder: (folder / "config.json").write_text("{"),
            r"config.json cannot be read .*copy the model again",
        ),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text(DEEP), r"config.json cannot be read"),
        (
            lambda folder: edit(folder, model_type="qwen99"),
            r"does not know the architecture 'qwen99' .*: upgrade transformers",
        ),
        (
            lambda folder: edit(
                folder, model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}
            ),
            r"needs code of its own, which is never run here",
        ),
        (
            lambda folder: edit(folder, model_type="clip_text_model"),
            r"a clip_text_model, which is not a causal language model",
        ),
        (
            lambda folder: edit(folder, quantization_config={"quant_method": "gptq"}),
            r"quantized already: take the plain model",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 50), r"cannot be loaded"),
        (lambda folder: edit(folder, model_type="bert"), r"a bert that reads texts in both directions"),
        (
            lambda folder: edit(
                folder, model_type="gemma3_text", sliding_window=8, use_bidirectional_attention=True
            ),
            r"a gemma3_text that reads texts in both directions",
        ),
        (lambda folder: edit(folder, hidden_size="64"), r"config\.json cannot be used .*'hidden_size'"),
        (lambda folder: edit(folder, dtype="nonsense"), r"config\.json cannot be used .*nonsense"),
        (lambda folder: edit(folder, dtype=[]), r"config\.json cannot be used .*: copy the model again"),
        (lambda folder: edit(folder, x=json.loads(NESTED)), r"config\.json cannot be used .*recursion"),
        (
            lambda folder: edit(folder, _attn_implementation="flash_attention_2"),
            r"attention by 'flash_attention_2', which not every peer .*: take the entry out",
        ),
    ],
)
def test_a_folder_that_is_of_no_use_says_why(folder: Path, damage: Any, says: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=says):
        model.load_policy(folder)


@pytest.mark.parametrize(
    "own",
    [
        {"model_type": "bert", "is_decoder": True},
        {"model_type": "gpt_neox"},
        {"model_type": "gemma3_text", "sliding_window": 8},
        {"model_type": "bart"},
        {"model_type": "llama", "is_decoder": False},
        {"model_type": "qwen3", "is_decoder": False, "quantization_config": None},
    ],
)
def test_a_config_of_a_model_that_reads_forwards_is_taken(folder: Path, own: dict[str, Any]) -> None:
    edit(folder, **own)
    assert config_of(folder).model_type == own["model_type"]


@pytest.mark.parametrize("family", list(tiny.FAMILIES))
@pytest.mark.parametrize(
    ("quantize", "lora"), [("none", None), ("none", LORA), ("nf4", LORA), ("int8", None)]
)
def test_weights_that_are_not_those_of_the_config_are_refused(
    tmp_path: Path, family: str, quantize: str, lora: Lora | None
) -> None:
    folder = tiny.make(tmp_path / family, family)
    model.load_policy(folder, quantize=quantize, lora=lora)
    state = load_file(folder / "model.safetensors")
    gone = "model.layers.1.mlp.up_proj.weight"
    save_file({name: value for name, value in state.items() if name != gone}, folder / "model.safetensors")
    lacks = rf"lacks 1 of the tensors that its config asks for \({gone}\): copy the model again"
    with pytest.raises(ModelError, match=lacks):
        model.load_policy(folder, quantize=quantize, lora=lora)
    norm = "model.norm.weight"
    save_file({**state, norm: state[norm][:32].clone()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{norm} in .* has shape \[32\], and its config asks for \[64\]"):
        model.load_policy(folder, quantize=quantize, lora=lora)


def test_a_config_of_more_layers_than_the_files_have_is_refused(folder: Path) -> None:
    edit(folder, num_hidden_layers=5, layer_types=["full_attention"] * 5)
    with pytest.raises(ModelError, match=r"lacks 33 of the tensors .* \(model\.layers\.2\..*, \.\.\.\)"):
        model.load_policy(folder)


@pytest.mark.parametrize("damage", ["cut short", "missing", "index", "deep index"])
def test_a_base_of_damaged_files_says_which_one(folder: Path, tmp_path: Path, damage: str) -> None:
    model.load_policy(folder).save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink()
    file = max(folder.glob("*.safetensors"))
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "missing":
        file.unlink()
    else:
        file = folder / "model.safetensors.index.json"
        file.write_text("[]" if damage == "index" else DEEP)
    with pytest.raises(ModelError, match=f"{file} cannot be read .*: copy the model again"):
        model.write_base(folder, tmp_path / "base")


def test_an_older_index_beside_weights_in_one_file_says_nothing(folder: Path, tmp_path: Path) -> None:
    policy = model.load_policy(folder)
    policy.save_pretrained(folder, max_shard_size="100KB")
    policy.save_pretrained(folder)  # transformers removes the parts, and leaves their index
    assert (folder / "model.safetensors.index.json").exists()
    model.write_base(folder, tmp_path / "base")
    assert set(load_file(tmp_path / "base")) == set(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("value", [float("nan"), 3.4e38])
def test_no_run_begins_with_values_that_no_release_can_hold(
    folder: Path, tmp_path: Path, value: float
) -> None:
    state = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    state["model.norm.weight"][3] = value
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    says = r"model\.norm\.weight .*holds values that are not finite.*: take a model|; take a model"
    with pytest.raises(ModelError, match=says):
        model.first_release(folder)
    with pytest.raises(ModelError, match=says):
        model.write_base(folder, tmp_path / "base")


def test_no_run_begins_with_a_head_that_a_joiner_would_not_make(whole: Path, folder: Path) -> None:
    assert model.first_release(whole) == weights.release_bytes(model.load_policy(whole))
    state = load_file(folder / "model.safetensors")
    state["lm_head.weight"] = 2 * state["model.embed_tokens.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"has a head of its own, .*: set tie_word_embeddings to false"):
        model.first_release(folder)
    edit(folder, tie_word_embeddings=False)
    assert "lm_head.weight" in weights.from_bytes(model.first_release(folder))


@pytest.mark.parametrize("damage", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_base_of_one_damaged_file_says_so(folder: Path, tmp_path: Path, damage: bytes) -> None:
    (folder / "model.safetensors").write_bytes(damage)
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read .*Git LFS pointer"):
        model.write_base(folder, tmp_path / "base")


def test_code_in_a_folder_is_not_run(bare: Path) -> None:
    (bare / "modeling_mine.py").write_text("raise SystemExit('it ran')")
    edit(bare, auto_map={"AutoConfig": "modeling_mine.Config", "AutoModelForCausalLM": "modeling_mine.Mine"})
    assert type(model.load_policy(bare)).__name__ == "Qwen3ForCausalLM", "transformers has it itself"


def test_an_adapter_without_its_base_says_what_is_missing(bare: Path) -> None:
    (bare / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(
        ModelError, match=r"only pickled weights, which are never read: .*; an adapter is nothing"
    ):
        model.load_policy(bare, lora=LORA)


def test_a_tokenizer_that_is_missing_says_so(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="has no tokenizer: save one there"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer.json", DEEP),
        ("tokenizer.json", '{"added_tokens": null, "model": {"type": "BPE"}}'),
        ("tokenizer.json", '{"added_tokens": [], "model": {"type": "of a newer library"}}'),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", DEEP),
        ("tokenizer_config.json", '{"eos_token": 5}'),
        ("tokenizer_config.json", '{"tokenizer_class": []}'),
        ("tokenizer_config.json", '{"auto_map": []}'),
        ("tokenizer_config.json", '{"eos_token": "<|im_end|>", "model_max_length": "long"}'),
    ],
)
def test_a_tokenizer_of_damaged_files_is_refused_with_a_sentence(
    folder: Path, name: str, content: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=r"has no tokenizer that can be loaded .*: save one there"):
        load_tokenizer(folder)


def test_two_peers_quantize_to_the_same_policy(whole: Path) -> None:
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        one, two = (model.load_policy(whole, quantize="nf4")(ids).logits for _ in range(2))
    np.testing.assert_array_equal(one, two)
