"""Row `learner`: CPU seconds, tokens and memory of a gradient whose groups go through the model with each
prompt once, against a padded row with a copy of the prompt for each completion.

    the same batch, three ways in turns:   each token once (swarm.learn.models.packing)
                                           padded rows of like lengths together, as models that cannot pack
                                           all padded rows in one pass: the baseline
    three shapes of a batch:               short completions to short and to long prompts, and a long tail

Log-probabilities and gradients of the ways are compared in the same run: the difference is a figure, too. The
model has the widths of SmolLM2-135M and random weights; `learner-smollm2` takes the pretrained one, which
`swarm up smollm2` fetches. Not handled here: GPUs, and the rest of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from lab.figures.table import Figure, Say, Unmeasured
from lab.swarms.partner import Answer, Partner

LAYERS = 10
"""Of the random model, a third of SmolLM2's: its longest pass takes less than a minute."""

TURNS = 1
"""CPU seconds of a process of its own vary little."""

PATIENCE = 900.0
"""Seconds for a pass of the pretrained model, on a machine that does something else as well."""

SHAPES = {
    "prompts of 40 tokens, completions of 4 to 16": {"prompt": 40, "tail": False},
    "prompts of 200, completions of 4 to 16": {"prompt": 200, "tail": False},
    "prompts of 200, completions of 4 to 256": {"prompt": 200, "tail": True},
}
WAYS = ("one pass", "packed", "like lengths")
BASELINE = "padded rows in one pass"


def measure(
    say: Say, layers: int = LAYERS, turns: int = TURNS, row: str = "learner", model: str = ""
) -> list[Figure]:
    with Partner("lab.processes.passes", {"model": model, "layers": layers}) as child:
        told = child.receive()
        if told["padded"]:
            raise Unmeasured(f"this model does not pack: {told['padded']}")
        size = f"{told['parameters'] / 1e6:.0f}M parameters"
        return [
            figure
            for shape, asked in SHAPES.items()
            for figure in _figures(row, shape, size, _turns(child, say, shape, asked, turns))
        ]


def smollm2(say: Say) -> list[Figure]:
    from peers.build.model import smollm2 as pretrained

    return measure(say, turns=1, row="learner-smollm2", model=str(pretrained.folder()))


def _turns(
    child: Partner, say: Say, shape: str, asked: Mapping[str, object], turns: int
) -> dict[str, list[Answer]]:
    seen: dict[str, list[Answer]] = {way: [] for way in WAYS}
    for turn in range(turns):
        for way in WAYS:
            say(f"{shape}: {way}, turn {turn + 1} of {turns}")
            child.tell(**asked, way=way)
            seen[way].append(child.receive(PATIENCE))
    return seen


def _figures(row: str, shape: str, size: str, seen: dict[str, list[Answer]]) -> Iterator[Figure]:
    padded, packed, alike = (seen[way] for way in WAYS)
    seconds = {way: [one["seconds"] for one in seen[way]] for way in WAYS}
    through = f"{packed[0]['tokens']:,} tokens through the model against {padded[0]['tokens']:,}"
    others = f"padded rows of like lengths: {median(seconds['like lengths']):.2f} s, {alike[0]['tokens']:,}"
    yield Figure.of_turns(
        seconds["packed"],
        seconds["one pass"],
        row=row,
        what=f"a gradient of 4 groups of 8, {shape}",
        unit="CPU s",
        against=BASELINE,
        note=f"{size}; {through}; {others}",
    )
    yield Figure(
        row=row,
        what=f"distinct of the tokens that go through the model, {shape}",
        value=100 * packed[0]["distinct"] / packed[0]["tokens"],
        unit="% of its tokens",
        against=BASELINE,
        other=100 * padded[0]["distinct"] / padded[0]["tokens"],
    )
    yield Figure(
        row=row,
        what=f"memory of the pass, {shape}",
        value=max(one["bytes"] for one in packed) / 2**20,
        unit="MiB",
        against=BASELINE,
        other=max(one["bytes"] for one in padded) / 2**20,
        note="most resident memory above that before it",
    )
    yield Figure(
        row=row,
        what=f"difference of the gradients of both ways, {shape}",
        value=packed[0]["gradient"],
        unit="of its norm",
        note=f"log-probabilities differ by {packed[0]['logprobs']:.1g} nats at most",
    )
