"""A model, a data set and a reward function that a person brings along: trained by real peers, exported,
loaded again."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm_processes import SETTINGS, started_swarm, swarm

from swarm import events
from swarm.learn.models import tiny
from swarm.tasks.workers import sandbox

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


@pytest.mark.slow
@pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "it works")
def test_a_stranger_scores_with_the_runs_own_reward_code_in_a_sandbox(folder: Path) -> None:
    tiny.make(folder / "model", "qwen3")
    with started_swarm(folder, settings(folder)) as house:
        house.seed()
        learner = house.join("learner")
        sampler = house.join("sampler", folder=folder / "elsewhere")
        house.wait_until(lambda: learner.saw(events.Trained), 120, "nobody trained")
        judged, *_ = learner.saw(events.Judged)
        assert judged.verdict == "admit" and judged.sampler == sampler.peer
        brought = {path.name for path in (folder / "elsewhere" / "task").iterdir()}
        assert brought == {"data.parquet", "rewards-0.py"}
        for peer in (learner, sampler):  # in the owner's folder, too: who joins by an invite trusts no code
            assert any("bwrap" in process.name() for process in peer.tree()), "not scored in a sandbox"
        house.wait_until(lambda: learner.saw(events.Released), 30, "nothing was released")
        out = swarm("export", str(folder / "mine"), "--folder", str(house.folder))
        assert out.returncode == 0, out.stderr
        assert loaded(folder / "mine")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "training"), [("llama", "lora"), ("gemma3", "full"), ("qwen3", "qlora")])
def test_every_family_and_kind_of_training_runs_to_its_end(folder: Path, family: str, training: str) -> None:
    tiny.make(folder / "model", family)
    with started_swarm(folder, settings(folder, training, versions=3)) as house:
        up = house.run(
            "up",
            "up",
            str(house.config),
            "--folder",
            str(house.folder),
            "--set",
            "peer.swarm.learners=1",
            "--set",
            "peer.swarm.samplers=1",
        )
        house.wait_until(lambda: up.process.poll() is not None, 200, "the run did not complete")
        assert up.process.returncode == 0, up.log.read_text()
        assert loaded(house.folder / "exported")
        assert (house.folder / "exported" / "adapter").exists() == (training != "full")
