"""The policy that a run starts from: a folder, a Hub id, or the embedded one, which is made once and cached.

The cache is keyed by everything that the embedded policy depends on, so that one recipe gives one policy.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import platformdirs

from peers.errors import CannotHere, UserError
from swarm import __version__
from swarm.config import Run, run_dict
from swarm.tasks import base as tasks


def folder(run: Run) -> Path:
    """A Hugging Face folder with config, tokenizer and safetensors. Raises UserError when there is none to be had."""
    if run.model.name == "embedded":
        return _embedded(run)
    if Path(run.model.name).expanduser().is_dir():
        return Path(run.model.name).expanduser()
    return _hub(run.model.name, run.model.revision)


def _embedded(run: Run) -> Path:
    settings = run_dict(run)
    recipe = hashlib.sha256(repr((__version__, run.seed, settings["task"])).encode()).hexdigest()[:16]
    target = platformdirs.user_cache_path("swarm") / f"embedded-{recipe}"
    if not target.exists():
        from swarm.learn import embedded

        source = tasks.source(run.task.name, run.seed, run.task.options)
        print("making the embedded model and warming it up (some seconds, once)", file=sys.stderr, flush=True)
        try:
            say = lambda line: print(f"  {line}", file=sys.stderr, flush=True)  # noqa: E731 (a value, not a name)
            embedded.make(target, run.seed, source.characters, source.example, say)
        except OSError as error:
            raise CannotHere(
                f"cannot write the embedded model to {target}: {error.strerror}; free some space or set XDG_CACHE_HOME"
            ) from error
    return target


def _hub(name: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                name, revision=revision or None, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
            )
        )
    except GatedRepoError as error:
        raise UserError(f"{name} is gated: accept its terms on its page, then run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise UserError(f"there is no model {name}: name a folder, a Hub id such as org/model, or `embedded`") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CannotHere(
            f"{name} is not on this disk and cannot be downloaded ({type(error).__name__}): check the network, or name a folder"
        ) from error
