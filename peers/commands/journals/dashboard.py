"""`swarm dashboard` and `swarm replay`: serve the dashboard of a remote swarm or of a finished journal.

    invite  -> an observer (peers.build.watching) -> Observer -> page      journal -> Replay -> page

Both serve until a signal. Not handled here: the dashboard of a run on this machine, which its seed serves.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from dashboard.views import InviteView
from peers.build import run_folder, watching
from peers.build.page_server import page, public_invite
from peers.commands.journals.journals import no_journal
from peers.errors import WrongUsage, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.protocol import Role
from swarm.settings.config import Config, Run
from swarm.settings.page import Page

if TYPE_CHECKING:
    from dashboard.serve.replay import JournalReplay


def dashboard(word: str, config: Config, folder: Path | None, once: bool) -> int:
    """Join as an observer and serve the dashboard until a signal; try `once` to reach the swarm, or until
    that works. Returns an exit code."""
    from dashboard.serve import (
        app,  # noqa: F401 (slow to import: before this peer connects)
        server,  # noqa: F401 (slow to import: before this peer connects)
    )

    async def look(watched: watching.WatchedSwarm) -> None:
        say(
            f"watching run {watched.run.name} {watched.invite.run[:12]} (Ctrl-C leaves)",
        )
        async with page(watched.observer.feed, config.peer.page, _invite_shown(watched, config.peer.page)):
            await watched.leaving.wait()

    return watching.observe(word, folder, config, once, look)


def _invite_shown(watched: watching.WatchedSwarm, settings: Page) -> InviteView | None:
    """The invite that the dashboard shows; none for a private run, where this peer's own invite makes
    observers."""
    return (
        public_invite(watched.invite.run, watched.invite.addresses)
        if settings.invite and not watched.run.private
        else None
    )


def replay(path: Path, config: Config, speed: float | None) -> int:
    """Serve the dashboard of a journal until a signal: it opens on the whole run, or plays it from the
    beginning at a `speed`. Returns an exit code. Raises WrongUsage when the file is no journal."""
    source = replayed(journal_in(path), config)

    async def program(on_signal: SignalHandler) -> None:
        leaving = asyncio.Event()
        on_signal.leave = leaving.set
        async with page(source, config.peer.page, None, "" if speed is None else f"?speed={speed:g}"):
            await leaving.wait()

    return run_until_signalled(program)


def replayed(journal: Path, config: Config) -> JournalReplay:
    """A journal to play; a sentence about lines in it that are no events."""
    from dashboard.serve.replay import JournalReplay

    source = JournalReplay(journal, run_of(journal) or config.run)
    if source.span.last == 0.0:
        raise no_journal(journal, source.damage)
    if source.damage:
        say(f"swarm: {source.damage}")
    return source


def journal_in(path: Path) -> Path:
    """The journal at a path: the file itself, or one of a run's or a peer's folder. The seed's comes first,
    since a seed receives all events."""
    run_folder.check_files(path)
    if path.is_file():
        return path
    if not path.exists():
        raise WrongUsage(f"there is no {path}: name a journal, or a run's folder")
    own = [path / "peers" / Role.SEED / "journal.jsonl", path / "journal.jsonl"]
    found = [file for file in (*own, *sorted(path.glob("peers/observer-*/journal.jsonl"))) if file.is_file()]
    if not found:
        raise WrongUsage(
            f"{path} has no journal of a seed or an observer: name a file, such as a learner's journal.jsonl"
        )
    return found[0]


def run_of(journal: Path) -> Run | None:
    """The run of the folder that holds the journal as `peers/<name>/journal.jsonl`."""
    peer_folder = journal.resolve().parent
    run = run_folder.read(peer_folder.parent.parent) if peer_folder.parent.name == "peers" else None
    return run.settings if run is not None else None
