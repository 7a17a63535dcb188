"""`swarm verify`: replays a group whose sampler a learner accuses of cheating.

    evidence --whose signatures are checked--> group, release
    run folder -> model, tokenizer, task; the release's bytes beside the evidence, or where a peer holds them
    replay -> what each completion is off by -> 0: the evidence holds, 5: it does not

Allowed deviations are measured on this group's text, under as many seeds as a learner uses. No claim of the
learner is trusted. Not handled here: the consequences for the sampler (swarm.core.audits.auditing).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peers.audits.evidence import BYTES, Evidence, Unsigned, signed_group
from peers.build import run_folder
from peers.build.joining.consent import check_code
from peers.build.model import task_source
from peers.build.run_folder import RunFolder
from peers.errors import DONE, REFUSED, CannotHere, Refusal, WrongUsage, say
from peers.runtime.frames import Frames
from swarm.core.audits.accusations import is_conclusive
from swarm.core.audits.auditing import Weighed
from swarm.draws.replays import Replayed, claims_of, replay_group, rows_of, weigh
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT
from swarm.membership.identity import Keyring
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.storage.weights import Weights
from swarm.types import Digest, Group, Release

if TYPE_CHECKING:
    from swarm.learn.models.tokenization import Tokenization


def verify(path: Path, folder: Path | None, release: Path | None, config: Config) -> int:
    """Print the result of replaying the evidence at `path`; `folder` is the run's, `release` a file with the
    version's bytes, `config` this machine's own settings. Returns an exit code; raises UserError."""
    if folder is not None:
        run_folder.check_files(folder)
    try:
        evidence = wire.decode(run_folder.check_files(path, run_folder.SMALL).read_bytes(), Evidence)
    except FileNotFoundError as error:
        raise WrongUsage(f"there is no evidence {path}: learners keep it in a folder evidence") from error
    except OSError as error:
        raise WrongUsage(f"{path} cannot be read: {error.strerror}") from error
    except wire.WireError as error:
        raise WrongUsage(
            f"{path} is not a learner's evidence, or not all of it: name a file of its folder evidence"
        ) from error
    run = run_folder.opened(folder or _folder_of(path))
    if run.digest != evidence.run:
        raise Refusal(
            f"the evidence is of run {evidence.run[:12]}, {run.path} has run {run.digest[:12]}: name the"
            " right one with --folder"
        )
    check_code(run, Role.AUDITOR, config.peer.rewards.code)
    tokens = _tokens(run)
    group = _group(evidence, run, tokens.vocabulary)
    kept = [release] if release else [path.with_suffix(BYTES), *_held(run, group.weights)]
    weights = _weights(group, run.spec.release_size, kept)
    found, replayed = _replayed(run, tokens, group, weights, config)
    for line in _lines(group, replayed, found):
        say(line, sys.stdout)
    holds = found.off > 0 or found.claimed > 0
    print(_verdict(found) if holds else "the evidence does not hold: this group alone shows nothing")
    say(f"the learner {evidence.auditor} said: {evidence.why}")
    return DONE if holds else REFUSED


def _verdict(found: Weighed) -> str:
    """The verdict on a group with a finding."""
    if is_conclusive(found):
        return "the evidence holds"
    return (
        "the evidence holds, but it is one token, which may be chance: learners suspend a sampler when a"
        " second one follows soon"
    )


def _folder_of(path: Path) -> Path:
    """The run folder in which a learner keeps this evidence. Raises WrongUsage."""
    above = path.resolve().parents  # evidence, the learner's, peers, the run's
    if len(above) < 4 or run_folder.read(above[3]) is None:
        raise WrongUsage(f"{path} lies in no run folder: name that of the evidence's run with --folder")
    return run_folder.check_files(above[3])


def _tokens(run: RunFolder) -> Tokenization:
    from swarm.learn.models import tokenization

    return tokenization.of_run(run.model, run.settings)


def _group(evidence: Evidence, run: RunFolder, vocabulary: int) -> Group:
    """The group, as its sampler signed it under a release that its publisher signed. Raises Refusal."""
    frames = Frames(run.digest, Keyring.new(), None, run.keys())
    try:
        _, group = signed_group(frames, evidence.frame, run.settings, vocabulary)
        signed, release = frames.read(evidence.release, RELEASE_LIMIT, Release)
    except wire.WireError as error:
        raise Refusal(f"the evidence is not what anybody signed: {error}") from error
    except Unsigned as error:
        raise Refusal(str(error)) from error
    named = (group.version, group.weights) == (release.version, release.weights)
    if signed.sender != release.publisher or not named:
        raise Refusal("the evidence's release is not the one that the group names, signed by its publisher")
    return group


def _held(run: RunFolder, weights: Digest) -> list[Path]:
    return sorted(run.path.glob(f"peers/*/blobs/{weights}"))


def _weights(group: Group, size: int, paths: list[Path]) -> Weights:
    """`size`: bytes of the run's releases. Raises CannotHere."""
    for path in paths:
        if path.is_file():
            if path.stat().st_size == size:
                weights = Weights.of(path.read_bytes(), group.version)
                if weights.digest == group.weights:
                    return weights
            say(f"{path} has other bytes than version {group.version}")
    raise CannotHere(
        f"version {group.version} is not here: bring the .safetensors file that lies beside the evidence at"
        " the learner, or name one that has the version's bytes with --release"
    )


def _replayed(
    run: RunFolder, tokens: Tokenization, group: Group, weights: Weights, own: Config
) -> tuple[Weighed, Replayed]:
    from peers.build.model import factory
    from swarm.learn.replay import CALIBRATED

    config = Config(run=run.settings, peer=own.peer)
    replay = factory.replay(run.model, config)
    if group.noise != replay.noise:
        raise CannotHere(f"groups whose noise is {group.noise!r} cannot be replayed: they prove nothing")
    source = task_source.source(run, config, tokens.render_all, say, scores=False)
    try:
        prompt = source.task(group.task).prompt
    finally:
        source.close()
    replay.load(weights)
    replayed = replay_group(replay, prompt, group)
    for other in range(1, CALIBRATED):  # a learner's tolerance is of so many groups: other noise, same text
        replay.replay(prompt, rows_of(group), group.seed + other)
    return weigh(replayed, claims_of(group), replay.allowed), replayed


def _lines(group: Group, replayed: Replayed, found: Weighed) -> Iterator[str]:
    yield f"group {group.id} of sampler {group.sampler}"
    yield f"task {group.task}, seed {group.seed}, version {group.version} ({group.weights[:12]})"
    cuts = np.cumsum(group.lengths)[:-1]
    claimed = np.abs(replayed.logprobs - claims_of(group))
    apart = replayed.apart if replayed.apart is not None else np.zeros_like(claimed)
    parts = zip(*(np.split(each, cuts) for each in (replayed.margins, claimed, apart)), strict=True)
    for number, (margins, differences, heads) in enumerate(parts, 1):
        yield (
            f"  completion {number}: {len(margins)} tokens, margin {margins.max():.3g} nats at token"
            f" {int(margins.argmax()) + 1}, claims {differences.max():.3g} nats off"
            + (f", heads {heads.max():.3g}" if group.heads is not None else "")
        )
    yield f"{found.off} of {found.tokens} tokens are off; {found.deciding} decide something"
