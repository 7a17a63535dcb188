"""Commands on a run of this machine: `status` shows it, `leave` stops its peers, `export` writes the
model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from dashboard.state import State, fold
from dashboard.terminal import render
from peers.build import run_folder, spec_transfer
from peers.build.run_folder import RunFolder
from peers.commands.journals import tell_first
from peers.errors import CannotHere, Refusal, WrongUsage
from peers.runtime import pause, peer_folder
from peers.runtime.frames import Frames
from peers.runtime.peer_folder import RELEASES
from swarm import wire
from swarm.blocks import Blocks
from swarm.config import Config, Run
from swarm.config_loading import from_run_dict
from swarm.core.releases import rank
from swarm.identity import Keyring
from swarm.journal import Tail
from swarm.limits import RELEASE_LIMIT
from swarm.protocol import Role
from swarm.types import Release

LISTEN = 5.0
"""Seconds that an observer listens when no seed answers: two heartbeats of every peer."""

LOOK = 0.5
"""Seconds between two redraws."""

LEAVE_PATIENCE = 20.0


def status(folder: Path | None, word: str | None, config: Config, watch: bool, as_json: bool) -> int:
    """Show the state of the run on this machine, from its journals; with an invite, of the swarm that it
    names."""
    if word is not None:
        return _observe(word, folder, config, watch, as_json)
    assert folder is not None
    run = run_folder.read(folder)
    if run is None:
        raise WrongUsage(f"{folder} is no run folder: `swarm start` and `swarm join` make one")
    if (until := pause.until(folder, now := time.time())) is not None:
        print(f"the peers of {folder} are paused {pause.sentence(until, now)}", file=sys.stderr)
    state = State(from_run_dict(run.spec.run), config.peer.history)
    tails = _tails(folder)

    def read() -> None:
        for tail in tails:
            for event in tail.news():
                fold(state, event)

    read()
    if not watch:
        _show(state, as_json)
        return 0
    with Live(console=Console(), refresh_per_second=4) as live:
        while True:
            live.update(render(state, time.time(), live.console.width))
            time.sleep(LOOK)
            read()


def _tails(folder: Path) -> list[Tail]:
    """The seed's journal, which has all that others told, or those of all peers."""
    seed = folder / "peers" / Role.SEED / "journal.jsonl"
    paths = [seed] if seed.exists() else sorted(folder.glob("peers/*/journal.jsonl"))
    return [Tail(path, tell_first) for path in paths]


def _show(state: State, as_json: bool) -> None:
    now = time.time()
    if as_json:
        print(msgspec.json.encode(state.view(now, quiet=max(now - state.last, 0.0))).decode())
    else:
        console = Console()
        console.print(render(state, now, console.width))


def _observe(word: str, folder: Path | None, config: Config, watch: bool, as_json: bool) -> int:
    """Join as an observer: show the history that a seed sends, or what arrives in LISTEN seconds; with
    `watch` until a signal."""
    from peers.build import watching

    async def look(watched: watching.WatchedSwarm) -> None:
        if watch:
            with Live(console=Console(), refresh_per_second=4) as live:
                while not watched.leaving.is_set():
                    live.update(render(watched.observer.state, time.time(), live.console.width))
                    await _wait(watched.leaving, LOOK)
        elif not watched.has_history:
            await _wait(watched.leaving, LISTEN)
        _show(watched.observer.state, as_json)

    return watching.observe(word, folder, config, not watch, look)


async def _wait(leaving: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(leaving.wait(), seconds)


def leave(folder: Path) -> int:
    """Ask the peers of this folder to finish and leave; wait until they have."""
    peers = peer_folder.running(folder)
    if not peers:
        print(f"no peer of {folder} is running", file=sys.stderr)
        return 0
    # `swarm up` restarts its children: ask it, and it asks them.
    asked = {"up": peers["up"]} if "up" in peers else peers
    if nameless := [folder / "peers" / name / "pid" for name, pid in asked.items() if not pid]:
        raise CannotHere(
            f"{nameless[0]} does not say which process it is, since the disk lost or refused it: `fuser"
            f" {nameless[0]}` does, and `kill` asks it to leave"
        )
    for pid in asked.values():
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + LEAVE_PATIENCE
    while (left := peer_folder.running(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        names = ", ".join(f"{name} (process {pid})" for name, pid in left.items())
        raise CannotHere(f"{names} did not leave within {LEAVE_PATIENCE:.0f} s: end them with `kill -9`")
    print(f"left: {', '.join(peers)}", file=sys.stderr)
    return 0


def export(folder: Path, target: Path) -> int:
    """Write the newest policy that this machine holds as a Hugging Face folder. Of a run with adapters: the
    merged model, and `adapter/`, which PeftModel and vLLM load on the base.
    """
    run = run_folder.read(folder)
    if run is None:
        raise WrongUsage(f"{folder} is no run folder: `swarm start` and `swarm join` make one")
    if target.exists() and any(target.iterdir()) and not (target / "config.json").exists():
        raise WrongUsage(f"{target} is not empty and not a model folder: name another one")
    for sentence in spec_transfer.damaged_files(run).values():
        raise CannotHere(sentence)
    version, weights = newest_weights(folder, run)
    settings = from_run_dict(run.spec.run)
    if (newest := _newest_told(folder, settings)) > version:
        print(
            f"version {newest} was made, and its bytes had not come to this folder: {version} is the newest"
            " that is whole here",
            file=sys.stderr,
        )
    if settings.model.training == "full":
        _write_policy(run.model, run.model, weights, target)
    else:
        _write_merged(run.model, settings, weights, target)
    print(target)
    print(
        f"version {version} of run {run.digest[:12]}: AutoModelForCausalLM.from_pretrained({str(target)!r})"
        " loads it",
        file=sys.stderr,
    )
    return 0


def _newest_told(folder: Path, settings: Run) -> int:
    """The newest version that the journals of this folder tell of."""
    state = State(settings)
    for tail in _tails(folder):
        for event in tail.news():
            fold(state, event)
    return state.version


def _write_policy(model: Path, base: Path, weights: bytes, target: Path) -> None:
    """Write weights of the architecture in `base`, with the other files of `model`."""
    from swarm.learn.model import load_policy

    load_policy(base, dtype="bfloat16", data=weights).save_pretrained(target)
    for name in run_folder.MODEL_FILES:
        if name != "config.json" and (model / name).exists():
            shutil.copyfile(model / name, target / name)


def _write_merged(model: Path, run: Run, weights: bytes, target: Path) -> None:
    from peers.build import base_model
    from swarm.learn import adapters
    from swarm.learn.model import load_policy

    base = base_model.base(model, run)
    _write_policy(model, base, adapters.merged(load_policy(base), run.lora, weights), target)
    name = run.model.name if base_model.from_hub(run) else str(base.resolve())
    adapters.write_folder(target / "adapter", Blocks.of(weights), run.lora, name)
    print(f"the adapter alone, for {name}: {target / 'adapter'}", file=sys.stderr)


def newest_weights(folder: Path, run: RunFolder) -> tuple[int, bytes]:
    """(version, bytes) of the best undamaged release of this machine's peers, or of version 0. Raises
    UserError."""
    found = [(release, peer) for peer in sorted(folder.glob("peers/*")) for release in _kept(peer, run)]
    for release, peer in sorted(found, key=lambda one: rank(one[0]), reverse=True):
        if (weights := _whole(peer / "blobs", release)) is not None:
            return release.version, weights
        print(f"release {release.version} in {peer} is damaged: the next best is taken", file=sys.stderr)
    if (genesis := run.genesis()) is not None:
        return 0, genesis
    raise Refusal(
        f"{folder} holds no release: none of its peers has taken one yet; let one run until it has, or export"
        " where another peer of the run is"
    )


def _kept(peer: Path, run: RunFolder) -> list[Release]:
    """Releases whose bytes a peer holds."""
    # any key will do to read what others signed, and that of a peer may be damaged
    frames, found = Frames(run.digest, Keyring.new(), None, bool(run.spec.run["private"])), []
    for path in sorted((peer / RELEASES).glob("*")):
        try:
            found.append(wire.decode(frames.open(path.read_bytes(), RELEASE_LIMIT).body, Release))
        except wire.WireError as error:
            print(f"{path} is damaged ({error}): its release is left out", file=sys.stderr)
    return found


def _whole(blobs: Path, release: Release) -> bytes | None:
    """The release's bytes; None when some are missing or damaged."""
    path = blobs / release.weights
    if not path.is_file() or path.stat().st_size != release.size:
        return None
    weights = Blocks.of(path.read_bytes())
    return weights.whole if weights.root == release.weights else None
