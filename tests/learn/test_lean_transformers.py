"""transformers without what is not used of it: what is left out, what is the same, what is there when asked.
Each in a process of its own, since a process imports once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.learn.models import tiny

MODEL = """
import hashlib, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
said = hashlib.sha256()
sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=128, vocab_size=100)
for config, model in ((LlamaConfig, LlamaForCausalLM), (Qwen3Config, Qwen3ForCausalLM)):
    torch.manual_seed(0)
    made, ids = model(config(**sizes)), torch.arange(20).reshape(2, 10)
    logits = made(ids, attention_mask=(ids != 0).long()).logits
    logits.logsumexp(-1).sum().backward()
    made.generate(ids, max_new_tokens=3, do_sample=False)
    for tensor in (logits, *(one.grad for one in made.parameters())):
        said.update(tensor.detach().numpy().tobytes())
print(said.hexdigest())
"""

LEFT_OUT = ("scipy", "sympy", "torch._dynamo", "torch.distributed.tensor", "sklearn", "pandas")


def said(script: str, **environ: str) -> str:
    one = {"OMP_NUM_THREADS": "1", **environ}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | one,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.slow
def test_what_is_not_used_is_not_imported() -> None:
    modules, *heavy = said(
        "import sys, swarm.learn; from transformers import LlamaForCausalLM, PreTrainedTokenizerFast;"
        f" print(len(sys.modules), *{set(LEFT_OUT)} & set(sys.modules))"
    ).split()
    assert int(modules) < 1900 and not heavy  # 2,900 without


@pytest.mark.slow
def test_a_model_is_loaded_and_trained_without_compilers_which_are_there_when_asked_for(
    tmp_path: Path,
) -> None:
    script = f"""
import sys, torch
from pathlib import Path
from swarm.settings.config import Optimizer
from swarm.learn.models.lean_transformers import no_compilers
from swarm.learn.models.model import load_policy
from swarm.learn.learners.optimizers import MasterOptimizer
named = dict(load_policy(Path({str(tiny.make(tmp_path, "qwen3"))!r})).named_parameters())
size = sum(parameter.numel() for parameter in named.values())
MasterOptimizer(named, Optimizer(lr=1e-3)).step(torch.ones(size), 1.0, 1e-3)
assert "torch._dynamo" not in sys.modules, "compilers were imported"
with no_compilers():
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2.0
    from torch._dynamo.eval_frame import OptimizedModule
print("there")
"""
    assert said(script).splitlines()[-1] == "there"


@pytest.mark.slow
def test_models_are_the_same_to_the_last_bit() -> None:
    *_, whole = said(MODEL).splitlines()
    assert said(f"import swarm.learn\n{MODEL}").splitlines()[-1] == whole


@pytest.mark.slow
def test_a_mask_that_is_traced_and_what_is_compiled_find_the_compilers() -> None:
    script = """
import swarm.learn, sys
from transformers import masking_utils
assert "torch._dynamo" not in sys.modules
with masking_utils.TransformGetItemToIndex():
    pass
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
assert torch.compiler.disable(len)([1, 2]) == 2
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2.0
print("there")
"""
    assert said(script) == "there"


@pytest.mark.slow
def test_a_program_that_imported_transformers_before_keeps_what_it_has() -> None:
    script = """
import transformers, swarm.learn, sys
from transformers.utils import is_scipy_available
print(is_scipy_available() == bool(__import__("importlib.util").util.find_spec("scipy")))
"""
    assert said(script) == "True"


def test_a_version_that_is_built_otherwise_is_imported_whole(tmp_path: Path) -> None:
    utils = tmp_path / "transformers" / "utils"
    utils.mkdir(parents=True)
    (tmp_path / "transformers" / "__init__.py").write_text("NEEDED = 1\nfrom transformers import utils\n")
    (utils / "__init__.py").write_text("from .import_utils import NEEDED\n")
    (utils / "import_utils.py").write_text("from transformers import NEEDED\n")
    script = "import swarm.learn, transformers, sys; print(transformers.utils.NEEDED, transformers.__file__)"
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    assert said(script, PYTHONPATH=paths) == f"1 {tmp_path / 'transformers' / '__init__.py'}"


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["", "not json", "[[3, 4]]"])
def test_the_list_of_modules_is_kept_and_read_again_where_it_is_damaged(tmp_path: Path, kept: str) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    script = (
        "import swarm.learn, transformers; print(len(dir(transformers)), transformers.LlamaConfig.model_type)"
    )
    if kept:
        said(script, **cache)
        (file,) = (tmp_path / "swarm").iterdir()
        file.write_text(kept)
    first = said(script, **cache)
    (file,) = (tmp_path / "swarm").iterdir()
    assert len(file.read_bytes()) > 100_000
    assert said(script, **cache) == first and first.endswith("llama")
