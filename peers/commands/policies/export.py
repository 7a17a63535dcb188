"""`swarm export`: writes the newest policy that this machine holds as a Hugging Face folder.

    releases of all peers here --the best that is whole--> weights --> model and tokenizer, and `adapter/`

Not handled here: what peers keep of releases (peers.runtime.releases.exchange), a model's way to the Hub
(peers.commands.policies.push).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dashboard.fold.folds import fold
from dashboard.fold.state import SwarmState
from peers.build import run_folder
from peers.build.joining import spec_transfer
from peers.build.run_folder import RunFolder
from peers.commands.journals import journals
from peers.errors import CannotHere, Refusal, WrongUsage, say
from peers.runtime.frames import Frames
from peers.runtime.peer_folder import RELEASES
from swarm.core.agreement.releases import rank
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT
from swarm.membership.identity import Keyring
from swarm.settings.config import Run
from swarm.storage.blocks import Blocks
from swarm.types import Release

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without room, or of a process that may not write so much."""


class Exported(NamedTuple):
    version: int
    state: SwarmState
    """The run's state, from the journals of the folder."""


def export(folder: Path, target: Path, force: bool = False) -> int:
    """Write the newest policy of this machine. Of a run with adapters: the merged model, and `adapter/`,
    which PeftModel and vLLM load on the base. `force`: also to a folder that is not empty."""
    run = run_folder.opened(folder)
    version = write(run, target, portable=False, force=force).version
    print(target, flush=True)  # it is whole: `swarm up` reads this of one that was ended right afterwards
    say(
        f"version {version} of run {run.digest[:12]}: AutoModelForCausalLM.from_pretrained({str(target)!r})"
        " loads it",
    )
    return 0


def write(run: RunFolder, target: Path, portable: bool, force: bool = False) -> Exported:
    """Write the newest policy to `target`. `portable`: for other machines, so an adapter whose base is a
    folder of this one is left out. `force`: files of a folder that is not empty are overwritten. Raises
    UserError."""
    if not force and target.exists() and any(target.iterdir()):
        raise WrongUsage(f"{target} is not empty: name another folder, or write over its files with --force")
    say(f"reading the model of {run.path}")
    for sentence in spec_transfer.damaged_files(run).values():
        raise CannotHere(sentence)
    version, weights = newest_weights(run.path, run)
    settings = run.settings
    state = _read_state(run.path, settings)
    if state.version > version:
        say(
            f"version {state.version} was made, and its bytes had not come to this folder: {version} is the"
            " newest that is whole here",
        )
    elif version == 0:
        say(f"nothing that was trained is here: {_nothing(run.path)}; export where another peer is")
    say(f"writing version {version} to {target}")
    with room(target):
        if settings.model.training == "full":
            _write_full(run.model, weights, target)
        else:
            _write_merged(run.model, settings, weights, target, portable)
    return Exported(version, state)


def _nothing(folder: Path) -> str:
    """Why the newest version of a folder may be 0, which the run began with."""
    begun = "version 0 is the model that the run began with"
    if journals.tails(folder):
        return f"{begun}, and no peer of {folder} tells of another"
    return f"{begun}, and no peer has run in {folder}, or its folder peers/ has no journal any more"


def _read_state(folder: Path, settings: Run) -> SwarmState:
    state = SwarmState(settings)
    for tail in journals.tails(folder):
        for event in tail.news():
            fold(state, event)
    return state


def _write_full(model: Path, weights: bytes, target: Path) -> None:
    from swarm.learn.models.model import load_policy

    _write_policy(model, load_policy(model, dtype="bfloat16", data=weights), target)


def _write_policy(model: Path, policy: PreTrainedModel, target: Path) -> None:
    """Write a policy in bfloat16, with the other files of `model`."""
    import torch

    policy.to(torch.bfloat16).save_pretrained(target)
    for name in run_folder.MODEL_FILES:
        if name != "config.json" and (model / name).exists():
            shutil.copyfile(model / name, target / name)


@contextlib.contextmanager
def room(target: Path) -> Iterator[None]:
    """Raise CannotHere where the disk has no room for the body's writes to `target`: safetensors has its own
    error for that, and a copy names the file that it reads."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(code[1]) if code else None
        if number not in FULL:
            raise
        raise CannotHere(
            f"cannot write {target}: {os.strerror(number)}; what is there is no whole model: free some space,"
            " or name another place"
        ) from error


def _write_merged(model: Path, run: Run, weights: bytes, target: Path, portable: bool) -> None:
    from peers.build.model import base_model
    from swarm.learn.models import adapters
    from swarm.learn.models.model import load_policy

    base = base_model.base(model, run)
    _write_policy(model, adapters.merged(load_policy(base), run.lora, weights), target)
    travelled = base == model  # its weights came with the run: they are those of no Hub id
    if portable and travelled:
        return
    adapters.write_folder(target / "adapter", Blocks.of(weights), run.lora, run.model.name)
    say(f"the adapter alone, for {run.model.name} ({base} here): {target / 'adapter'}")


def newest_weights(folder: Path, run: RunFolder) -> tuple[int, bytes]:
    """(version, bytes) of the best undamaged release of this machine's peers, or of version 0. Raises
    UserError."""
    found = [(release, peer) for peer in sorted(folder.glob("peers/*")) for release in _kept(peer, run)]
    for release, peer in sorted(found, key=lambda one: rank(one[0]), reverse=True):
        if (weights := _whole(peer / "blobs", release)) is not None:
            return release.version, weights
        say(f"release {release.version} in {peer} is damaged: the next best is taken")
    if (genesis := run.genesis()) is not None:
        return 0, genesis
    raise Refusal(
        f"{folder} holds no release: none of its peers has taken one yet; let one run until it has, or export"
        " where another peer of the run is"
    )


def _kept(peer: Path, run: RunFolder) -> list[Release]:
    """Releases whose bytes a peer holds. A running peer drops older ones while they are read."""
    # any key will do to read what others signed, and that of a peer may be damaged
    frames, found = Frames(run.digest, Keyring.new(), None, run.keys()), []
    for path in sorted((peer / RELEASES).glob("*")):
        try:
            found.append(frames.read(path.read_bytes(), RELEASE_LIMIT, Release)[1])
        except FileNotFoundError:
            continue
        except wire.WireError as error:
            say(f"{path} is damaged ({error}): its release is left out")
    return found


def _whole(blobs: Path, release: Release) -> bytes | None:
    """The release's bytes; None when some are missing or damaged."""
    path = blobs / release.weights
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size == release.size:
            weights = Blocks.of(path.read_bytes())
            return weights.whole if weights.root == release.weights else None
    return None
