"""`swarm push`: brings the newest policy of this machine to the Hugging Face Hub, with a card.

    run folder --export--> model folder --card--> README.md --> repository, new and private unless --public

The repository is made, or found, before anything is exported, so that a refusal by the Hub ends the command
early. With `to` the folder is written there and nothing is uploaded. Not handled here: the model's files
(peers.commands.policies.export), the card (peers.commands.policies.model_card).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from peers.build import run_folder
from peers.commands.policies import export
from peers.commands.policies.model_card import card, hub_base
from peers.errors import CannotHere, NoPeerAnswers, Refusal, WrongUsage, say
from swarm.settings.config import Run

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

    from peers.build.run_folder import RunFolder

CONNECT = 10.0
"""Seconds in which a connection to the Hub comes about; its client waits for as long as the system does."""

ANSWER = 60.0
"""Seconds in which the Hub finds or makes the repository."""

LICENCE = ("license", "license_name", "license_link")
"""Fields of a card that state a model's licence."""


def push(
    folder: Path, repo: str, to: Path | None, public: bool, licence: str | None, force: bool = False
) -> int:
    """Upload the newest policy to `repo` (owner/name, or a name of your own), or write it to the folder `to`,
    with `force` also where that is not empty. Raises UserError."""
    from huggingface_hub import HfApi, get_session, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise WrongUsage(f"{repo!r} is not the name of a repository: write name or owner/name") from error
    run = run_folder.opened(folder)
    if to is not None:
        _write(run, repo, to, licence, force)
        print(to)
        say(f"{to / 'README.md'} is the card; nothing was uploaded")
        return 0
    if get_token() is None:
        raise CannotHere("there is no token of the Hub here: run `hf auth login`, or set HF_TOKEN")
    hub = HfApi()
    get_session().timeout = (CONNECT, ANSWER, ANSWER, None)
    with _hub_errors(repo, str(hub.endpoint)):
        there = hub.create_repo(repo, private=not public, exist_ok=True)
    with _place(folder / "cache") as place:
        version = _write(run, there.repo_id, Path(place), licence)
        say(f"uploading version {version} to {there}")
        get_session().timeout = (CONNECT, None, None, None)  # what is large is answered once it is there
        with _hub_errors(there.repo_id, str(hub.endpoint)):
            hub.upload_folder(
                repo_id=there.repo_id,
                folder_path=place,
                commit_message=f"Version {version} of run {run.name} {run.digest[:12]}",
            )
    print(there)
    return 0


def _place(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """A new folder for the upload. Raises CannotHere where the disk has no room for it."""
    with export.room(cache):
        cache.mkdir(exist_ok=True)
        return tempfile.TemporaryDirectory(dir=cache, prefix="push-")


def _write(run: RunFolder, repo: str, target: Path, licence: str | None, force: bool = False) -> int:
    """Write model and card; returns the version."""
    exported = export.write(run, target, portable=True, force=force)
    known = {"license": licence} if licence else _licence_of_base(run.settings)
    if not known:
        say("the card names no licence, since that of the base is not known here: --license names one")
    with export.room(target):
        (target / "README.md").write_text(card(run, exported, repo, known))
    return exported.version


def _licence_of_base(run: Run) -> dict[str, str]:
    """The licence in the card of the model that the run started from: `license`, and for one that the Hub
    does not know its name and link; nothing where there is no such card, or it is unavailable."""
    from huggingface_hub import ModelCard, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError, OfflineModeIsEnabled

    base, path = hub_base(run), Path(run.model.name).expanduser() / "README.md"
    if base is not None:
        say(f"asking the Hub for the card of {base}, which names a licence")
        try:
            path = Path(hf_hub_download(base, "README.md", revision=run.model.revision))
        except (EntryNotFoundError, HTTPError, OfflineModeIsEnabled) as error:
            say(f"the card of {base} cannot be had ({type(error).__name__})")
            return {}
    elif not path.is_file():
        return {}
    data = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    return {name: data[name] for name in LICENCE if isinstance(data.get(name), str)}


@contextlib.contextmanager
def _hub_errors(repo: str, hub: str) -> Iterator[None]:
    """Turn the Hub's refusals, and its silence, into a UserError."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise NoPeerAnswers(
            f"HF_HUB_OFFLINE is set, so {hub} is not asked: unset it, or write the folder with --to DIR"
        ) from error
    except HfHubHTTPError as error:
        _refused(repo, hub, error)
    except ValueError as error:
        if not isinstance(error.__cause__, HfHubHTTPError):
            raise
        why = " ".join(str(error).split())
        raise WrongUsage(
            f"{hub} does not take the card of {repo}: {why}; --license names another licence"
        ) from error
    except HTTPError as error:
        raise NoPeerAnswers(
            f"{hub} cannot be reached ({type(error).__name__}): check the network, or write the folder with"
            " --to DIR"
        ) from error


def _refused(repo: str, hub: str, error: HfHubHTTPError) -> NoReturn:
    status = error.response.status_code
    refusal = f"{hub} refuses {repo} ({status}"
    if status == 401:
        raise Refusal(f"{refusal}): the token here is not valid; `hf auth login` takes another") from error
    if status in (403, 404):
        raise Refusal(
            f"{refusal}): its owner has to be you or an organization of yours, and the token has to have the"
            " permission to write; `hf auth whoami` says who you are"
        ) from error
    if status >= 500 or status == 429:
        raise NoPeerAnswers(
            f"{hub} answers {status}: try again later; what was uploaded is not sent again"
        ) from error
    raise Refusal(f"{refusal}): {error.server_message or error}") from error
