"""Baseline of the rows `tokens`, `accuracy` and `real`: TRL's GRPOTrainer on the same model, task and sizes.

    python -m lab.processes.baseline_trl '{"model": ..., "seconds": 20, "warm": 3}'
        -> {"tokens", "seconds", "cpu", ...}

Where TRL has the same setting it has our value: prompts of a step and completions of each, their longest,
temperature, adapter, AdamW with our rate and moments, no KL, fp32 on the CPU. Activations are kept, and
`generate` of transformers samples. Prompts are written by the run's chat template. Tokens are those of the
completions, end tokens included, as the reward function gets them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lab.swarms.local_swarm import settings
from lab.swarms.partner import opened, say

if TYPE_CHECKING:
    from swarm.settings.config import Run

LAST_STEP = 100_000
"""Steps; never reached, the time ends the run."""


def main() -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    setup = opened()
    try:
        import trl
    except ImportError as error:
        say(failed=missing(error))
        return 0
    import torch

    torch.set_num_threads(1)
    count = Count(setup["warm"], setup["seconds"])
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        trainer(trl, settings().run, Path(setup["model"]), Path(folder), count).train()
    seconds = count.ended - count.began
    say(
        seconds=seconds,
        cpu=count.cpu,
        tokens=count.tokens,
        versions=count.versions,
        reward=count.reward,
        trl=trl.__version__,
    )
    return 0


class Count:
    """Counts tokens and steps between the end of the warm-up and the end of the time."""

    def __init__(self, warm: int, seconds: float) -> None:
        self.warm, self.seconds = warm, seconds
        self.began, self.ended, self.tokens, self.versions, self.reward = 0.0, 0.0, 0, 0, 0.0
        self.cpu = 0.0
        """CPU seconds between the two moments."""
        self._cpu = 0.0
        self._sampled = 0
        self._steps = 0

    def sampled(self, tokens: int, reward: float) -> None:
        self._sampled += tokens
        self.reward = reward

    def stepped(self) -> bool:
        """After an optimizer step. True when the time is over."""
        self._steps += 1
        now = time.perf_counter()
        if self._steps <= self.warm:
            self.began, self._cpu = now, time.process_time()
        else:
            self.tokens += self._sampled
            self.versions += 1
            self.cpu = time.process_time() - self._cpu
        self._sampled, self.ended = 0, now
        return self._steps > self.warm and now - self.began >= self.seconds


def missing(error: ImportError) -> str:
    return f"TRL is not installed ({error}): `make bench` installs it"


class Watching(Protocol):
    def sampled(self, tokens: int, reward: float) -> None:
        """After a batch was sampled: tokens of its completions, and their mean reward."""

    def stepped(self) -> bool:
        """After an optimizer step. True ends the training."""


def trainer(trl: Any, run: Run, model: Path, folder: Path, count: Watching) -> Any:
    """A GRPOTrainer with the settings of a run, which reports its progress to `count`. `trl` is the
    module."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    from swarm.learn.models import tokenization
    from swarm.learn.models.model import load_policy
    from swarm.learn.models.pretrained import load_tokenizer
    from swarm.tasks import catalog as tasks
    from swarm.tasks.rendered import Rendered

    source = Rendered(tasks.source(run.task, run.seed), tokenization.of_run(model, run).render_all)
    exercises = [source.task(i) for i in range(4096)]
    rows = Dataset.from_list([{"prompt": task.prompt, "index": task.index} for task in exercises])
    tokenizer = load_tokenizer(model)

    def reward(
        completions: list[str], index: list[int], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        rewards = [
            source.rewards(exercises[i], [text])[0] for i, text in zip(index, completions, strict=True)
        ]
        count.sampled(sum(map(len, completion_ids)), sum(rewards) / len(rewards))
        return rewards

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = count.stepped()
            return control

    it = trl.GRPOTrainer(
        model=load_policy(model, lora=None if run.model.training == "full" else run.lora),
        reward_funcs=reward,
        args=_arguments(trl, run, folder),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[Watch()],
    )
    it.remove_callback(PrinterCallback)  # it prints to stdout, which carries our answer
    return it


def _arguments(trl: Any, run: Run, folder: Path) -> Any:
    """The settings of a run, as TRL has them."""
    from swarm.learn.learners.optimizers import BETAS

    size, optimizer = run.batch.groups * run.sampling.group_size, run.optimizer
    return trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=size,
        num_generations=run.sampling.group_size,
        max_completion_length=run.sampling.max_tokens,
        temperature=run.sampling.temperature,
        learning_rate=optimizer.lr,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_grad_norm=optimizer.grad_clip,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=optimizer.warmup,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=LAST_STEP,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        seed=run.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
