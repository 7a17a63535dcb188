"""Settings of a guest: what a peer takes of its machine and its line, when it works; and of what a learner
spends on audits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from swarm.settings.sections import Hours, Part, Section, Share, Weight


class Limits(Section):
    """The share of its machine and line that this peer takes, and its hours. Outside of them, on a battery or
    beside other programs it pauses, as far as these say so: it keeps its place, and no peer waits for it."""

    upload: Weight = 0.0
    """Mbit/s, a million bits a second, that releases, states and rounds of averaging send; groups and all
    that is small go at once, and these wait for them. Below what the line carries, this peer's groups and
    others of the household find it free. 0: no limit."""
    download: Weight = 0.0
    """Mbit/s that they take, on average over some seconds: a block of 1 MiB that was asked for comes as fast
    as it can. 0: no limit."""
    cpu: Part = 1.0
    """Share of the machine's cores, in whole cores, one at least, on which all of this peer's processes stay:
    for a machine that others work on."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 0
    """Priority of these processes: at 19 they take what other programs leave."""
    memory: Weight = 0.0
    """GB of RAM for all of them. A role that is expected to need more is not begun, and a peer that uses more
    leaves. 0: no limit."""
    gpu_memory: Part = 1.0
    """Share of a GPU's memory. vLLM takes the smaller one of this and `peer.engine.memory`."""
    disk: Weight = 0.0
    """GB of this peer's folder; one that holds more leaves. 0: no limit."""
    hours: Hours = ""
    """Local time in which it works, such as `22-7` or `18:30-23`; empty: all day."""
    battery: bool = True
    """Whether it works while the machine runs on a battery."""
    others: Share = 1.0
    """It rests while other programs take more than this share of the processor, over ten seconds, and for a
    minute after; 1: it does not look."""


class Auditing(Section):
    """A learner's audits: it replays groups of samplers without an invite, and suspends those whose groups
    are not what policy and seed draw (docs/trust.md)."""

    share: Share = 0.05
    """Largest share of the time that it computes, for groups that it draws and for those that others accuse;
    0: it replays none. For its first replay it loads the policy once more. Raise it where strangers make most
    groups. As much of a round's time goes, over all its learners, into gradients that are computed again."""
    invited: bool = False
    """Whether samplers with an invite are audited, too: where not all who were invited are trusted."""
