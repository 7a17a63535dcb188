"""The run folder: all that a run keeps on one machine.

    spec            the Spec as bytes; its sha256 is the run's digest
    owner.key       signs memberships; only where the run was started
    model/          config.json and tokenizer files; model.safetensors, the base's weights, where adapters of
                    a local model are trained
    task/           local data and reward code, where the task has any
    cache/          what `datasets` makes of the data to read it fast; can be deleted
    genesis         version 0 as a release's bytes; only where the run was started
    invites/<role>  ready-made words
    peers/<name>/   one folder a peer: key, journal.jsonl, blobs/, releases/, checkpoint/, membership, pid
    page            address of the page while one is served here

A folder belongs to one run for ever: opening it with another `[run]` is refused.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from peers.errors import CannotHere, Refusal
from peers.runtime.peer_folder import MEMBERSHIP, PeerFolder, membership
from swarm import PROTOCOL, wire
from swarm import invite as invites
from swarm.blocks import Blocks
from swarm.config import Run
from swarm.config_loading import run_dict
from swarm.core.membership import needs_membership
from swarm.durable import sync, write_durably
from swarm.identity import Keyring, open_key
from swarm.invite import Invite, InviteError, InviteProblem
from swarm.protocol import Role
from swarm.tasks import catalog as tasks
from swarm.tasks import files as task_files
from swarm.types import Digest, Membership, Spec, Task

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
)
"""Files of a Hugging Face folder that travel to joiners; trained weights travel as releases."""

BASE = "model.safetensors"
"""File of the weights below an adapter; it travels too where no Hub has them."""

TASK = "task/"
"""Prefix of task files' names beside the model's."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    spec: Spec
    digest: Digest

    @property
    def model(self) -> Path:
        return self.path / "model"

    def genesis(self) -> bytes | None:
        """Version 0, where the run was started. Raises CannotHere when its bytes are not those that the run
        began with."""
        path = self.path / "genesis"
        if not path.exists():
            return None
        content = path.read_bytes()
        if not content or Blocks.of(content).root != self.spec.genesis:
            raise CannotHere(
                f"{path} is damaged: its {len(content)} bytes are not those that the run began with; bring"
                " the file back from a copy, or go on from a later release: whoever holds one serves it"
            )
        return content

    def peer_folder(self, name: str) -> PeerFolder:
        return PeerFolder(self.path / "peers" / name)

    def owner(self) -> Keyring:
        """The owner's key. Raises Refusal where the run was only joined."""
        if not (self.path / "owner.key").exists():
            raise Refusal(f"{self.path} has no owner.key: only the machine that started the run can invite")
        return open_key(self.path / "owner.key")

    @property
    def name(self) -> str:
        return str(self.spec.run["name"])

    def invite(self, role: Role, addresses: Sequence[str], seconds: float | None = None) -> str:
        """Make an invite's word that admits to `role`.

        One that makes members ends after invites.LIFE, and who is a member by then is renewed; with `seconds`
        both word and memberships end then. A stranger's word ends only where `seconds` says so.
        """
        makes_members = needs_membership(role, bool(self.spec.run["private"]))
        lasts = seconds if seconds is not None else invites.LIFE if makes_members else None
        expires = int(time.time() + lasts) if lasts is not None else invites.FOREVER
        delegate = (
            invites.delegate(self.owner(), self.name, role, expires, seconds is not None)
            if makes_members
            else None
        )
        return invites.make(self.digest, addresses[: invites.ADDRESSES], role, expires, delegate)

    def word(self, role: Role) -> Path:
        """Path of the word of the last start, for `swarm up` and `swarm invite`."""
        return self.path / "invites" / role.value

    def member(self, keyring: Keyring, role: Role) -> Membership:
        """A membership for a peer on the owner's own machine."""
        return invites.admit(
            invites.delegate(self.owner(), self.name, role, int(time.time() + invites.LIFE)), keyring.me
        )


def invite(path: Path, role: Role, seconds: float | None = None) -> str:
    """`swarm invite`: a fresh word, to the addresses at which the run was last started here. Raises Refusal
    when it was not."""
    run = read(path)
    if run is None or not (kept := run.word(role)).exists():
        raise Refusal(
            f"{path} has no invite for a {role.value}: start the run first, with `swarm start` or `swarm up`"
        )
    return run.invite(role, invites.read(kept.read_text(), 0.0).addresses, seconds)


def entry(word: str, path: Path | None, now: float) -> Invite:
    """The invite of a peer that joins, or comes back to its run folder: there the word may have ended, a
    renewed membership not.

    `path` is None for the folder that this machine keeps the invite's run in. Raises InviteError.
    """
    try:
        return invites.read(word, now)
    except InviteError as error:
        if error.kind is not InviteProblem.EXPIRED:
            raise
        invite = invites.read(word, 0.0)
        kept = (
            membership(file.parent)
            for file in (path or default_path(invite.run[:12])).glob(f"peers/*/{MEMBERSHIP}")
        )
        if not any(one is not None and now <= one.delegation.expires for one in kept):
            raise
        return invite


def prepared(path: Path) -> Path:
    """The folder, made where it is missing. Raises CannotHere, or OSError, before anything slow has begun."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        why = f"{path} cannot be made ({error.filename}: {error.strerror})"
        raise CannotHere(f"{why}: name another folder with --folder") from error
    return path


def default_path(name: str) -> Path:
    return platformdirs.user_state_path("swarm") / "runs" / name


def digest_of(spec: bytes) -> Digest:
    return Digest(hashlib.sha256(spec).hexdigest())


def read(path: Path) -> RunFolder | None:
    """The run that lives in this folder, if one does. Raises CannotHere when its spec is damaged."""
    if not (path / "spec").exists():
        return None
    content = (path / "spec").read_bytes()
    try:
        return RunFolder(path, wire.decode(content, Spec), digest_of(content))
    except wire.WireError as error:
        raise CannotHere(
            f"{path / 'spec'} is damaged ({error}): move the folder away and start or join again"
        ) from error


def keep(path: Path, content: bytes) -> RunFolder:
    """Make `path` the folder of the run whose spec this is. Raises Refusal when it belongs to another run."""
    here = read(path)
    digest = digest_of(content)
    if here is not None and here.digest != digest:
        raise Refusal(
            f"{path} belongs to run {here.digest[:12]}, not to {digest[:12]}: name another folder with"
            " --folder"
        )
    if here is None:
        write_durably(path / "spec", content)
    return RunFolder(path, wire.decode(content, Spec), digest)


def opened(path: Path, run: Run) -> RunFolder | None:
    """The run that was started here with these settings, if one was. What was pinned then stays as it is.

    Raises Refusal when the folder belongs to a run with other settings.
    """
    here = read(path)
    if here is None:
        return None
    # Through msgpack tuples become lists, as in a Spec.
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(run_dict(run)))
    settings = _pinned_as(travelled, here.spec.run)
    if here.spec.run != settings:
        changed = ", ".join(sorted(name for name in settings if here.spec.run.get(name) != settings[name]))
        raise Refusal(
            f"{path} holds a run with other settings ({changed}): restore them, or name another folder with"
            " --folder"
        )
    return here


def create(path: Path, run: Run, policy: Path) -> RunFolder:
    """The folder of a run started here, from its config (revisions pinned) and a policy folder with version
    0.

    Raises ModelError or TaskError when model, task and template do not fit together, OSError when the disk
    refuses.
    """
    from peers.build import base_model
    from swarm.learn import tokenization

    render = tokenization.load(policy, run.model.template, run.task.system).render
    owner = open_key(path / "owner.key")
    copy_files(policy, path / "model")
    if run.model.training != "full" and not base_model.from_hub(run):
        from swarm.learn.model import write_base

        write_base(policy, path / "model" / BASE)
        sync(path / "model" / BASE)
    task_files.pack(run.task, path / "task")
    for name in _names(path / "task"):
        sync(path / "task" / name)
    _try_first(run, path / "task", render)
    genesis = genesis_of(policy, run)
    write_durably(path / "genesis", genesis)
    files, carried = (
        digests(path / "model", (*MODEL_FILES, BASE)),
        digests(path / "task", _names(path / "task")),
    )
    sizes = {name: (path / "model" / name).stat().st_size for name in files}
    sizes |= {TASK + name: (path / "task" / name).stat().st_size for name in carried}
    spec = Spec(
        protocol=PROTOCOL,
        run=run_dict(run),
        owner=owner.public.hex(),
        files=files,
        task=carried,
        sizes=sizes,
        genesis=Blocks.of(genesis).root,
    )
    return keep(path, wire.encode(spec))


def copy_files(policy: Path, target: Path) -> None:
    """Copy a policy's files without its weights."""
    target.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        if (policy / name).exists():
            write_durably(target / name, (policy / name).read_bytes())


def genesis_of(policy: Path, run: Run) -> bytes:
    """Version 0 as a release: the policy's weights, or the first adapter. Raises ModelError."""
    from swarm.learn import adapters, model, pretrained, weights

    # The embedded policy's file is a release already: this saves the seconds of importing its architecture.
    if run.model.name == "embedded":
        return (policy / "model.safetensors").read_bytes()
    if not any(policy.glob("*.safetensors")):
        raise pretrained.ModelError(model.no_weights(policy))
    if run.model.training != "full":
        return adapters.genesis(policy, run.lora, run.seed)
    return weights.release_bytes(model.load_policy(policy, dtype="bfloat16"))


def digests(folder: Path, names: Sequence[str]) -> dict[str, Digest]:
    """Name -> sha256 of those of these files that exist."""
    found = {}
    for name in names:
        if (folder / name).exists():
            with open(folder / name, "rb") as file:
                found[name] = Digest(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _try_first(run: Run, folder: Path, render: Callable[[Task], str]) -> None:
    """Write the first task as the model reads it: a run whose model and tasks do not fit is not begun."""
    source = tasks.source(run.task, run.seed, folder=folder if folder.is_dir() else None)
    try:
        render(source.task(0))
    finally:
        source.close()


def _pinned_as(settings: dict[str, object], here: Mapping[str, object]) -> dict[str, object]:
    """Settings with the revisions and the learning rate that the run here was pinned to, where they name none
    themselves."""
    model, task, optimizer = (dict(settings[name]) for name in ("model", "task", "optimizer"))  # type: ignore[call-overload]
    my_model, my_task, my_optimizer = (dict(here[name]) for name in ("model", "task", "optimizer"))  # type: ignore[call-overload]
    if model["name"] == my_model["name"] and not _commit(model["revision"]):
        model["revision"] = my_model["revision"]
    if (
        task["name"] == my_task["name"]
        and "revision" in my_task["options"]
        and not _commit(task["options"].get("revision", ""))
    ):
        task["options"] = dict(
            sorted({**task["options"], "revision": my_task["options"]["revision"]}.items())
        )
    optimizer["lr"] = optimizer["lr"] or my_optimizer["lr"]
    return settings | {"model": model, "task": task, "optimizer": optimizer}


def _commit(revision: str) -> bool:
    return re.fullmatch("[0-9a-f]{40}", revision) is not None
