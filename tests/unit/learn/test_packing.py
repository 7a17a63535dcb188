"""A group as one row with its prompt once: the same log-probabilities and gradients as a padded row for each
completion, or the padded rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from learner_batches import KINDS, batch, gradient, learner, model, settings
from tiny_families import Letters, tiny

from swarm.learn import objectives
from swarm.learn.models import packing
from swarm.learn.models.packing import PackedRow, TokenGroup, groups_of, pack
from swarm.learn.models.policy import LanguageModel, TokenScores

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
LAYERS = ["sliding_attention", "full_attention"]
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {}),
    "learned positions": ("GPT2", GPT2),
    "soft caps, windows by layer": ("Gemma2", {"sliding_window": 3}),
    "windows by layer": ("Olmo3", {"sliding_window": 3, "layer_types": LAYERS}),
    "a window in every layer": ("Mistral", {"sliding_window": 3}),
    "chunks": ("Llama4", {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 24}),
    "experts": ("Mixtral", {"num_local_experts": 4}),
    "sinks": ("GptOss", {"num_local_experts": 4, "sliding_window": 3}),
    "scaled logits": ("Granite", {"logits_scaling": 4.0}),
}
PADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "convolutions": ("Lfm2", {"layer_types": ["conv", "full_attention"], "initializer_range": 0.5}),
    "state spaces": ("Mamba", {"state_size": 4}),
    "a recurrence": ("RecurrentGemma", {"attention_window_size": 4, "lru_width": 16}),
    "biases by place": ("Bloom", {"n_head": 2, "n_layer": 2}),
}
PROMPTS = ["abcdefgh"] * 3 + ["xyz"] * 3
ROWS = [[5, 6, 7, 2], [9], [60, 3, 4, 4, 8, 10, 2, 11, 12], [8, 2], [1, 2, 3, 4, 5, 6, 7], [30, 31, 32]]


def made(kind: tuple[str, dict[str, Any]]) -> Any:
    family, extra = kind
    return tiny(family, 2, **extra)


def scored(policy: LanguageModel, padded: str) -> tuple[TokenScores, torch.Tensor]:
    """Log-probabilities, and the gradient of a weighted sum of them."""
    policy.module.zero_grad()
    policy.padded = padded
    scores = policy.logprobs(PROMPTS, ROWS, 0.8)
    (scores.logp * torch.arange(1, scores.logp.shape[1] + 1))[scores.mask].sum().backward()
    grads = [each.grad.flatten() for each in policy.module.parameters() if each.grad is not None]
    return scores, torch.cat(grads)


@contextmanager
def computed(policy: LanguageModel) -> Iterator[list[int]]:
    """How many tokens go through the model in each pass."""
    passes: list[int] = []

    def count(_: Any, args: Any, inputs: Any) -> None:
        passes.append(inputs["input_ids"].numel())

    handle = policy._base.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield passes
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", PACKED)
def test_packed_groups_score_as_padded_rows_do(kind: str) -> None:
    policy = LanguageModel(made(PACKED[kind]), Letters())  # type: ignore[arg-type]
    policy.logprobs(["a"], [[3]], 1.0)
    assert policy.padded == ""
    with computed(policy) as passes:
        packed, grad = scored(policy, "")
    distinct = 8 + 3 + sum(len(row) - 1 for row in ROWS)
    assert sum(passes) == distinct, "each token once"
    padded, wanted = scored(policy, "for comparison")
    mask = packed.mask
    assert torch.equal(mask, padded.mask)
    torch.testing.assert_close(packed.logp[mask], padded.logp[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed.entropy[mask], padded.entropy[mask], rtol=1e-5, atol=1e-5)
    assert float((grad - wanted).norm() / wanted.norm()) < 1e-5
    both = [torch.cat(list(each.distributions(PROMPTS, ROWS, 0.8))) for each in (policy, of_padded(policy))]
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)


def of_padded(policy: LanguageModel) -> LanguageModel:
    return LanguageModel(policy.module, Letters(), "for comparison")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", PADDED)
def test_a_model_whose_states_pass_from_a_completion_to_the_next_has_padded_rows(kind: str) -> None:
    policy = LanguageModel(made(PADDED[kind]), Letters())  # type: ignore[arg-type]
    with computed(policy) as passes:
        found = policy.logprobs(PROMPTS, ROWS, 0.8)
    assert policy.padded and passes[-1] == len(ROWS) * (8 + 9 - 1)
    wanted = of_padded(policy).logprobs(PROMPTS, ROWS, 0.8)
    assert torch.equal(found.logp, wanted.logp)


def test_padded_rows_of_like_lengths_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = of_padded(LanguageModel(tiny("Llama", 2), Letters()))  # type: ignore[arg-type]
    with computed(policy) as passes:
        wanted, gradient_of_all = scored(policy, "for comparison")
    assert passes == [6 * (8 + 9 - 1)]
    monkeypatch.setattr(packing, "ROW", 16)
    with computed(policy) as passes:
        found, grad = scored(policy, "for comparison")
    real = sum(len(prompt) + len(row) - 1 for prompt, row in zip(PROMPTS, ROWS, strict=True))
    assert len(passes) > 1 and real <= sum(passes) < 1.1 * real
    torch.testing.assert_close(found.logp, wanted.logp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, gradient_of_all, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("longest", [40, 30])
def test_a_model_whose_parts_are_in_step_makes_one_pass_of_all_groups(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROW", 16)
    model = tiny("Llama", 2)
    wanted, gradient_of_rows = scored(LanguageModel(model, Letters()), "")  # type: ignore[arg-type]
    policy = LanguageModel(model, Letters(), in_step=True)  # type: ignore[arg-type]
    policy.logprobs(["a"], [[3]], 1.0)
    monkeypatch.setattr(policy, "_longest", longest)
    with computed(policy) as passes:
        found, grad = scored(policy, "")
    distinct = 8 + 3 + sum(len(row) - 1 for row in ROWS)
    assert passes == [distinct if distinct <= longest else len(ROWS) * (8 + 9 - 1)]
    mask = wanted.mask
    torch.testing.assert_close(found.logp[mask], wanted.logp[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, gradient_of_rows, rtol=1e-4, atol=1e-5)


def test_rows_of_one_length_are_one_pass_and_of_others_as_many_as_padding_asks_for() -> None:
    assert packing.alike([(100, 50)] * 40) == [[*range(40)]]
    tail = [(200, length) for length in (4, 256, 27, 30, 9, 100, 27, 60)] * 4
    passes = packing.alike(tail)
    assert sorted(place for each in passes for place in each) == [*range(32)]
    tokens = [len(each) * (max(tail[i][0] for i in each) + max(tail[i][1] for i in each)) for each in passes]
    assert len(passes) < 8 and sum(tokens) <= 1.15 * sum(map(sum, tail))


def test_a_window_that_goes_by_places_in_the_row_limits_packing() -> None:
    extra = {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    assert packing.longest(tiny("GPTNeo", 2, **extra, window_size=12).config) == 12
    assert packing.longest(made(PACKED["a window in every layer"]).config) == packing.LONGEST


def test_the_trial_leaves_the_config_as_it_was() -> None:
    model = made(PACKED["windows by layer"])
    LanguageModel(model, Letters()).logprobs(["a"], [[3]], 1.0)  # type: ignore[arg-type]
    assert model.config.sliding_window == 3 and model.config.layer_types == LAYERS


def test_a_trial_with_placeholders_does_not_decide() -> None:
    """A policy is made before its first release comes."""
    model = made(PADDED["convolutions"])
    real = {name: value.clone() for name, value in model.state_dict().items()}
    for value in model.parameters():
        value.data.fill_(0.01)
    policy = LanguageModel(model, Letters())  # type: ignore[arg-type]
    model.load_state_dict(real)
    policy.logprobs(PROMPTS, ROWS, 0.8)
    assert policy.padded


@pytest.mark.parametrize(
    ("longest", "passed", "copies"),
    [
        (19, [8 + 3 + 0 + 8, 3 + 1 + 6 + 2], 1),
        (16, [8 + 3 + 0, 8 + 8, 3 + 1 + 6 + 2], 1),
        (15, [len(ROWS) * (8 + 9 - 1)], 2),
        (8, [len(ROWS) * (8 + 9 - 1)], 3),
    ],
)
def test_a_group_longer_than_the_longest_row_has_several_and_a_longer_completion_is_padded(
    longest: int, passed: list[int], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = LanguageModel(tiny("Llama", 2), Letters())  # type: ignore[arg-type]
    wanted = policy.logprobs(PROMPTS, ROWS, 0.8)
    monkeypatch.setattr(policy, "_longest", longest)
    with computed(policy) as passes:
        found = policy.logprobs(PROMPTS, ROWS, 0.8)
    assert passes == passed and policy.padded == ""
    torch.testing.assert_close(found.logp, wanted.logp)
    assert policy.tokens("abc", [9, 6, 3]) == copies + 18


# --- rows ---------------------------------------------------------------------------------------------------

TWO = [TokenGroup([10, 11, 12], [[20, 21], [30, 31, 32]]), TokenGroup([40], [[50]])]


def test_a_row_has_each_token_once_and_positions_as_if_a_completion_stood_alone() -> None:
    (row,) = pack(TWO, torch.device("cpu"))
    assert row.ids.tolist() == [10, 11, 12, 20, 30, 31, 40]
    assert row.positions.tolist() == [0, 1, 2, 3, 3, 4, 0]
    assert row.predicts.tolist() == [2, 3, 2, 4, 5, 6]


def seen(row: PackedRow, **config: Any) -> list[str]:
    """A line for each token: x where it attends."""
    mask = row.inputs(hf.LlamaConfig(attn_implementation="sdpa", **config))["attention_mask"][0, 0]
    return ["".join("x" if each else "." for each in line) for line in mask.tolist()]


def test_a_token_attends_to_its_prompt_and_to_its_own_completion() -> None:
    (row,) = pack(TWO, torch.device("cpu"))
    assert seen(row) == ["x......", "xx.....", "xxx....", "xxxx...", "xxx.x..", "xxx.xx.", "......x"]


@pytest.mark.parametrize(("most", "rows"), [(100, 1), (7, 1), (6, 2), (1, 2)])
def test_rows_have_whole_groups(most: int, rows: int) -> None:
    found = list(pack(TWO, torch.device("cpu"), most))
    assert len(found) == rows
    assert torch.cat([row.ids for row in found]).tolist() == [10, 11, 12, 20, 30, 31, 40]


@pytest.mark.parametrize(("prompt", "sizes"), [(2, [7, 7, 10]), (4, [14, 12]), (6, [24]), (20, [38])])
def test_a_long_groups_rows_have_room_for_four_prompts_at_least(
    prompt: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROW", 8)
    completions = [[1] * length for length in (6, 6, 9)]
    parts = [*TokenGroup([0] * prompt, completions).parts(100)]
    assert [part.size for part in parts] == sizes
    assert [row for part in parts for row in part.completions] == completions


def test_neighbours_with_one_prompt_are_a_group() -> None:
    found = groups_of([[1], [1], [2], [1]], [[5], [6], [7], [8]])
    assert found == [TokenGroup([1], [[5], [6]]), TokenGroup([2], [[7]]), TokenGroup([1], [[8]])]


# --- learners -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_has_the_gradient_of_padded_rows(folder: Path, kind: str) -> None:
    one = learner(folder, settings(kind))
    some = batch(one.policy, groups=5)  # type: ignore[arg-type]
    packed = gradient(one, some)
    assert one.padded == ""
    one.policy.padded = "for comparison"
    padded = gradient(one, some)
    off = (packed.vector - padded.vector).norm() / padded.vector.norm()
    assert float(padded.vector.norm()) > 0 and float(off) < 1e-5


@pytest.mark.parametrize("name", sorted(objectives.OBJECTIVES))
def test_so_it_has_with_every_objective(name: str) -> None:
    policy = LanguageModel(tiny("Llama", 2), Letters())  # type: ignore[arg-type]
    found = []
    for padded in ("", "for comparison"):
        policy.module.zero_grad()
        policy.padded = padded
        scores = policy.logprobs(PROMPTS, ROWS, 1.0)
        full = objectives.Batch(
            logp=scores.logp,
            logq=scores.logp.detach() + 0.3 * torch.sin(torch.arange(9.0)),
            mask=scores.mask,
            reward=torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 1.0]),
            group=torch.tensor([0, 0, 0, 1, 1, 1]),
            prox=scores.logp.detach() + 0.1,
            ref=scores.logp.detach() - 0.2,
            lag=torch.tensor([2, 2, 2, 5, 5, 5]),
        )
        objectives.loss(objectives.OBJECTIVES[name], full).value.backward()
        found.append(torch.cat([each.grad.flatten() for each in policy.module.parameters()]))
    assert float((found[0] - found[1]).norm()) <= 1e-5 * float(found[1].norm().clamp(min=1e-9))
