"""Our gradients and advantages against those of TRL's own GRPOTrainer, on batches in which every trust region
is at work.

    rewards, log-probabilities, masks -> a real trainer: its rollout, advantages and loss
        -> d loss / d logp == ours

Of TRL, one method is replaced: the forward pass, which gives the batch's log-probabilities instead of a
model's (policy with gradient, sampler without, reference for the reference model). Everything after it runs
as installed: configuration, group statistics, `num_items_in_batch`, the loss. TRL's groups all have one size;
ours may differ, which tests of objectives cover.

Left out: TRL's bias-corrected KL at sequence level, which multiplies k3 by the whole sequence's ratio where
DeepSeek-V3.2 (arXiv 2512.02556) has the token's, as ours has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from swarm.learn.objectives import Batch, Objective, loss, objective, weights

pytestmark = [pytest.mark.timeout(300)]

MEMBERS, GROUPS, TOKENS = 4, 5, 9
SEEDS = range(6)


@dataclass(frozen=True)
class Case:
    """One of our objectives and the configuration of TRL that should equal it."""

    name: str
    trl: dict[str, Any]
    options: dict[str, float | str] = field(default_factory=dict)
    drift: float = 0.4
    """Spread of logp - logq in nats, half of it shared by a completion's tokens: enough to leave the trust
    region."""
    off: dict[str, float | str] = field(default_factory=lambda: {"trust": "free"})
    """Options that turn off what the case is about: they must change the weights, or the batch has not tried
    it."""

    @property
    def title(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


SEQUENCE = {"importance_sampling_level": "sequence"}
CASES = (
    Case("grpo", {"loss_type": "grpo"}),
    Case("grpo", {"loss_type": "grpo", "delta": 1.4}, {"dual": 1.4}, off={"dual": 1e9}),
    Case("grpo", {"loss_type": "grpo", "scale_rewards": "batch"}, {"scale": "batch-std"}),
    Case(
        "grpo", {"loss_type": "grpo", "scale_rewards": "none", "epsilon": 0.1}, {"scale": "none", "eps": 0.1}
    ),
    Case("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    Case("bnpo", {"loss_type": "bnpo"}),
    Case("ppo_clip", {"loss_type": "bnpo", "scale_rewards": "batch"}),
    # TRL's dapo counts every token; it is ours when nothing is filtered.
    Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}, {"reduce": "token-mean"}),
    Case("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}, drift=1.2),
    Case("gspo", {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, **SEQUENCE}, drift=1e-3),
    Case("gspo", {"loss_type": "grpo", **SEQUENCE}, {"eps": 0.2}),
    Case("gspo_token", {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, **SEQUENCE}, drift=1e-3),
    Case("luspo", {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3, **SEQUENCE}, drift=5e-3),
    Case("sapo", {"loss_type": "sapo"}),
    Case("vespo", {"loss_type": "vespo"}, drift=0.2),
    Case(
        "deepseek_v3",
        {"loss_type": "grpo", "scale_rewards": "none", "off_policy_mask_threshold": 0.5},
        drift=0.8,
        off={"trust": "free", "veto": "none"},
    ),
    # Wide enough for the clip to leave something to the veto.
    Case(
        "deepseek_v3",
        {"loss_type": "grpo", "scale_rewards": "none", "epsilon": 0.9, "off_policy_mask_threshold": 0.5},
        {"eps": 0.9},
        drift=1.2,
        off={"veto": "none"},
    ),
)
TOKEN_CASES = tuple(case for case in CASES if "importance_sampling_level" not in case.trl)
BIASED = {"beta": 0.1, "use_bias_correction_kl": False}
CORRECTED = {"beta": 0.1, "use_bias_correction_kl": True}


# --- batches ------------------------------------------------------------------------------------------------


def draw(seed: int, drift: float) -> Batch:
    """Whole groups of ragged completions, the last with equal rewards. Rewards are eighths, so that TRL's
    float32 mean of equal ones is exact: what rounding would leave of them, it divides by 1e-4."""
    gen = torch.Generator().manual_seed(seed)
    rows = MEMBERS * GROUPS
    logq = -0.5 - 3 * torch.rand(rows, TOKENS, generator=gen)
    moved = torch.randn(rows, 1, generator=gen) + torch.randn(rows, TOKENS, generator=gen)
    lengths = torch.randint(1, TOKENS + 1, (rows,), generator=gen)
    lengths[0] = TOKENS
    logp = logq + drift * moved / 2**0.5
    reward = torch.randint(0, 9, (GROUPS, MEMBERS), generator=gen) / 8
    reward[:, 0], reward[:, 1] = 0.0, 1.0
    reward[-1] = 0.375
    return Batch(
        logp=logp,
        logq=logq,
        mask=(torch.arange(TOKENS) < lengths[:, None]).float(),
        reward=reward.flatten(),
        group=torch.arange(GROUPS).repeat_interleave(MEMBERS),
        ref=logp + 0.3 * torch.randn(rows, TOKENS, generator=gen),
        horizon=float(2 * TOKENS),
    )


def gradient(method: Objective, batch: Batch) -> Tensor:
    logp = batch.logp.clone().requires_grad_(True)
    loss(method, replace(batch, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


# --- TRL ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trl() -> Iterator[Any]:
    """The installed TRL. Missing, it is a failure: a reference that is silently left out compares nothing."""
    try:
        import trl as installed
    except ModuleNotFoundError as error:
        if error.name != "trl":
            raise
        pytest.fail("TRL is not installed, and these tests compare with it: `make test-nightly` installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        yield installed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model that TRL accepts; what it says is never read."""
    where = tmp_path_factory.mktemp("trl")
    words = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "<unk>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    ).save_pretrained(where / "model")
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=3,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    ).save_pretrained(where / "model")
    return where


class Theirs:
    """A GRPOTrainer of the installed TRL in the configuration of a case. Whatever it raises names TRL's
    version."""

    def __init__(self, trl: Any, folder: Path, options: dict[str, Any]) -> None:
        self.version = f"trl {trl.__version__} with {options}"
        self._batch = draw(0, 0.1)
        self._logp = self._batch.logp
        try:
            self._trainer = self._build(trl, folder, options)
        except Exception as error:
            error.add_note(self.version)
            raise

    def _build(self, trl: Any, folder: Path, options: dict[str, Any]) -> Any:
        from datasets import Dataset

        outside = self

        class Trainer(trl.GRPOTrainer):
            def _get_per_token_logps_and_entropies(
                self, model: Any, *_: Any, **__: Any
            ) -> tuple[Tensor, Tensor, None]:
                return (*outside._forward(model is self.ref_model), None)

        args = trl.GRPOConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=MEMBERS * GROUPS,
            num_generations=MEMBERS,
            gradient_accumulation_steps=1,
            max_completion_length=2 * TOKENS,
            use_cpu=True,
            bf16=False,
            report_to="none",
            num_iterations=2,  # with one, TRL takes the policy for the sampler, and every ratio is 1
            **options,
        )
        trainer = Trainer(
            model=str(folder / "model"),
            reward_funcs=self._reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * GROUPS}),
            rollout_func=self._rollout,
        )
        trainer.current_gradient_accumulation_steps = 1  # what `train` sets
        return trainer

    def _reward(self, completions: list[str], **_: Any) -> list[float]:
        return self._batch.reward.tolist()

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        lengths = self._batch.mask.sum(-1).int().tolist()
        return {
            "prompt_ids": [[1]] * len(lengths),
            "completion_ids": [[1] * n for n in lengths],
            "logprobs": [row[:n] for row, n in zip(self._batch.logq.tolist(), lengths, strict=True)],
        }

    def _forward(self, reference: bool) -> tuple[Tensor, Tensor]:
        assert self._batch.ref is not None
        logp = self._logp if torch.is_grad_enabled() else (self._batch.ref if reference else self._batch.logq)
        return logp.double(), torch.zeros_like(logp).double()

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Advantages (B,) and d loss / d logp (B, T) of a batch of whole groups, float32."""
        try:
            self._batch, self._logp = batch, batch.logp.clone().requires_grad_(True)
            rows = self._trainer._generate_and_score_completions([{"prompt": "a"} for _ in batch.reward])
            self._trainer.compute_loss(self._trainer.model, rows).backward()
        except Exception as error:
            error.add_note(self.version)
            raise
        assert self._logp.grad is not None
        return rows["advantages"], self._logp.grad


def assert_equal(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-8, msg=lambda text: f"{what}: {text}")


# --- the comparison -----------------------------------------------------------------------------------------


def compare(case: Case, trl: Any, folder: Path, kl: dict[str, Any], options: dict[str, float | str]) -> None:
    theirs = Theirs(trl, folder, case.trl | kl)
    method = objective(case.name, case.options | options)
    for seed in SEEDS:
        batch = draw(seed, case.drift)
        advantage, expected = theirs.step(batch)
        assert_equal(weights(method, batch)[0], advantage, f"advantage, seed {seed}, {theirs.version}")
        assert_equal(gradient(method, batch), expected, f"gradient, seed {seed}, {theirs.version}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_gradient_and_the_advantages_are_those_of_trl(case: Case, trl: Any, folder: Path) -> None:
    compare(case, trl, folder, {}, {})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_with_k3_to_a_reference_the_gradient_is_that_of_trl(case: Case, trl: Any, folder: Path) -> None:
    compare(case, trl, folder, BIASED, {"kl": 0.1, "kl_kind": "k3-reversed", "kl_against": "ref"})


@pytest.mark.parametrize("case", TOKEN_CASES, ids=lambda case: case.title)
def test_with_weighted_k3_to_a_reference_the_gradient_is_that_of_trls_bias_correction(
    case: Case, trl: Any, folder: Path
) -> None:
    compare(case, trl, folder, CORRECTED, {"kl": 0.1, "kl_kind": "k3-weighted", "kl_against": "ref"})


def test_dapo_gives_what_trl_gives_for_the_groups_that_teach_alone(trl: Any, folder: Path) -> None:
    theirs = Theirs(trl, folder, {"loss_type": "dapo", "epsilon_high": 0.28})
    live = MEMBERS * (GROUPS - 1)
    for seed in SEEDS:
        batch = draw(seed, 0.4)
        fields = {
            name: getattr(batch, name)[:live] for name in ("logp", "logq", "mask", "reward", "group", "ref")
        }
        _, expected = theirs.step(replace(batch, **fields))
        mine = gradient(objective("dapo"), batch)
        assert_equal(mine[:live], expected, f"seed {seed}, {theirs.version}")
        assert not mine[live:].any()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_batches_compared_with_trl_try_what_each_case_is_about(case: Case) -> None:
    tried = 0
    for seed in SEEDS:
        batch = draw(seed, case.drift)
        counted = batch.mask.bool() & (batch.group < GROUPS - 1)[:, None]  # the last group teaches nothing
        held = weights(objective(case.name, case.options), batch)[1][counted]
        without = weights(objective(case.name, case.options | case.off), batch)[1][counted]
        tried += bool(held.any()) and not torch.allclose(held, without, rtol=1e-3)
    assert tried > len(SEEDS) / 2
