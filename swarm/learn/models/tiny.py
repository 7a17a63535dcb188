"""Makes tiny random models of real architectures, for tests and benchmarks.

    python -m swarm.learn.models.tiny qwen3 ./tiny

    a family's name --> byte-level BPE trained here, chat template, end tokens, weights
        --> a Hugging Face folder

Each has the peculiarities of its family's real models, so that tests cover them. llama: the
tokenizer begins every text with <bos>, and the chat template writes one too; embeddings are not tied. qwen3:
tied embeddings with more rows than the tokenizer has tokens; a turn ends with <|im_end|>, a text with
<|endoftext|>. gemma3: tied embeddings, every other layer sees a window only, only the generation config knows
that <end_of_turn> ends a turn.

One seed gives one model. The head size is 32, the smallest that vLLM's CPU attention takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()  # a bar for every tiny file would hide what a test prints

HEAD = 32
TOKENS = 400
"""256 bytes, the special tokens, and as many merges as the corpus below gives with pieces that occur more
than once."""

INIT_STD = 0.08
"""Standard deviation of the weights: the usual 0.02 at this width gives logits that hardly differ."""

CORPUS = """
Natalia sold 48 clips to her friends in April, and then she sold half as many in May. \
How many clips did she sell altogether?
What is the sum of 3 and 5? The answer is 8. What is 12 times 7? The answer is 84. \
Think step by step, then give the answer.
Solve for x: 2x + 3 = 11. We subtract 3 from both sides, so 2x = 8, and then x = 4. #### 4
def add(a, b): return a + b    # the function returns the sum of two numbers
The quick brown fox jumps over the lazy dog; the question is how many times it does so in a day. \
user assistant system
Reverse the word, sort the letters, count the words, and say only the result: \\boxed{42}. <think> </think> \
0 1 2 3 4 5 6 7 8 9
"""

CHATML = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
HEADERS = """{{- bos_token -}}
{%- for message in messages -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>

{% endif -%}"""
TURNS = """{{- bos_token -}}
{%- set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ first if loop.first }}{{ message.content | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}
<start_of_turn>model
{% endif -%}"""


@dataclass(frozen=True)
class Family:
    """A model family's config class, special tokens and chat template."""

    config: type[PretrainedConfig]
    special: tuple[str, ...]
    """Special tokens, in the order of their ids."""
    bos: str | None
    """Put before every text that the tokenizer encodes."""
    eos: str
    pad: str
    ends: tuple[str, ...]
    """End tokens of the generation config."""
    template: str
    tied: bool
    spare: int = 0
    """Embedding rows beyond the tokenizer."""


FAMILIES = {
    "llama": Family(
        LlamaConfig,
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|pad|>",
        ),
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|pad|>",
        ("<|end_of_text|>", "<|eot_id|>"),
        HEADERS,
        tied=False,
    ),
    "qwen3": Family(
        Qwen3Config,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        None,
        "<|im_end|>",
        "<|endoftext|>",
        ("<|im_end|>", "<|endoftext|>"),
        CHATML,
        tied=True,
        spare=32,
    ),
    "gemma3": Family(
        Gemma3TextConfig,
        ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>",
        "<eos>",
        "<pad>",
        ("<eos>", "<end_of_turn>"),
        TURNS,
        tied=True,
    ),
}


def make(
    folder: Path, family: str, seed: int = 0, hidden: int = 64, layers: int = 2, **entries: object
) -> Path:
    """Write a random model and its tokenizer to `folder`, and return it. `hidden` is a multiple of 64;
    `entries` of the config replace the tiny ones, such as `vocab_size=151936`.

    Raises ValueError for a family that is not in FAMILIES.
    """
    if family not in FAMILIES:
        raise ValueError(f"there is no tiny {family!r}: choose from {', '.join(FAMILIES)}")
    kind = FAMILIES[family]
    tokenizer = _tokenizer(kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            _config(kind, tokenizer, hidden, layers, entries), dtype=torch.float32
        )
    ends = [tokenizer.convert_tokens_to_ids(end) for end in kind.ends]
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(kind: Family) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in kind.special]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS.strip().splitlines(), trainer)
    if kind.bos is not None:
        template = processors.TemplateProcessing(
            single=f"{kind.bos} $A",
            pair=f"{kind.bos} $A $B",
            special_tokens=[(kind.bos, tokenizer.token_to_id(kind.bos))],
        )
        tokenizer.post_processor = template
    names = {"bos_token": kind.bos} if kind.bos is not None else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=kind.eos,
        pad_token=kind.pad,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=kind.template,
        **names,
    )


def _config(
    kind: Family,
    tokenizer: PreTrainedTokenizerFast,
    hidden: int,
    layers: int,
    entries: Mapping[str, object],
) -> PretrainedConfig:
    own: dict[str, object] = {}
    if kind.config is Gemma3TextConfig:
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
        own = {"layer_types": kinds, "sliding_window": 64, "query_pre_attn_scalar": HEAD}
    tiny = {
        "vocab_size": len(tokenizer) + kind.spare,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": hidden // HEAD // 2,
        "head_dim": HEAD,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": kind.tied,
        "initializer_range": INIT_STD,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return kind.config(**{**tiny, **own, **entries})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m swarm.learn.models.tiny", description="Make a tiny random model."
    )
    parser.add_argument("family", choices=list(FAMILIES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    asked = parser.parse_args(arguments)
    print(make(asked.folder, asked.family, asked.seed, asked.hidden, asked.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
