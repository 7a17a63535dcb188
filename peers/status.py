"""Commands that look at a run or end it on this machine: `status`, `leave`, `export`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live

from dashboard.state import State, fold
from dashboard.terminal import render
from peers import runfolder
from peers.errors import CannotHere, Refusal, WrongUsage
from peers.frames import Frames
from peers.runfolder import RunFolder
from peers.up import Tail
from swarm import wire
from swarm.config import Run, from_run_dict
from swarm.events import Event
from swarm.identity import open_key
from swarm.types import Manifest, Release

LISTEN = 5.0
# Seconds that an observer listens before it reports: two heartbeats of every peer.
LEAVE_PATIENCE = 20.0


def status(folder: Path | None, word: str | None, watch: bool, as_json: bool) -> int:
    """What the run on this machine is doing, from its journals; with an invite, what a swarm elsewhere is doing."""
    if word is not None:
        return _observe(word, folder, watch, as_json)
    assert folder is not None
    run = runfolder.read(folder)
    if run is None:
        raise WrongUsage(f"{folder} is no run folder: `swarm start` and `swarm join` make one")
    state = State(from_run_dict(run.spec.run))
    seed = folder / "peers" / "seed" / "journal.jsonl"
    tails = [Tail(seed)] if seed.exists() else [Tail(path) for path in sorted(folder.glob("peers/*/journal.jsonl"))]

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
            time.sleep(0.5)
            read()


def _show(state: State, as_json: bool) -> None:
    now = time.time()
    if as_json:
        print(json.dumps(state.view(now)))
    else:
        console = Console()
        console.print(render(state, now, console.width))


def _observe(word: str, folder: Path | None, watch: bool, as_json: bool) -> int:
    """Join as an observer and fold what is heard: for LISTEN seconds, or until a signal."""
    from peers import launch

    state = State()
    screen = Live(console=Console(), refresh_per_second=4) if watch else None

    def heard(event: Event, run: Run) -> None:
        state.run = run
        fold(state, event)
        if screen is not None:
            screen.update(render(state, time.time(), screen.console.width))

    with screen or nullcontext():
        code = launch.observe(word, folder, heard, None if watch else LISTEN)
    _show(state, as_json)
    return code


def leave(folder: Path) -> int:
    """Ask the peers of this folder to finish and leave; wait until they have."""
    peers = runfolder.running(folder)
    if not peers:
        print(f"no peer of {folder} is running", file=sys.stderr)
        return 0
    # `swarm up` looks after its children: asked to leave, it asks them.
    asked = {"up": peers["up"]} if "up" in peers else peers
    for pid in asked.values():
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + LEAVE_PATIENCE
    while (left := runfolder.running(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        names = ", ".join(f"{name} (process {pid})" for name, pid in left.items())
        raise CannotHere(f"{names} did not leave within {LEAVE_PATIENCE:.0f} s: end them with `kill -9`")
    print(f"left: {', '.join(peers)}", file=sys.stderr)
    return 0


def export(folder: Path, target: Path) -> int:
    """Write the newest policy that this machine holds as a Hugging Face folder."""
    from swarm.learn.model import load_policy, load_tokenizer

    run = runfolder.read(folder)
    if run is None:
        raise WrongUsage(f"{folder} is no run folder: `swarm start` and `swarm join` make one")
    if target.exists() and any(target.iterdir()) and not (target / "config.json").exists():
        raise WrongUsage(f"{target} is not empty and not a model folder: name another one")
    version, weights = newest_weights(folder, run)
    policy = load_policy(run.model, data=weights)
    policy.save_pretrained(target)
    load_tokenizer(run.model).save_pretrained(target)
    print(target)
    print(
        f"version {version} of run {run.digest[:12]}: AutoModelForCausalLM.from_pretrained({str(target)!r}) loads it",
        file=sys.stderr,
    )
    return 0


def newest_weights(folder: Path, run: RunFolder) -> tuple[int, bytes]:
    """(version, bytes) of the newest release that a seed of this machine keeps, or of version 0. Raises Refusal."""
    seed = folder / "peers" / "seed"
    if (seed / "newest").exists():
        frames = Frames(run.digest, open_key(seed / "key"), None, bool(run.spec.run["private"]))
        opened = frames.open((seed / "newest").read_bytes())
        release = wire.decode(opened.body, Release)
        manifest = wire.decode((seed / "blobs" / release.manifest).read_bytes(), Manifest)
        weights = b"".join((seed / "blobs" / chunk).read_bytes() for chunk in manifest.chunks)
        if hashlib.sha256(weights).hexdigest() != release.weights:
            raise CannotHere(
                f"release {release.version} in {seed} is damaged: wait for the next one, or copy it from another machine"
            )
        return release.version, weights
    if (folder / "genesis").exists():
        return 0, (folder / "genesis").read_bytes()
    raise Refusal(f"{folder} holds no release: only the machine that started the run keeps them; export there")
