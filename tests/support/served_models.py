"""A run of a real model with reward code of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_processes import SETTINGS

REWARDS = '''
def has_digit(prompts, completions, **columns):
    """A share of digits: what a random model can learn."""
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in map(said, completions)]


def right(completions, answer, **columns):
    return [float(text.strip() == wanted) for text, wanted in zip(map(said, completions), answer)]


def said(completion):
    return completion if isinstance(completion, str) else completion[-1]["content"]
'''


OWN = """
[run.model]
name = "{folder}/model"
training = "{training}"

[run.task]
name = "data:{folder}/sums.jsonl"
rewards = ["{folder}/rewards.py:has_digit", "{folder}/rewards.py:right"]

[run.sampling]
max_tokens = 12

[run.optimizer]
lr = 3e-3

[run.stop]
versions = {versions}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(10) for b in range(10)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path


def settings(folder: Path, training: str = "full", versions: int = 0) -> str:
    return SETTINGS.replace("tasks = 32", "tasks = 4") + OWN.format(
        folder=folder, training=training, versions=versions
    )


def loaded(exported: Path) -> str:
    """What the exported model says to a prompt: `from_pretrained`, as everybody loads it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1 + 2 ="}], add_generation_prompt=True, return_tensors="pt"
    )
    text: str = tokenizer.decode(model.generate(**ids, max_new_tokens=4)[0])
    return text
