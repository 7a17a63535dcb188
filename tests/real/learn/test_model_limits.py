"""A model's folder that asks for too much is refused within limits, before this process reads it."""

from __future__ import annotations

import base64
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rows import nightly
from transformers import PreTrainedTokenizerFast

from swarm.learn.models import model, model_limits, tiny, tokenization
from swarm.learn.models.pretrained import ModelError, check_size, config_of, load_tokenizer

PEAK = 1 << 20
"""KiB that this process may grow by: its limits are the child's."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_limits, "SECONDS", 3.0)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("good") / "qwen3", "qwen3")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    for path in good.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


BLOWS_UP = [replace({"String": "a"}, "a" * 10) for _ in range(8)]
INSIDE = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": BLOWS_UP}]}
CHARSMAP = base64.b64encode((8).to_bytes(4, "little") + bytes(8) + b"x" * 500 + b"\0").decode()


def special(token: str, at: int = 0) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"id": at, "content": token, "normalized": True, "special": False, **flags}


def adds(many: int) -> dict[str, Any]:
    """A post-processor that puts so many tokens before each text."""
    name = "<|im_end|>"
    single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    ids = {name: {"id": name, "ids": [1] * many, "tokens": [name] * many}}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": ids}


TOKENIZERS: dict[str, dict[str, Any]] = {
    "a decoder": {"decoder": {"type": "Sequence", "decoders": BLOWS_UP}},
    "sequences in sequences": {"decoder": INSIDE},
    "one rule": {"decoder": replace({"String": "a"}, "a" * 100)},
    "a normalizer": {"normalizer": {"type": "Sequence", "normalizers": BLOWS_UP}},
    "between all letters": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [replace({"Regex": "x*"}, "bbbb") for _ in range(4)],
        }
    },
    "an expression that decodes": {"decoder": replace({"Regex": "(a+)+$"}, "a")},
    "an expression without end": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "^(a|a?)+$|^(a+)+$"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "a long expression": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": "a" * 100_000},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "many steps": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}] * 100_000,
        }
    },
    "a prefix of a megabyte": {"normalizer": {"type": "Prepend", "prepend": "a" * (1 << 20)}},
    "a table of sentencepiece": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
    "a post-processor": {"post_processor": adds(100_000)},
    "an added token": {"added_tokens": [special("b" * (1 << 20))]},
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_that_makes_much_of_little_is_refused(folder: Path, kind: str) -> None:
    edited(folder / "tokenizer.json", lambda told: told.update(TOKENIZERS[kind]))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(
        ModelError, match=r"tokenizer in .* (has|makes|needs|writes) |no tokenizer that can be loaded"
    ):
        load_tokenizer(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < PEAK
    assert time.process_time() - began < model_limits.SECONDS


@pytest.mark.parametrize("part", ["padding", "truncation"])
def test_a_tokenizers_own_padding_and_truncation_change_no_prompt(folder: Path, part: str) -> None:
    plain = tokenization.load(folder).encode(["1 + 1"])
    pads = {"strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    cuts = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    own = {"padding": pads | {"pad_type_id": 0, "pad_token": "<|im_end|>"}, "truncation": cuts}
    edited(folder / "tokenizer.json", lambda told: told.update({part: own[part]}))
    assert tokenization.load(folder).encode(["1 + 1"]) == plain


def test_a_panic_of_the_tokenizer_is_an_error_with_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panics(*_: Any, **__: Any) -> None:
        raise PanicException("retry-limit-in-match over")

    tokens = tokenization.load(folder)
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", panics)
    with pytest.raises(ModelError, match=r"gives up on one of 1 prompts \(retry-limit"):
        tokens.encode(["1"])


CONFIGS: dict[str, dict[str, Any]] = {
    "layers": {"num_hidden_layers": 10**9},
    "width": {"hidden_size": 2**30},
    "rows": {"vocab_size": 2**40},
    "a wide layer": {"intermediate_size": 2**36},
    "heads": {"num_attention_heads": 2**31, "num_key_value_heads": 2**31},
    "a long head": {"head_dim": 2**33},
    "digits": {"hidden_size": 10**30},
    "types of layers": {"layer_types": ["full_attention"] * 10**5, "num_hidden_layers": 10**5},
}
OFTEN = ("width", "heads", "digits")


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        *((kind, False) for kind in OFTEN),
        ("width", True),
        *nightly([*((kind, False) for kind in sorted(CONFIGS.keys() - OFTEN)), ("rows", True)]),
    ],
)
def test_a_config_that_asks_for_more_than_its_weights_is_refused(
    folder: Path, kind: str, weights: bool
) -> None:
    size = (folder / "model.safetensors").stat().st_size
    if not weights:
        (folder / "model.safetensors").unlink()
    edited(folder / "config.json", lambda told: told.update({"layer_types": None} | CONFIGS[kind]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"the config .* (asks for a model of|needs more than)|cannot be"):
        model.load_policy(folder, size=size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < PEAK


def test_experts_count(folder: Path) -> None:
    mixture = tiny.make(folder / "other", "qwen3")
    edited(
        mixture / "config.json",
        lambda told: told.update(
            model_type="qwen3_moe", num_experts=2**24, moe_intermediate_size=64, num_experts_per_tok=2
        ),
    )
    with pytest.raises(ModelError, match=r"asks for a model of|needs more than"):
        check_size(mixture, 1 << 20)


def test_what_was_tried_once_is_not_tried_again_until_its_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_limits.tried(folder) > 0
    monkeypatch.setattr(model_limits, "Child", None)
    assert model_limits.tried(folder) > 0
    assert config_of(folder).model_type == "qwen3"
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(TypeError):
        model_limits.tried(folder)


def test_the_rules_of_known_tokenizers_are_within_the_limits() -> None:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    llama = {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁")],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                replace({"String": "▁"}, " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "pre_tokenizer": metaspace,
    }
    charsmap = base64.b64encode((8).to_bytes(4, "little") + bytes(8) + ("ص" * 18).encode() + b"\0").decode()
    t5 = {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": charsmap},
                replace({"Regex": " {2,}"}, "▁"),
            ],
        },
        "decoder": metaspace,
    }
    for known in (llama, t5, {"normalizer": None, "decoder": {"type": "ByteLevel"}}):
        model_limits.check_parts(known)
