"""`swarm identity export FILE` and `import FILE`: a peer's key, or the run's owner.key, from one machine to
another, encrypted with a passphrase.

    <run folder>/peers/NAME/key, or owner.key --export--> FILE --import--> the same in another run folder

Nothing is overwritten, and an owner.key is imported only into a folder of its own run. One identity belongs
in one place at a time: of two processes with it the older one ends with 5
(peers.runtime.membership.identity_check). Not handled here: the encryption
(swarm.membership.sealed_identity).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from peers.commands.parsing import arguments
from peers.commands.parsing.parser import add_command, sentence
from peers.errors import CannotHere, WrongUsage, say

OWNER = "owner"
"""Names the run's owner.key, beside names of peers' folders."""

SHORTEST = 8
"""Letters of a passphrase: scrypt makes each guess cost half a second, and a shorter one has too few."""


def add(commands: Any) -> None:
    """Add `swarm identity`."""
    about = "move a peer's key to another machine, encrypted with a passphrase"
    outer = commands.add_parser(
        "identity",
        help=about,
        description=sentence(about),
        epilog="example: swarm identity export learner.key --peer learner-1",
    )
    outer.set_defaults(command=lambda args: outer.error("export or import?"), verbose=False)
    inner = outer.add_subparsers(title="commands", metavar="COMMAND")
    for name, command, about, example in (
        ("export", export, "write a key of this folder's run to FILE", "learner.key --peer learner-1"),
        ("import", import_, "import the key in FILE into a run folder", "learner.key --folder ./run"),
    ):
        it = add_command(inner, name, command, about, f"swarm identity {name} {example}", ("folder",))
        it.add_argument("file", metavar="FILE", type=Path, help="the encrypted key")
        who = "a peer's folder, such as learner-1, or owner for the run's owner.key"
        it.add_argument(
            "--peer", metavar="NAME", default="", help=f"{who} (default: the only one, or FILE's)"
        )
        secret = "read the passphrase from this file's first line instead of asking"
        it.add_argument("--passphrase-file", metavar="FILE", type=Path, help=secret)


def export(args: argparse.Namespace) -> int:
    """Raises WrongUsage, CannotHere, IdentityError."""
    folder = arguments.only_folder(args)
    from peers.build.joining import invitations
    from peers.runtime.peer_folder import MEMBERSHIP
    from swarm.membership import sealed_identity
    from swarm.storage.durable import write_durably

    run = invitations.run_of(folder)
    name = args.peer or _only_peer(folder)
    path = _key_path(folder, name)
    if not path.exists():
        raise WrongUsage(f"there is no {path}: --peer names {_choices(folder)}")
    _refuse_to_overwrite(args.file)
    kept = path.parent / MEMBERSHIP
    membership = kept.read_bytes() if name != OWNER and kept.exists() else b""
    identity = sealed_identity.Identity(name=name, run=run.digest, key=_checked(path), membership=membership)
    passphrase = _passphrase(args.passphrase_file, twice=True)
    write_durably(args.file, sealed_identity.sealed(identity, passphrase), mode=0o600)
    say(
        f"{args.file} holds the key of {name}; use it in one place: of two peers with one key the older one"
        " ends with 5",
    )
    return 0


def import_(args: argparse.Namespace) -> int:
    """Raises WrongUsage, CannotHere, IdentityError."""
    from peers.build import run_folder
    from peers.runtime.peer_folder import MEMBERSHIP
    from swarm.membership import sealed_identity
    from swarm.membership.identity import IdentityError, keyring_of
    from swarm.storage.durable import make_folder, write_durably

    try:
        content = run_folder.check_files(args.file, run_folder.SETTINGS).read_bytes()
    except OSError as error:
        raise CannotHere(f"{args.file} cannot be read: {error.strerror}") from error
    try:
        sealed_identity.check_head(content)  # before the passphrase is asked for
        identity = sealed_identity.opened(content, _passphrase(args.passphrase_file, twice=False))
    except IdentityError as error:
        raise IdentityError(f"{args.file} cannot be opened: {error}") from error
    folder = run_folder.check_files(args.folder or run_folder.default_path(identity.run[:12]))
    here = run_folder.read(folder) if folder.exists() else None
    if here is not None and here.digest != identity.run:
        raise WrongUsage(
            f"{folder} belongs to another run than this key, {identity.run[:12]}: name its folder"
        )
    name = args.peer or identity.name
    path, keyring = _key_path(folder, name), keyring_of(identity.key, f"the key in {args.file}")
    if OWNER in (name, identity.name) and name != identity.name:
        raise WrongUsage(f"{args.file} holds the key of {identity.name}, not of {name}: leave --peer out")
    if name == OWNER and here is None:
        at = f" --folder {folder}" * (args.folder is not None)
        raise WrongUsage(
            f"{folder} has no run yet that says whose key its owner's is, and a run that began there would be"
            f" that owner's: `swarm join WORD{at}` with an invite of the run first, then import"
        )
    if name == OWNER and here is not None and keyring.public.hex() != here.spec.owner:
        raise WrongUsage(f"the key in {args.file} is not that of the owner of run {here.digest[:12]}")
    _refuse_to_overwrite(path)
    make_folder(path.parent, 0o755 if name == OWNER else 0o700)
    write_durably(path, identity.key, mode=0o600)
    if identity.membership and name != OWNER:
        write_durably(path.parent / MEMBERSHIP, identity.membership)
    say(
        f"{path} is {keyring.me}; end the peer that had this key before this one starts",
    )
    return 0


def _key_path(folder: Path, name: str) -> Path:
    from swarm.membership.sealed_identity import NAME

    if re.fullmatch(NAME, name) is None:
        raise WrongUsage(f"{name!r} is not the name of a peer's folder, such as learner-1")
    return folder / "owner.key" if name == OWNER else folder / "peers" / name / "key"


def _only_peer(folder: Path) -> str:
    found = sorted(path.parent.name for path in folder.glob("peers/*/key"))
    if len(found) != 1:
        raise WrongUsage(f"{folder} has {len(found)} peers: --peer names {_choices(folder)}")
    return found[0]


def _choices(folder: Path) -> str:
    found = sorted(path.parent.name for path in folder.glob("peers/*/key"))
    return (
        " or ".join([*found, *([OWNER] if (folder / "owner.key").exists() else [])]) or "one that has a key"
    )


def _checked(path: Path) -> bytes:
    """The key file's bytes. Raises IdentityError for a file without a key."""
    from swarm.membership.identity import open_key

    open_key(path)
    return path.read_bytes()


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists():
        raise WrongUsage(
            f"{path} is there already, and a key is not overwritten: name another, or move it away"
        )


def _passphrase(path: Path | None, twice: bool) -> str:
    """From a file, or asked for at the terminal, `twice` where it is new. Raises WrongUsage."""
    if path is not None:
        try:
            said = path.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it is no {error.encoding}"
            raise WrongUsage(
                f"the passphrase cannot be read from {path}: {why}; name another file"
            ) from error
    elif not sys.stdin.isatty():
        raise WrongUsage("no terminal to ask for the passphrase: add --passphrase-file FILE")
    else:
        from getpass import getpass

        try:
            said = getpass("passphrase: ")
            again = getpass("once more: ") if twice else said
        except (EOFError, UnicodeError) as error:
            raise WrongUsage("no passphrase was given: try again, or add --passphrase-file FILE") from error
        if again != said:
            raise WrongUsage("the two passphrases differ")
    if len(said) < SHORTEST:
        raise WrongUsage(f"a passphrase has {SHORTEST} letters at least")
    return said
