"""A GGUF file as a normal model folder: python -m swarm.learn.files.gguf_model FILE FOLDER

    FILE --transformers, by the package gguf--> float32 --> safetensors in bfloat16, config, tokenizer

A process of its own, since its caller may have the package gguf where this environment has none (PYTHONPATH).
Not handled here: where the file comes from.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path


def convert(file: Path, folder: Path) -> None:
    """Raises ImportError without gguf, OSError, and whatever transformers raises for a file that it cannot
    read."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf.GGUFReader = functools.cache(
        gguf.GGUFReader
    )  # or each of the two parses the whole file, for seconds
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, quantization_config=plain)
    model.config.__dict__.pop("quantization_config", None)  # its weights are plain now
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
