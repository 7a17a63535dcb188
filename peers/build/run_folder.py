"""The run folder: everything that a run keeps on one machine.

    spec            the Spec as bytes; its sha256 is the run's digest
    spec.copy       the same with a checksum: it shows whether the first is damaged, and replaces it
    owner.key       signs memberships; only where the run was started
    model/          config.json and tokenizer files; model.safetensors, a local model's weights, where
                    adapters on it are trained or a KL term is against it; start.adapter, likewise
    task/           local data and reward code, where the task has any
    cache/          what `datasets` makes of the data to read it fast; can be deleted
    genesis         version 0 as a release's bytes; only where the run was started
    sources         digests of the files from which the run was made; only there, too
    invites/<role>  the last start's invites, or those by which this folder was invited
    invites/made    those that `swarm invite` made here
    peers/<name>/   one folder a peer: key, journal.jsonl, log, blobs/, releases/, checkpoint/, pid, ...
    page            address of the dashboard while one is served here
    revoked         peers and invites that the run's owner has revoked
    revoked.lock    held by the writer of that list, and of the keys that belong to it
    keys            of a private run, mode 0600: its frames are encrypted with them
    used            peers that took a use of an invite with a number of them; only where owner.key is
    pause           until when its peers are paused
    fetching        lock of the process that fetches the run's files into it
    tracked/        files of an experiment tracker

A folder belongs to one run: opening it with another `[run]` is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import platformdirs

from peers.errors import CannotHere, Refusal, WrongUsage, say
from peers.runtime.membership import revocations, run_keys
from peers.runtime.membership.run_keys import RunKeys
from peers.runtime.peer_folder import RELEASES, PeerFolder
from peers.runtime.watching.narration import LOG
from swarm.core.membership import Trust, needs_membership
from swarm.core.revocation import Revocations
from swarm.frames import wire
from swarm.frames.grammar import an
from swarm.frames.run_types import Membership, RevocationList, Spec
from swarm.membership import invite as invites
from swarm.membership.identity import DamagedKey, Keyring, open_key, verify
from swarm.membership.invite import Delegate, InviteError
from swarm.protocol import Role
from swarm.settings.config import Run
from swarm.settings.loading import from_run_dict
from swarm.storage import durable, record_log
from swarm.storage.blocks import Blocks
from swarm.storage.durable import DRAFT, Torn, read_checked, write_checked, write_durably
from swarm.types import Digest

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
"""File of the weights that a run starts from, where they are an adapter's base or the reference of a KL term;
joining peers fetch it, too, unless the model is on the Hub."""

START = "start.adapter"
"""File of version 0 of a run that starts from an existing adapter, where a KL term is against it: a release's
bytes."""

STARTS = (BASE, START)

SPEC, COPY = "spec", "spec.copy"
"""Files of the specification: without it a machine that started a run cannot go on with it."""

FETCHING, TRACKED, SOURCES = "fetching", "tracked", "sources"
"""Lock of the process that fetches the run's files; folder of an experiment tracker; digests of the files
from which the run was made."""

FILES = (
    *(SPEC, COPY, "model", "task", "cache", "genesis", "invites", "peers", "page", "pause", "used", "keys"),
    *("revoked", revocations.LOCK, "config.toml", "peer.toml", "logs", FETCHING, TRACKED, SOURCES),
)
"""Files that a run writes into its folder, beside its owner's key and the model that `swarm up` exports; a
folder given with --folder may hold other files."""

LONGER = (
    ". Its peers agreed on where it ends; to train its model longer, `swarm export ./trained --folder {path}`"
    " and begin a new run with `--set run.model.name=./trained --folder OTHER`"
)
"""Advice to a user who sets another end of a run: `stop` is part of its digest, as all of [run]."""

KEY = "key"
"""File in a peer's folder."""

OWNER_KEY, EXPORTED = "owner.key", "exported"

OTHERS = 0o077
"""Permissions of other users than a folder's."""

TASK = "task/"
"""Prefix that distinguishes task files' names from model files'."""


@dataclass(frozen=True)
class RunFolder:
    path: Path
    spec: Spec
    digest: Digest
    trusted: bool = False
    """Whether code that the run names or brings is this user's own: only `swarm up` sets it (`as_owners`),
    never a file of the folder, which may have been sent."""

    def as_owners(self) -> RunFolder:
        """The same, trusted: for the user that started the run here. Raises the same errors as `owner`."""
        self.owner()
        return replace(self, trusted=True)

    @property
    def model(self) -> Path:
        return self.path / "model"

    def files(self) -> Iterator[tuple[str, Path]]:
        """(name in requests, path) of every file that peers fetch."""
        for name in self.spec.files:
            yield name, self.model / name
        for name in self.spec.task:
            yield TASK + name, self.path / "task" / name

    def expected(self, name: str) -> tuple[Digest, int]:
        """Digest and bytes of such a file; -1 bytes where the Spec has none."""
        task, size = name.removeprefix(TASK), self.spec.sizes.get(name, -1)
        return (self.spec.task[task] if name.startswith(TASK) else self.spec.files[name]), size

    def genesis(self) -> bytes | None:
        """Version 0, on the machine that started the run; else None. Raises CannotHere when its bytes are not
        those that the run began with."""
        path = self.path / "genesis"
        if not path.exists():
            return None
        size = path.stat().st_size
        content = path.read_bytes() if size == self.spec.release_size else b""
        if not content or Blocks.of(content).root != self.spec.genesis:
            raise CannotHere(
                f"{path} is damaged: its {size} bytes are not those that the run began with; bring the file"
                " back from a copy, or go on from a later release: any peer that holds one serves it"
            )
        return content

    def peer_folder(self, name: str) -> PeerFolder:
        return PeerFolder(self.path / "peers" / name)

    def owner(self) -> Keyring:
        """The owner's key. Raises Refusal on a machine that only joined the run, CannotHere for another
        key."""
        path = self.path / OWNER_KEY
        if not path.exists():
            raise Refusal(f"{self.path} has no owner.key: only the machine that started the run has it")
        try:
            owner, why = open_key(path), f"{path} is the key of another run's owner"
        except DamagedKey as error:
            owner, why = None, str(error)
        if owner is None or owner.public.hex() != self.spec.owner:
            raise CannotHere(
                f"{why}: bring the file back from a copy. Peers of the run continue, and none can be invited"
                " without it: a new key would be another owner's"
            )
        return owner

    @cached_property
    def settings(self) -> Run:
        """The run's, as far as this program knows them (swarm.settings.loading). Raises ConfigError."""
        return from_run_dict(self.spec.run)

    @property
    def name(self) -> str:
        return self.settings.name

    def invite(
        self, role: Role, addresses: Sequence[str], seconds: float | None = None, uses: int = 0
    ) -> str:
        """Make an invite to `role`, as text. Raises Refusal when this folder may not.

        An observer's makes members in a public run too, where this folder may: mirrors are members. An invite
        that makes members expires after invites.LIFETIME, or with the delegation that this folder was given,
        and memberships that it gave are renewed; with `seconds` both the invite and its memberships end then,
        which needs the owner's key. An invite for strangers expires only when `seconds` is given. With `uses`
        it admits so many peers (peers.runtime.membership.invite_quota).
        """
        if not needs_membership(role, self.settings.private) and not self._observer_member(role):
            if uses:
                raise Refusal(f"{an(role.value)} of a public run needs no membership: leave --uses out")
            expires = invites.FOREVER if seconds is None else int(time.time() + seconds)
            return invites.make(self.digest, addresses[: invites.ADDRESSES], role, expires)
        delegate = self._delegate(role, seconds, uses)
        until = delegate.delegation.expires
        return invites.make(self.digest, addresses[: invites.ADDRESSES], role, until, delegate)

    def _observer_member(self, role: Role) -> bool:
        return role is Role.OBSERVER and (self.is_owners or self.given(role) is not None)

    def _delegate(self, role: Role, seconds: float | None, uses: int = 0) -> Delegate:
        if self.is_owners:
            lasts = invites.LIFETIME if seconds is None else seconds
            return invites.delegate(
                self.owner(), self.name, role, int(time.time() + lasts), seconds is not None, uses
            )
        if seconds is not None or uses:
            raise Refusal(f"{self.path} has no owner.key, which --expires and --uses need")
        if (given := self.given(role)) is None:
            raise Refusal(
                f"{self.path} has neither the run's owner.key nor an invite for {role.value}s: ask"
                f" the owner, or a peer invited as one, for an invite (`swarm invite --role {role.value}`)"
                f" and keep it here with `swarm invite --renew INVITE --folder {self.path}`; then this folder"
                " makes such invites too"
            )
        return given

    def given(self, role: Role) -> Delegate | None:
        """The permission to make members of this role that came with an invite which this folder keeps; None
        when there is none that still holds."""
        with contextlib.suppress(OSError, ValueError, InviteError):
            kept = invites.read(self.invite_path(role).read_text(), time.time())
            mine = kept.delegate if kept.role is role and kept.run == self.digest else None
            if mine is not None and not self.revocations.has_invite(mine.delegation.key):
                return mine
        return None

    @property
    def revocations(self) -> Revocations:
        """The revocations of the run's owner, as far as this folder's peers know; none where the list is
        damaged, since peers then ask others for it."""
        return self.trust.revocations

    @property
    def trust(self) -> Trust:
        """The peers that the run's owner authorises, as far as this folder's peers know now."""
        found = Trust(self.name, bytes.fromhex(self.spec.owner), self.settings.private, verify)
        found.revocations.list = RevocationList(number=0, keys=self.spec.keys)
        with contextlib.suppress(OSError, wire.WireError):
            found.revocations.take(revocations.kept(self.path))
        return found

    def keys(self) -> RunKeys | None:
        """Of a private run, as far as this folder has them; None of a public one. Raises OSError."""
        if not self.settings.private:
            return None
        newest = self.revocations.list
        return RunKeys(run_keys.named(run_keys.kept(self.path), newest.number, newest.keys, self.spec.keys))

    @property
    def is_owners(self) -> bool:
        """Whether a file says that the run was started here: it grants nothing, `owner` checks the key."""
        return (self.path / OWNER_KEY).exists()

    def invite_path(self, role: Role) -> Path:
        """File of an invite: of the last start here, or the one by which this folder was invited. With a
        permission to make members in it, this folder makes some too."""
        return self.path / "invites" / role.value

    def member(self, keyring: Keyring, role: Role) -> Membership:
        """A membership for a peer of this folder, by the owner's key or a permission that came with an
        invite. Raises Refusal."""
        return invites.admit(self._delegate(role, None), keyring.me)


STRANGE = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Kinds of directory entries that are neither a file nor a folder of files."""


SETTINGS, SMALL, LARGE = 1 << 20, 64 << 20, 256 << 20
"""Bytes at most of a TOML file or of code, of which each takes many to be read; of what else is read at once;
of data that a run carries, and of a segment of records."""

UNBOUNDED = ("genesis", "cache", "logs", EXPORTED, TRACKED)
"""Entries that are not read at once, or only where their size is that of the run's releases."""


def check_files(path: Path, most: float = math.inf) -> Path:
    """Check a run folder, or a file of at most `most` bytes, before anything of it is opened: it may have
    been sent. Raises CannotHere where an entry of a run is no regular file, is a link out of the folder, or
    is larger than any run's: opening one may block for ever, reading one may exhaust memory, and writing to
    one may change files elsewhere."""
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        _check_file(root, root, most)
        return path
    for top in (*FILES, OWNER_KEY, EXPORTED):
        for name in (top, top + DRAFT):
            _check_file(os.path.join(root, name), root, _most(top, ""))
            for folder, folders, files in os.walk(os.path.join(root, name)):
                below = os.path.relpath(folder, os.path.join(root, name))
                for one in (*folders, *files):
                    _check_file(os.path.join(folder, one), root, _most(top, os.path.join(below, one)))
    return path


def _most(top: str, below: str) -> float:
    """Bytes at most of a file in a run's folder: `below` is its way from `top`. In the folders of peers the
    sizes follow from the model's, but for announcements of releases and logs of records; a journal is read
    line by line."""
    name, inside = os.path.basename(below) or top, os.path.normpath(below).split(os.sep)
    if top in UNBOUNDED or (top == "model" and name in STARTS):
        return math.inf
    if top == "peers":
        if len(inside) > 2 and inside[1] != RELEASES:
            return LARGE if name.endswith(record_log.SUFFIX) else math.inf
        return math.inf if name.endswith(".jsonl") or name.startswith(LOG) else SMALL
    if name.endswith((".toml", ".py")):
        return SETTINGS
    return LARGE if top == "task" else SMALL


def _check_file(path: str, root: str, most: float) -> None:
    what = ""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            to = os.path.realpath(path)
            if to != root and not to.startswith(root + os.sep):
                what = f"a link to {to}, outside of the folder"
            elif os.path.islink(to):  # it leads round in a circle
                what = "a link to itself"
            else:
                found = os.stat(path)  # opening a link opens its target
    except FileNotFoundError:  # a peer that runs here has removed it
        return
    if what := what or STRANGE.get(stat.S_IFMT(found.st_mode), ""):
        raise CannotHere(f"{path} is {what}, where a run has files of its own alone: remove it")
    if stat.S_ISREG(found.st_mode) and found.st_size > most:
        raise CannotHere(
            f"{path} has {found.st_size / 1e6:,.0f} MB, and a run's has {most / 1e6:.0f} at most: bring it"
            " back from a copy, or remove it"
        )


def file_digest(file: Path) -> Digest:
    """Of the file's bytes. Raises OSError."""
    with open(file, "rb") as content:
        return Digest(hashlib.file_digest(content, "sha256").hexdigest())


def make_folder(path: Path) -> Path:
    """Make a folder unless it exists, and return it. Raises CannotHere or OSError."""
    try:
        durable.make_folder(path)
    except FileNotFoundError as error:
        why = f"{path} cannot be made ({error.filename}: {error.strerror})"
        raise CannotHere(f"{why}: name another folder with --folder") from error
    return path


def close(path: Path) -> int:
    """Keep other users of this machine out of a run's folder, which may not exist yet, and out of all files
    that this process and its children write from now on. A key that others could read keeps its mode: its
    reader refuses it. Returns the previous umask."""
    before = os.umask(OTHERS)
    if path.is_dir():
        _close(path.resolve())
        for top in (path / name for name in (*FILES, EXPORTED)):
            _close(top)
            for at, folders, files in () if top.is_symlink() else os.walk(top):
                for name in (*folders, *files):
                    _close(Path(at, name))
    return before


def _close(path: Path) -> None:
    """Remove all rights of others to this file or folder; the target of a link does not belong to the run."""
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode) and path.name != KEY:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except FileNotFoundError:  # or another peer of this folder removes it meanwhile
        pass
    except PermissionError as error:  # another user's file, or a file system that keeps no permissions
        say(f"other users of this machine may read {path}: its mode cannot be changed ({error.strerror})")


def close_unless_public(path: Path) -> int:
    """Close a folder whose run is private, or not known to be public. Returns the previous umask."""
    with contextlib.suppress(DamagedSpec):  # it is fetched again
        if (run := read(path)) is not None and not run.settings.private:
            os.umask(before := os.umask(OTHERS))
            return before
    return close(path)


def open_if_public(run: RunFolder, umask: int) -> None:
    """Let other users read files that are written from now on, as far as `umask` allows, unless the run is
    private."""
    if not run.settings.private:
        os.umask(umask)


def default_path(name: str) -> Path:
    return platformdirs.user_state_path("swarm") / "runs" / name


def digest_of(spec: bytes) -> Digest:
    return Digest(hashlib.sha256(spec).hexdigest())


class DamagedSpec(CannotHere):
    """A run folder has a specification, but every copy of it is damaged."""


def read(path: Path) -> RunFolder | None:
    """The run of this folder, if it has one. Raises DamagedSpec."""
    content = spec_content(path)
    return None if content is None else _of(path, content)


def opened(folder: Path) -> RunFolder:
    """The run of a folder that has to have one. Raises WrongUsage, DamagedSpec."""
    run = read(folder)
    if run is None:
        raise no_run(folder)
    return run


def no_run(folder: Path) -> WrongUsage:
    """The error about a folder that has to have a run and has none, or is not there."""
    return WrongUsage(f"{folder} is not a run folder: `swarm start` and `swarm join` make one")


def _of(path: Path, content: bytes) -> RunFolder:
    return RunFolder(path, wire.decode(content, Spec), digest_of(content))


def spec_content(path: Path) -> bytes | None:
    """The bytes of this folder's specification, if it has one. Raises DamagedSpec."""
    wrong = []
    for name in (COPY, SPEC):  # the copy first: its checksum shows that it is intact
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
    with contextlib.suppress(DamagedSpec):  # `_write_spec` reports it
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
    from peers.build.model import base_model

    here = _of(path, content)
    asked, begun = base_model.pinned_as(run, here.settings), here.settings
    if asked != begun:
        changed = sorted(
            name for name in Run.__struct_fields__ if getattr(asked, name) != getattr(begun, name)
        )
        raise Refusal(
            f"{path} holds a run with other settings ({', '.join(changed)}): restore them, or name another"
            f" folder with --folder{LONGER.format(path=path) if changed == ['stop'] else ''}"
        )
    return keep_spec(path, content)
