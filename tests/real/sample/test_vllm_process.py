"""vLLM's process seen from the peer, without vLLM: what is said when it cannot start, dies or hangs, and how
it ends.

The checks for stale weights run here on plain torch modules in vLLM's place: they only ask for names, shapes
and values.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from nouns import seeds
from safetensors.torch import save_file
from vllm_policies import PROMPTS, Versions, recipe

from swarm.learn.models import tiny
from swarm.sample import vllm, vllm_process, vllm_worker
from swarm.sample.base import EngineError
from swarm.sample.server import vllm_seed
from swarm.sample.vllm import VllmEngine
from swarm.sample.vllm_noise import Told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "llama", "llama")


OURS = "from swarm.sample import vllm_process; "
"""Imports torch, which takes seconds: for what goes on beyond the start alone."""


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run this in the place of vLLM's process."""
    monkeypatch.setattr(vllm, "COMMAND", (sys.executable, "-c", f"import sys; {code}"))


def failure(engine: VllmEngine, versions: Versions) -> str:
    with pytest.raises(EngineError) as raised:
        engine.load(versions.move())
    assert engine.version == -1
    engine.close()
    return str(raised.value)


def test_a_machine_without_vllm_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what Python puts there for a missing one
    program(monkeypatch, f"{OURS}sys.modules['vllm'] = None; vllm_process.main(sys.argv[1])")
    said = failure(VllmEngine(recipe(folder)), Versions(folder))
    assert "vLLM cannot be imported" in said and "pip install 'gepo-swarm[vllm]'" in said


def test_a_process_that_dies_says_how_and_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "raise MemoryError('no room for the weights')")
    said = failure(VllmEngine(recipe(folder)), Versions(folder))
    assert said.endswith("ended its process with exit code 1: MemoryError: no room for the weights")


WARNS = "(MainProcess pid=7) WARNING 11-28 07:22:11 [base.py:380] ValueError: Tokenizer not available"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise MemoryError('no room')", "exit code 1: MemoryError: no room"),
        ("sys.exit(3)", "exit code 3"),
        (
            "print('OSError: before', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)",
            "signal SIGKILL (the kernel does that when the machine's memory runs out: see dmesg)",
        ),
    ],
)
def test_a_warning_of_vllms_does_not_explain_its_death(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str
) -> None:
    program(monkeypatch, f"import os; print({WARNS!r}, file=sys.stderr, flush=True); {end}")
    assert failure(VllmEngine(recipe(folder)), Versions(folder)) == f"vLLM ended its process with {said}"


@pytest.mark.parametrize(("tasks", "sequences"), [(8, 32), (256, 1024), (2048, 1024)])
def test_vllm_is_asked_for_no_more_completions_at_once_than_it_starts_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, sequences: int
) -> None:
    told = "lambda served, call: (served, vllm_process.Failed(f'{call.sequences} at once'))"
    program(monkeypatch, f"{OURS}vllm_process.answer = {told}; vllm_process.main(sys.argv[1])")
    assert failure(VllmEngine(recipe(folder, tasks=tasks)), Versions(folder)) == f"vLLM: {sequences} at once"


def test_a_process_that_hangs_is_killed_by_the_deadline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(vllm, "START", 1.0)
    assert "did not answer within 1 s" in failure(VllmEngine(recipe(folder)), Versions(folder))


def test_a_process_that_no_descriptor_is_left_for_fails_a_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_open_files(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(vllm, "Child", too_many_open_files)
    assert "cannot start: Too many open files" in failure(VllmEngine(recipe(folder)), Versions(folder))


def test_a_failed_load_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "sys.exit(3)")
    engine = VllmEngine(recipe(folder))
    with pytest.raises(EngineError, match="exit code 3"):
        engine.load(Versions(folder).move())
    assert engine._scratch is not None and not list(engine._scratch.iterdir())
    engine.close()
    assert not engine._scratch.exists()


def test_nothing_is_sampled_before_a_release(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="no policy has been loaded"):
        VllmEngine(recipe(folder)).sample(PROMPTS, 4, seeds(1, PROMPTS))


def test_the_process_ends_with_its_peer_and_takes_the_weights_along(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "model.safetensors").write_bytes(b"weights")
    process = subprocess.Popen(
        [*vllm.COMMAND, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == -9 and not scratch.exists()


def test_ctrl_c_is_left_to_the_peer(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = "lambda served, call: (os.kill(0, signal.SIGINT), (served, vllm_process.Loaded(0.5)))[1]"
    served = f"vllm_process.answer = {pressed}; vllm_process.main(sys.argv[1])"
    program(monkeypatch, f"{OURS}import os, signal; {served}")
    process = vllm.start_process(recipe(folder).settings, tmp_path / "scratch")
    told = process.ask(msgspec.msgpack.encode(vllm_process.Load("", 1, True)), 60.0)
    process.end()
    assert msgspec.msgpack.decode(told, type=vllm_process.Answer) == vllm_process.Loaded(0.5)


def test_seeds_of_neighbouring_groups_are_far_apart_and_fit_vllm() -> None:
    seeds = sorted(vllm_seed(seed) for seed in [*range(1000), (1 << 64) - 1, 1 << 63])
    assert all(after - before > 1 << 20 for before, after in pairwise(seeds))
    assert seeds[0] >= 0 and seeds[-1] + 4096 < 1 << 63


class Canned(vllm_process.Served):
    """Tells one token of each prompt, without vLLM: its length. `own`: the model's limit."""

    def __init__(self, length: int, own: int) -> None:
        model_config = SimpleNamespace(get_and_verify_max_len=lambda _: own)
        config = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model_config))
        self.setup: Any = SimpleNamespace(max_tokens=12)
        self.length, self.llm = length, SimpleNamespace(llm_engine=config)

    def _parameters(self, heads: int = 0, tokens: int = 0, **drawn: Any) -> Any:
        return None

    def _told(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> list[list[Told]]:
        return [[Told(len(ids), {len(ids): -0.5})] for ids in prompts]


def test_a_held_out_prompt_that_does_not_fit_has_an_empty_answer_and_the_others_theirs() -> None:
    told = Canned(256, 1024).sample(vllm_process.Sample([[1] * 300, [1] * 244, [1] * 245, [1]], 1, []))
    assert told.lengths == [[0], [1], [0], [1]]
    assert np.frombuffer(told.tokens, np.int32).tolist() == [244, 1]
    alone = Canned(256, 1024).sample(vllm_process.Sample([[1] * 300], 1, []))
    letters: Any = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens)))
    assert [group.texts for group in vllm.completions(alone, letters)] == [("",)]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (1024, r"raise peer\.engine\.length, to 1024 at most \(and peer\.engine\.memory"),
        (256, r"the model's own limit: the run needs shorter"),
        (128, r"raise peer\.engine\.length \(and peer\.engine\.memory"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_with_what_would_help(own: int, said: str) -> None:
    with pytest.raises(vllm_process.TooLong, match=f"of 300 tokens and 12 .* do not fit into 256.*{said}"):
        Canned(256, own).sample(vllm_process.Sample([[1], [1] * 300], 4, [1, 2]))


class Attention(torch.nn.Module):
    """q, k and v as one layer, as vLLM keeps them."""

    def __init__(self, parts: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.qkv_proj = torch.nn.Linear(4, 12, bias=False)
        self.norm = torch.nn.LayerNorm(4, bias=False)
        self.qkv_proj.weight.data = torch.cat([parts[f"attn.{name}_proj.weight"] for name in "qkv"])
        self.norm.weight.data = parts["attn.norm.weight"].clone()


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    sizes = {"q": 8, "k": 2, "v": 2}
    made = {f"attn.{name}_proj.weight": torch.randn(size, 4) for name, size in sizes.items()}
    return made | {"attn.norm.weight": torch.randn(4)}


def look(
    parts: dict[str, torch.Tensor], module: torch.nn.Module, path: Path, packed: bool = False
) -> tuple[list[str], list[str]]:
    """(hidden, different)"""
    save_file({name: value.contiguous() for name, value in parts.items()}, path)
    model = torch.nn.ModuleDict({"attn": module})
    return vllm_worker.look(SimpleNamespace(get_model=lambda: model), str(path), packed)


def test_weights_as_they_were_given_are_found_also_inside_fused_ones(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert look(parts, Attention(parts), tmp_path / "w") == ([], [])


@pytest.mark.parametrize(
    "name", ["attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.norm.weight"]
)
def test_one_stale_tensor_is_named(parts: dict[str, torch.Tensor], name: str, tmp_path: Path) -> None:
    module = Attention(parts)
    moved = parts | {name: parts[name] * 1.01}
    assert look(moved, module, tmp_path / "w") == ([], [name])


def test_a_tensor_that_is_not_there_is_said_to_be_hidden(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    more = parts | {"attn.gate.weight": torch.ones(2)}
    assert look(more, Attention(parts), tmp_path / "w") == (["attn.gate.weight"], [])


def test_a_packed_copy_that_is_stale_is_found_by_what_it_computes(
    parts: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    module, old = Attention(parts), Attention(parts).qkv_proj.weight.data.clone()
    linear = module.qkv_proj
    linear.cpu_linear = True  # type: ignore[assignment]
    linear.quant_method = SimpleNamespace(apply=lambda layer, x, bias: x @ old.T)  # type: ignore[assignment]
    assert look(parts, module, tmp_path / "w", packed=True) == ([], [])
    moved = parts | {"attn.v_proj.weight": parts["attn.v_proj.weight"].clone()}
    moved["attn.v_proj.weight"][1, 2] += 2e-3
    linear.weight.data = torch.cat([moved[f"attn.{name}_proj.weight"] for name in "qkv"])
    assert look(moved, module, tmp_path / "w", packed=True) == ([], ["attn.v_proj.weight"])
