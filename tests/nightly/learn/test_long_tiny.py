"""Tiny models: each family loads with transformers alone, and has what makes its real ones awkward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM


def test_it_is_a_command(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "swarm.learn.models.tiny",
        "llama",
        str(tmp_path / "tiny"),
        "--hidden",
        "128",
        "--layers",
        "1",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "tiny")
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").config
    assert (config.hidden_size, config.num_hidden_layers) == (128, 1)
