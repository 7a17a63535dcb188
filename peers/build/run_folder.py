"""The run folder: everything that a run keeps on one machine.

    spec            the Spec as bytes; its sha256 is the run's digest
    spec.copy       the same with a checksum: it tells whether the first is damaged, and stands in for it
    owner.key       signs memberships; only where the run was started
    model/          config.json and tokenizer files; model.safetensors, the base's weights, where adapters of
                    a local model are trained
    task/           local data and reward code, where the task has any
    cache/          what `datasets` makes of the data to read it fast; can be deleted
    genesis         version 0 as a release's bytes; only where the run was started
    invites/<role>  the last start's invites, or those by which this folder was invited
    invites/made    those that `swarm invite` made here
    peers/<name>/   one folder a peer: key, journal.jsonl, log, blobs/, releases/, checkpoint/, pid, ...
    page            address of the page while one is served here
    pause           until when its peers rest, while somebody wants them to

A folder belongs to one run: opening it with another `[run]` is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import platformdirs
from msgspec.structs import replace

from peers.errors import CannotHere, Refusal, say
from peers.runtime.peer_folder import PeerFolder
from swarm import PROTOCOL, durable, wire
from swarm import invite as invites
from swarm.blocks import Blocks
from swarm.config import Run
from swarm.config_loading import from_run_dict, run_dict
from swarm.core.membership import needs_membership
from swarm.durable import Torn, copy_durably, read_checked, sync, write_checked, write_durably
from swarm.identity import DamagedKey, Keyring, open_key
from swarm.invite import Delegate, InviteError
from swarm.protocol import Role
from swarm.run_types import Membership, Spec
from swarm.tasks import catalog as tasks
from swarm.tasks import task_files
from swarm.types import Digest, Task

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
"""Files of a Hugging Face folder that joining peers fetch; trained weights are fetched as releases."""

BASE = "model.safetensors"
"""File of an adapter's base weights; joining peers fetch it, too, unless the base is on the Hub."""

SPEC, COPY = "spec", "spec.copy"
"""Files of the specification: without it a machine that started a run cannot go on with it."""

TASK = "task/"
"""Prefix that distinguishes task files' names from model files'."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    spec: Spec
    digest: Digest

    @property
    def model(self) -> Path:
        return self.path / "model"

    def genesis(self) -> bytes | None:
        """Version 0, on the machine that started the run; else None. Raises CannotHere when its bytes are not
        those that the run began with."""
        path = self.path / "genesis"
        if not path.exists():
            return None
        content = path.read_bytes()
        if not content or Blocks.of(content).root != self.spec.genesis:
            raise CannotHere(
                f"{path} is damaged: its {len(content)} bytes are not those that the run began with; bring"
                " the file back from a copy, or go on from a later release: any peer that holds one serves it"
            )
        return content

    def peer_folder(self, name: str) -> PeerFolder:
        return PeerFolder(self.path / "peers" / name)

    def owner(self) -> Keyring:
        """The owner's key. Raises Refusal on a machine that only joined the run, CannotHere for another
        key."""
        path = self.path / "owner.key"
        if not path.exists():
            raise Refusal(f"{self.path} has no owner.key: only the machine that started the run can invite")
        try:
            owner, why = open_key(path), f"{path} is the key of another run's owner"
        except DamagedKey as error:
            owner, why = None, str(error)
        if owner is None or owner.public.hex() != self.spec.owner:
            raise CannotHere(
                f"{why}: bring the file back from a copy. Peers that are in the run go on, and nobody can be"
                " invited without it: a new key would be that of another owner"
            )
        return owner

    @cached_property
    def settings(self) -> Run:
        """The run's, as far as this program knows them (swarm.config_loading). Raises ConfigError."""
        return from_run_dict(self.spec.run)

    @property
    def name(self) -> str:
        return self.settings.name

    def invite(self, role: Role, addresses: Sequence[str], seconds: float | None = None) -> str:
        """Make an invite to `role`, as text. Raises Refusal when this folder may not.

        An observer's makes members in a public run too, where this folder may: a mirror is asked first if it
        is one. One that makes members expires after invites.LIFETIME, or with the delegation that this
        folder was given, and memberships that it gave are renewed; with `seconds` both the invite and its
        memberships end then, which the owner alone can say. An invite for strangers expires only when
        `seconds` is given.
        """
        if not needs_membership(role, self.settings.private) and not self._observer_member(role):
            expires = invites.FOREVER if seconds is None else int(time.time() + seconds)
            return invites.make(self.digest, addresses[: invites.ADDRESSES], role, expires)
        delegate = self._delegate(role, seconds)
        until = delegate.delegation.expires
        return invites.make(self.digest, addresses[: invites.ADDRESSES], role, until, delegate)

    def _observer_member(self, role: Role) -> bool:
        return role is Role.OBSERVER and (self.is_owners or self.given(role) is not None)

    def _delegate(self, role: Role, seconds: float | None) -> Delegate:
        if self.is_owners:
            lasts = invites.LIFETIME if seconds is None else seconds
            return invites.delegate(
                self.owner(), self.name, role, int(time.time() + lasts), seconds is not None
            )
        if seconds is not None:
            raise Refusal(f"{self.path} has no owner.key: only with it a word can get an end of its own")
        if (given := self.given(role)) is None:
            raise Refusal(
                f"{self.path} has neither the run's owner.key nor an invite for {role.value}s: ask"
                f" the owner, or somebody who was invited so, for a word (`swarm invite --role {role.value}`)"
                f" and keep it here with `swarm invite --renew WORD --folder {self.path}`; then this folder"
                " makes such words too"
            )
        return given

    def given(self, role: Role) -> Delegate | None:
        """The permission to make members of this role that came with an invite which this folder keeps; None
        when there is none that still holds."""
        with contextlib.suppress(OSError, ValueError, InviteError):
            kept = invites.read(self.invite_path(role).read_text(), time.time())
            if kept.role is role and kept.run == self.digest:
                return kept.delegate
        return None

    @property
    def is_owners(self) -> bool:
        """Whether the run was started here."""
        return (self.path / "owner.key").exists()

    def invite_path(self, role: Role) -> Path:
        """File of an invite: of the last start here, or of whom this folder was invited by. With a
        permission to make members in it, this folder makes some too."""
        return self.path / "invites" / role.value

    def member(self, keyring: Keyring, role: Role) -> Membership:
        """A membership for a peer of this folder, by the owner's key or a permission that came with an
        invite. Raises Refusal."""
        return invites.admit(self._delegate(role, None), keyring.me)


def make_folder(path: Path) -> Path:
    """Make a folder unless it exists, and return it. Raises CannotHere or OSError."""
    try:
        durable.make_folder(path)
    except FileNotFoundError as error:
        why = f"{path} cannot be made ({error.filename}: {error.strerror})"
        raise CannotHere(f"{why}: name another folder with --folder") from error
    return path


def default_path(name: str) -> Path:
    return platformdirs.user_state_path("swarm") / "runs" / name


def digest_of(spec: bytes) -> Digest:
    return Digest(hashlib.sha256(spec).hexdigest())


class DamagedSpec(CannotHere):
    """A run folder has a specification, and no copy of it is what was written."""


def read(path: Path) -> RunFolder | None:
    """The run of this folder, if it has one. Raises DamagedSpec."""
    content = spec_content(path)
    return None if content is None else _of(path, content)


def _of(path: Path, content: bytes) -> RunFolder:
    return RunFolder(path, wire.decode(content, Spec), digest_of(content))


def spec_content(path: Path) -> bytes | None:
    """The bytes of this folder's specification, if it has one. Raises DamagedSpec."""
    wrong = []
    for name in (COPY, SPEC):  # the copy first: where it is whole it is what was written
        try:
            content = read_checked(path / name)
            wire.decode(content, Spec)
            return content
        except FileNotFoundError:
            continue
        except (Torn, wire.WireError, OSError) as error:
            wrong.append(f"{path / name} is damaged ({error})")
    if not wrong:
        return None
    raise DamagedSpec(
        f"{' and '.join(wrong)}: `swarm join` with an invite of the run fetches it again; where the run was"
        f" started bring {SPEC} back from another peer's folder"
    )


def keep_spec(path: Path, content: bytes) -> RunFolder:
    """Write a run's spec into the folder `path`, where it is not there or damaged. Raises Refusal when the
    folder belongs to another run."""
    digest, here = digest_of(content), None
    with contextlib.suppress(DamagedSpec):  # `_write_spec` tells it
        here = read(path)
    if here is not None and here.digest != digest:
        raise Refusal(
            f"{path} belongs to run {here.digest[:12]}, not to {digest[:12]}: name another folder with"
            " --folder"
        )
    try:
        _write_spec(path, content)
    except OSError as error:
        if here is None:
            raise
        say(f"{error.filename} could not be written ({error.strerror}): the other copy is used")
    return _of(path, content)


def _write_spec(path: Path, content: bytes) -> None:
    """Write what of the specification is not there or damaged. Raises OSError."""
    for name, write in ((SPEC, write_durably), (COPY, write_checked)):
        try:
            whole = read_checked(path / name) == content
        except (OSError, Torn):
            whole = False
        if not whole:
            if (path / name).exists():
                say(f"{path / name} was damaged: it is written again")
            write(path / name, content)


def existing_run(path: Path, run: Run) -> RunFolder | None:
    """The run that was started in this folder with these settings, if there is one. Its pinned revisions and
    learning rate stay.

    Raises Refusal when the folder belongs to a run with other settings.
    """
    if (content := spec_content(path)) is None:
        return None
    here = _of(path, content)
    asked, begun = _pinned_as(run, here.settings), here.settings
    if asked != begun:
        changed = ", ".join(
            sorted(name for name in Run.__struct_fields__ if getattr(asked, name) != getattr(begun, name))
        )
        raise Refusal(
            f"{path} holds a run with other settings ({changed}): restore them, or name another folder with"
            " --folder"
        )
    return keep_spec(path, content)


def create(path: Path, run: Run, policy: Path) -> RunFolder:
    """Create the folder of a new run from its pinned settings and the model folder `policy` (version 0).

    Raises ModelError or TaskError when model, task and template do not fit together, OSError for a disk
    error.
    """
    from peers.build import base_model
    from swarm.learn import tokenization

    render = tokenization.load(policy, run.model.template, run.task.system).render
    owner = open_key(path / "owner.key")
    copy_files(policy, path / "model")
    if run.model.training != "full" and not base_model.from_hub(run):
        from swarm.learn.model import write_base

        write_base(policy, path / "model" / BASE)
    task_files.pack(run.task, path / "task")
    for name in _names(path / "task"):
        sync(path / "task" / name)
        sync(path / "task")
    sync(path)
    _check_first_task(run, path / "task", render)
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
        release_size=len(genesis),
    )
    return keep_spec(path, wire.encode(spec))


def copy_files(policy: Path, target: Path) -> None:
    """Copy a model's files without its weights."""
    for name in MODEL_FILES:
        if (policy / name).exists():
            copy_durably(policy / name, target / name)


def genesis_of(policy: Path, run: Run) -> bytes:
    """Version 0 as a release's bytes: the model's weights, or a fresh adapter. Raises ModelError."""
    from swarm.learn import adapters, model, pretrained, weights

    # The embedded model's file is a release already: this saves the seconds of importing transformers.
    if run.model.name == "embedded":
        return (policy / "model.safetensors").read_bytes()
    if not any(policy.glob("*.safetensors")):
        raise pretrained.ModelError(model.no_weights(policy))
    if run.model.training != "full":
        return adapters.genesis(policy, run.lora, run.seed)
    return weights.release_bytes(model.load_policy(policy, dtype="bfloat16"))


def digests(folder: Path, names: Sequence[str]) -> dict[str, Digest]:
    """Name -> sha256, for the named files that exist."""
    found = {}
    for name in names:
        if (folder / name).exists():
            with open(folder / name, "rb") as file:
                found[name] = Digest(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _check_first_task(run: Run, folder: Path, render: Callable[[Task], str]) -> None:
    """Render the first task's prompt: a run whose model and tasks do not fit must not start."""
    source = tasks.source(run.task, run.seed, folder=folder if folder.is_dir() else None)
    try:
        render(source.task(0))
    finally:
        source.close()


def _pinned_as(run: Run, here: Run) -> Run:
    """Settings completed with the revisions and the learning rate that the run here was pinned to."""
    model, task, optimizer = run.model, run.task, run.optimizer
    if model.name == here.model.name and not _commit(model.revision):
        model = replace(model, revision=here.model.revision)
    pinned = here.task.options.get("revision")
    if task.name == here.task.name and pinned is not None and not _commit(task.options.get("revision")):
        task = replace(task, options={**task.options, "revision": pinned})
    return replace(
        run, model=model, task=task, optimizer=replace(optimizer, lr=optimizer.lr or here.optimizer.lr)
    )


def _commit(revision: object) -> bool:
    return re.fullmatch("[0-9a-f]{40}", str(revision)) is not None
