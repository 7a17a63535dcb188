"""The run folder: all that a run keeps on one machine.

    spec            the Spec as bytes; its sha256 is the run's digest
    owner.key       signs memberships; only where the run was started
    model/          config.json and tokenizer files
    genesis         version 0 as a release's bytes; only where the run was started
    invites/<role>  ready-made words
    peers/<name>/   one folder a peer: key, journal.jsonl, blobs/, checkpoint/, newest, pid
    page            address of the page while one is served here

A folder belongs to one run for ever: opening it with another `[run]` is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from peers.errors import CannotHere, Refusal
from swarm import PROTOCOL, wire
from swarm import invite as invites
from swarm.config import Run, run_dict
from swarm.core.trust import needs_membership
from swarm.durable import write_durably
from swarm.identity import Keyring, open_key
from swarm.types import Digest, Membership, Role, Spec

INVITE_DAYS = 30
MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
               "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")  # fmt: skip
"""What of a Hugging Face folder travels to joiners; weights travel as releases."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    spec: Spec
    digest: Digest

    @property
    def model(self) -> Path:
        return self.path / "model"

    def corner(self, name: str) -> Corner:
        return Corner(self.path / "peers" / name)

    def owner(self) -> Keyring:
        """The owner's key. Raises Refusal where the run was only joined."""
        if not (self.path / "owner.key").exists():
            raise Refusal(f"{self.path} has no owner.key: only the machine that started the run can invite")
        return open_key(self.path / "owner.key")

    def invite(self, role: Role, addresses: Sequence[str]) -> str:
        """A word that admits to `role` for INVITE_DAYS; kept beside the run for `swarm invite`."""
        expires = int(time.time()) + INVITE_DAYS * 86400
        name, private = str(self.spec.run["name"]), bool(self.spec.run["private"])
        delegate = invites.delegate(self.owner(), name, role, expires) if needs_membership(role, private) else None
        word = invites.make(self.digest, addresses[: invites.ADDRESSES], role, expires, delegate)
        write_durably(self.path / "invites" / role.value, word.encode())
        return word

    def member(self, keyring: Keyring, role: Role) -> Membership:
        """A membership for a peer on the owner's own machine."""
        delegate = invites.delegate(self.owner(), str(self.spec.run["name"]), role, int(time.time()) + INVITE_DAYS * 86400)
        return invites.admit(delegate, keyring.me)


def invite(path: Path, role: Role) -> str:
    """`swarm invite`: the word that was made when the run was started here. Raises Refusal when there is none."""
    word = path / "invites" / role.value
    if not word.exists():
        raise Refusal(f"{path} has no invite for a {role.value}: start the run first, with `swarm start` or `swarm up`")
    return word.read_text()


class Corner:
    """A peer's own folder, held by one process at a time: `with corner:` locks it and leaves the pid for others to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "pid", os.O_RDWR | os.O_CREAT, 0o644)
        self._taken = False

    def take(self) -> bool:
        """False when another process has it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._taken = True
        return True

    def __enter__(self) -> Corner:
        if not self._taken and not self.take():
            owner = (self.path / "pid").read_text()
            raise CannotHere(f"{self.path} is in use by process {owner}: `swarm leave` stops it, --folder names another")
        return self

    def __exit__(self, *exit: object) -> None:
        self.release()

    def release(self) -> None:
        # The kernel frees the lock when the process is killed; forked children share it, hence the explicit unlock.
        os.ftruncate(self._lock, 0)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        os.close(self._lock)


def free_corner(path: Path, role: Role) -> Corner:
    """The first corner `<role>-<n>` that nobody uses: a peer that comes back is who it was."""
    for number in itertools.count(1):
        corner = Corner(path / "peers" / f"{role.value}-{number}")
        if corner.take():
            return corner
        corner.close()
    raise AssertionError("unreachable: there is always a next number")


def running(path: Path) -> dict[str, int]:
    """Peers of this folder that run now: corner name -> pid."""
    found = {}
    for file in sorted(path.glob("peers/*/pid")):
        with open(file, "rb+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found[file.parent.name] = int(lock.read() or b"0")
    return found


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
        raise CannotHere(f"{path / 'spec'} is damaged ({error}): move the folder away and start or join again") from error


def keep(path: Path, content: bytes) -> RunFolder:
    """Make `path` the folder of the run whose spec this is. Raises Refusal when it belongs to another run."""
    here = read(path)
    digest = digest_of(content)
    if here is not None and here.digest != digest:
        raise Refusal(f"{path} belongs to run {here.digest[:12]}, not to {digest[:12]}: name another folder with --folder")
    if here is None:
        write_durably(path / "spec", content)
    return RunFolder(path, wire.decode(content, Spec), digest)


def create(path: Path, run: Run, policy: Path) -> RunFolder:
    """The folder of a run started here, from its config and a policy folder with version 0; or the one that is there already.

    Raises Refusal when the folder belongs to a run with other settings.
    """
    here = read(path)
    settings = run_dict(run)
    if here is not None:
        if here.spec.run != settings:
            changed = ", ".join(sorted(name for name in settings if here.spec.run.get(name) != settings[name]))
            raise Refusal(
                f"{path} holds a run with other settings ({changed}): restore them, or name another folder with --folder"
            )
        return here
    owner = open_key(path / "owner.key")
    genesis = copy_policy(policy, path / "model")
    write_durably(path / "genesis", genesis)
    spec = Spec(
        protocol=PROTOCOL, run=settings, owner=owner.public.hex(), files=file_digests(path / "model"),
        genesis=Digest(hashlib.sha256(genesis).hexdigest()),
    )  # fmt: skip
    return keep(path, wire.encode(spec))


def copy_policy(policy: Path, target: Path) -> bytes:
    """Take a policy's files without its weights; these are returned in the form of a release."""
    from safetensors.torch import load_file

    from swarm.learn.weights import to_bytes

    target.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        if (policy / name).exists():
            shutil.copyfile(policy / name, target / name)
    state = {}
    for shard in sorted(policy.glob("*.safetensors")):
        state.update(load_file(shard))
    if not state:
        raise CannotHere(f"{policy} has no *.safetensors: save the model with save_pretrained first")
    return to_bytes(state)


def file_digests(model: Path) -> dict[str, Digest]:
    """sha256 of the files that joiners need."""
    found = (model / name for name in MODEL_FILES)
    return {path.name: Digest(hashlib.sha256(path.read_bytes()).hexdigest()) for path in found if path.exists()}
