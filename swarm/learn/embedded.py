"""The embedded policy: a tiny Llama with a character tokenizer, created and warm-started in seconds.

In come a seed, a task's characters and worked examples, out comes a normal Hugging Face folder. The warm
start is supervised learning until the model answers about a third of the examples: enough for rewards to
differ, few enough to leave room for learning. Deterministic: one seed, one thread, the same bytes. The folder
appears complete or not at all; caching is the caller's.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from swarm.durable import sync
from swarm.learn import weights
from swarm.learn.adamw import AdamW

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
WARM_START_SHARE = 0.35
"""Share of examples answered right at which the warm start ends: rewards differ, and there is room above."""

LAST_STEP = 3000
"""Steps after which the warm start ends in any case: a model of this size that has not half-learned the task
by then never does."""

BATCH = 64
RATE = 3e-3
WARMUP = 20


Example = Callable[[int], tuple[str, str]]


def make(folder: Path, seed: int, characters: str, example: Example, progress: Callable[[str], None]) -> None:
    """Write the policy to `folder`, unless another process has made it meanwhile: its bytes are the same.
    `example(i)` is the i-th (prompt, answer), made of `characters`.

    Raises ValueError when a character is there twice.
    """
    if len(set(characters)) < len(characters):
        raise ValueError(
            f"the characters {characters!r} of a task are the tokens of its policy, each has to be there once"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tokenizer = _tokenizer(characters)
        model = _model(tokenizer, seed)
        with _one_thread():
            _warm_start(model, tokenizer, example, progress)
        tokenizer.save_pretrained(draft)
        model.config.save_pretrained(draft)
        GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
        ).save_pretrained(draft)
        (draft / "model.safetensors").write_bytes(weights.to_bytes(model.state_dict()))
        for file in draft.iterdir():
            sync(file)
        sync(draft)
        try:
            os.rename(draft, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(draft)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _tokenizer(characters: str) -> PreTrainedTokenizerFast:
    words = [PAD, END, UNKNOWN, *characters]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def _model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=2,  # head size 32: the smallest that vLLM's CPU attention takes
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        # about 1/sqrt(hidden_size) / 1.5; the usual 0.02 wastes a third of the warm start at this width
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(torch.float32)


def _warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    example: Example,
    progress: Callable[[str], None],
) -> None:
    """Train with cross-entropy on answer and end token. Examples are fresh at every step, so their share
    right is an honest measure."""
    optimizer = AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
    recent: deque[float] = deque(maxlen=4)
    for step in range(LAST_STEP):
        ids, target = _rows(tokenizer, [example(step * BATCH + i) for i in range(BATCH)])
        logits = model(input_ids=ids[:, :-1]).logits
        recent.append(float(((logits.argmax(-1) == target) | (target < 0)).all(-1).float().mean()))
        share = sum(recent) / len(recent)
        if step % 100 == 0:
            progress(f"warm start: step {step}, {share:.0%} of the examples right")
        if len(recent) == recent.maxlen and share >= WARM_START_SHARE:
            progress(f"warm start: done after {step} steps, {share:.0%} of the examples right")
            return
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARMUP)
        model.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    progress(
        f"warm start: stopped after {LAST_STEP} steps, {sum(recent) / len(recent):.0%} of the examples right"
    )


def _rows(tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """(prompt, answer) pairs -> ids (B, L) padded on the right, targets (B, L-1) with -100 wherever nothing
    is to be learned."""
    prompts = tokenizer([prompt for prompt, _ in pairs]).input_ids
    answers = tokenizer([answer for _, answer in pairs]).input_ids
    rows = [
        [*prompt, *answer, tokenizer.eos_token_id] for prompt, answer in zip(prompts, answers, strict=True)
    ]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    target = torch.full((len(rows), width), -100)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        target[i, len(prompt) : len(row)] = ids[i, len(prompt) : len(row)]
    return ids, target[:, 1:]


@contextmanager
def _one_thread() -> Iterator[None]:
    # The order of a sum over several threads would decide the last bits, and with them the digest.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
