"""The card of a trained model: README.md of its Hugging Face folder, made from a run's settings and journals.

    run folder, SwarmState --card--> front matter that the Hub reads, and a text for people

Facts that the journals of the folder lack are left out. No path of this machine and no peer is named. Not
handled here: the model's files (peers.commands.policies.export), their upload (peers.commands.policies.push).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from huggingface_hub import ModelCardData

from dashboard.fold.state import SwarmState
from dashboard.text import confidence, estimates, of_set
from dashboard.views import JudgedView
from peers.build.model.base_model import COMMIT
from peers.build.run_folder import RunFolder
from peers.commands.policies.export import Exported
from peers.runtime.watching.run_figures import quantile
from swarm import __version__
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.tasks.data.dataset import DATA

TAGS = ["reinforcement-learning", "rlvr", "gepo-swarm"]

PAGE = """---
{metadata}
---

# {name}

Version {version} of the run `{run}`: {base}, trained by reinforcement learning in a swarm of peers that do
not wait for each other (gepo-swarm {program}).

| | |
|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")
```

It was trained and measured on this task alone. What else it answers, and whether that is wrong or does harm,
was not looked at.
"""


def card(run: RunFolder, exported: Exported, repo: str, licence: Mapping[str, str]) -> str:
    """The text of README.md. `licence`: the front matter's fields about it, such as license: apache-2.0; none
    where it is unknown."""
    settings = run.settings
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=hub_base(settings),
        datasets=_data_set(run, settings),
        tags=TAGS,
        license=licence.get("license"),
        license_name=licence.get("license_name"),
        license_link=licence.get("license_link"),
    )
    rows = _rows(run, settings, exported, licence)
    return PAGE.format(
        metadata=data.to_yaml(),
        repo=repo,
        name=repo.rpartition("/")[2],
        version=exported.version,
        run=run.name,
        base=_base(settings),
        program=__version__,
        rows="\n".join(f"| {what} | {said} |" for what, said in rows if said),
    )


def hub_base(settings: Run) -> str | None:
    """The Hub id of the model that the run started from."""
    return settings.model.name if COMMIT.fullmatch(settings.model.revision) else None


def _base(settings: Run) -> str:
    name = settings.model.name
    if name == "embedded":
        return "a small Llama that the program makes"
    return f"`{name}`" if hub_base(settings) else f"a model called `{PurePath(name).name}`"


def _data_set(run: RunFolder, settings: Run) -> list[str] | None:
    word, _, name = settings.task.name.partition(":")
    return [name] if word == "data" and DATA not in run.spec.task else None


def _rows(
    run: RunFolder, settings: Run, exported: Exported, licence: Mapping[str, str]
) -> Sequence[tuple[str, str]]:
    state, model, how = exported.state, settings.model, settings.objective
    options = "".join(f", {name} = {value}" for name, value in sorted(how.options.items()))
    trained = {"full": "all weights", "lora": "adapters (LoRA), merged", "qlora": "adapters (QLoRA), merged"}
    base = f"`{model.name}` at `{model.revision[:12]}`" if hub_base(settings) else _base(settings)
    return (
        ("run", f"`{run.name}`, digest `{run.digest}`"),
        ("version", _version(state, exported.version)),
        ("started from", base),
        ("trained", f"{trained[model.training]}, learning rate {settings.optimizer.lr:g}"),
        ("objective", f"{how.name}{options}; groups of {settings.sampling.group_size} completions"),
        ("task", _task(run, settings)),
        ("peers", _peers(state)),
        ("groups trained on", f"{state.tally.trained:,}" if state.tally.trained else ""),
        ("staleness", _staleness(state, settings)),
        ("held-out accuracy", _accuracy(state)),
        ("held out, sampled", estimates(state.evaluations.last.sampled) if state.evaluations.last else ""),
        *((f"evaluation set {name}", of_set(one)) for name, one in _sets(state).items()),
        ("licence", licence.get("license_name") or licence.get("license") or "not known"),
    )


def _sets(state: SwarmState) -> Mapping[str, JudgedView]:
    return state.evaluations.last.sets if state.evaluations.last else {}


def _version(state: SwarmState, version: int) -> str:
    release = state.releases.get(version)
    if release is None:
        return str(version)
    day = datetime.fromtimestamp(release.released, UTC).strftime("%Y-%m-%d")
    return f"{version}, released on {day} by {release.learners} learner{'s' * (release.learners != 1)}"


def _task(run: RunFolder, settings: Run) -> str:
    """The task and its rewards, without folders of the machine that started the run."""
    word, colon, name = settings.task.name.partition(":")
    task = f"{word}{colon}{PurePath(name).name if DATA in run.spec.task else name}"
    rewards = ", ".join(f"`{PurePath(name).name}`" for name in settings.task.rewards)
    return f"`{task}`" + (f", rewarded by {rewards}" if rewards else "")


def _peers(state: SwarmState) -> str:
    """All peers seen in the run, by role; observers only watched."""
    count = Counter(peer.role for peer in state.peers.values())
    return ", ".join(
        f"{count[role]} {role}{'s' * (count[role] > 1)}"
        for role in Role
        if count[role] and role is not Role.OBSERVER
    )


def _staleness(state: SwarmState, settings: Run) -> str:
    """Versions between a group's policy and the one that was trained on it: median, 95th percentile, most."""
    lags, window = state.tally.versions, settings.window
    if not lags:
        return ""
    middle, high = (quantile(lags, share) for share in (0.5, 0.95))
    return (
        f"groups were {middle} versions old when they were trained on (median), {high} (95th percentile),"
        f" {max(lags)} (most); the window was {window.versions} versions and {window.seconds:g} s"
    )


def _accuracy(state: SwarmState) -> str:
    said = [
        f"{accuracy:.1%} at version {version}"
        for version, accuracy in dict.fromkeys(
            state.accuracies[when] for when in ("first", "last") if when in state.accuracies
        )
    ]
    if (last := state.evaluations.last) is not None:
        said[-1] += f" ({confidence(last.low, last.high)})"
    return ", then ".join(said)
