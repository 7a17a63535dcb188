"""Finds or makes the model that a run starts from: a folder, a Hub id, or one of MADE.

A run from a Hub id is pinned to the commit that its revision names when the run is created, so that all peers
load the same model. The Hub's own cache is used, also without a network. The embedded model is made once; its
cache key covers everything it depends on.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs
from msgspec.structs import replace

from peers.build.model import smollm2
from peers.errors import CannotHere, UserError, WrongUsage
from swarm import __version__
from swarm.learn.files import peft_folder
from swarm.learn.learners import learning_rates
from swarm.learn.models import tokenization
from swarm.learn.models.pretrained import reading
from swarm.settings.config import Lora, Run
from swarm.settings.loading import run_dict
from swarm.storage.blocks import Blocks
from swarm.storage.image import MakeDraft
from swarm.tasks import catalog as tasks
from swarm.tasks.data import task_files

COMMIT = re.compile(r"[0-9a-f]{40}")
MADE = ("embedded", smollm2.NAME)
"""Names of models that this program makes, once for each user."""

FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""Files of a Hub model that are downloaded: config, tokenizer and safetensors; no pickles, no code."""

COPIES = ["*/*", "consolidated*"]
"""Files that are not downloaded: copies of the weights in other formats."""


def folder(run: Run) -> Path:
    """The model's Hugging Face folder, with config, tokenizer and safetensors. Raises UserError when there is
    none."""
    if run.model.name == "embedded":
        return _embedded(run)
    if run.model.name == smollm2.NAME:
        return smollm2.folder()
    if not from_hub(run):
        return Path(run.model.name).expanduser()
    return _hub(run.model.name, run.model.revision)


def from_hub(run: Run) -> bool:
    """Whether the model is named by its Hub id."""
    return run.model.name not in MADE and not Path(run.model.name).expanduser().is_dir()


def pinned(run: Run) -> tuple[Run, Path]:
    """The run's settings with everything pinned, and its model's folder.

    Revisions of a Hub model and data set become commits. A chat template that asks for the date gets today's,
    in UTC, where the run names none. A run that starts from an adapter gets its rank, alpha and targets. A
    run that names no learning rate gets the one that is known for its kind, printed on stderr. Raises as
    `folder`, WrongUsage when no rate is known, and ModelError for damaged weights and adapters.
    """
    path = folder(run)
    run = _settled(_adapted(run), path)
    model = run.model
    if from_hub(run):
        model = replace(model, revision=path.name)
    if not model.date and model.template != "off" and tokenization.asks_date(path):
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        print(f"the chat template asks for the date: run.model.date is {today}", file=sys.stderr, flush=True)
        model = replace(model, date=today)
    return replace(run, model=model, task=task_files.pinned(run.task)), path


def adapter_folder(run: Run) -> Path:
    """The folder of the adapter that the run starts from. Raises UserError when there is none."""
    here = Path(run.model.adapter).expanduser()
    return here if here.is_dir() else _hub(run.model.adapter, "")


def _adapted(run: Run) -> Run:
    """The run with the settings of the adapter that it starts from. Raises WrongUsage where its own are
    others, ModelError."""
    if not run.model.adapter:
        return run
    theirs = peft_folder.settings_of(adapter_folder(run))
    for name, mine in _own(run.lora).items():
        its = getattr(theirs, name)
        if sorted(str(mine).split(",")) != sorted(str(its).split(",")):
            raise WrongUsage(
                f"run.lora.{name} is {mine!r}, and the adapter {run.model.adapter} has {its!r}: leave it out"
            )
    said = f"rank {theirs.rank}, alpha {theirs.alpha:g}, on {theirs.targets}"
    print(f"the adapter {run.model.adapter} has {said}", file=sys.stderr, flush=True)
    return replace(run, lora=theirs)


def _own(lora: Lora) -> dict[str, object]:
    """The settings that are not the defaults."""
    both = ((name, getattr(lora, name), getattr(Lora(), name)) for name in Lora.__struct_fields__)
    return {name: mine for name, mine, usual in both if mine != usual}


def _settled(run: Run, path: Path) -> Run:
    weights = sorted(path.glob("*.safetensors"))
    if not weights and run.model.name != "embedded":
        return run  # a folder without weights is reported where they are loaded
    try:
        run, said = learning_rates.with_learning_rate(run, _parameters(weights))
    except learning_rates.UnknownRate as error:
        raise WrongUsage(str(error)) from error
    if said:
        print(said, file=sys.stderr, flush=True)
    return run


def parameters_here(run: Run) -> int | None:
    """Parameters of the run's model, from its files on this disk alone: 0 for the embedded one, which is made
    where a run begins; None where its weights are not here. Raises ModelError."""
    if run.model.name == "embedded":
        return 0
    if run.model.name == smollm2.NAME:
        here: Path | None = smollm2.place()
    else:
        here = _cached(run.model.name, run.model.revision) if from_hub(run) else folder(run)
    weights = sorted(here.glob("*.safetensors")) if here is not None else []
    return _parameters(weights) if weights else None


def _cached(name: str, revision: str) -> Path | None:
    """The Hub's model in its cache on this disk, if it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def check_weights(model: Path) -> None:
    """Raise ModelError for a file of weights in this folder that is damaged; a folder without any is good."""
    _parameters(sorted(model.glob("*.safetensors")))


def _parameters(files: Sequence[Path]) -> int:
    """Number of parameters in these files, from their headers alone. Raises ModelError."""
    from safetensors import safe_open

    found = 0
    for file in files:
        with reading(file), safe_open(file, "np") as tensors:
            found += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 (no mapping)
    return found


def base(model: Path, run: Run) -> Path:
    """The folder that a policy is loaded from: the run folder's `model`, for adapters with the weights that
    they are on. Raises UserError when there are none."""
    return model if run.model.training == "full" else start(model, run)


def start(model: Path, run: Run) -> Path:
    """The folder with the weights that the run starts from: the run folder's `model`, for a Hub model the
    Hub's snapshot at the run's commit. Raises UserError when there is none."""
    if (model / "model.safetensors").exists():
        return model
    if COMMIT.fullmatch(run.model.revision) is None:
        raise CannotHere(
            f"{model} has no model.safetensors, the weights that the run starts from: leave and join again"
        )
    return _hub(run.model.name, run.model.revision)


def pinned_as(run: Run, here: Run) -> Run:
    """Settings completed with the revisions, the date, the learning rate and the settings of an adapter that
    the run `here` was pinned to."""
    model, task, optimizer = run.model, run.task, run.optimizer
    if model.name == here.model.name and not _is_commit(model.revision):
        model = replace(model, revision=here.model.revision)
    if not model.date:
        model = replace(model, date=here.model.date)
    if model.adapter and model.adapter == here.model.adapter:
        run = replace(run, lora=replace(here.lora, **_own(run.lora)))
    revision = here.task.options.get("revision")
    if task.name == here.task.name and revision is not None and not _is_commit(task.options.get("revision")):
        task = replace(task, options={**task.options, "revision": revision})
    return replace(
        run, model=model, task=task, optimizer=replace(optimizer, lr=optimizer.lr or here.optimizer.lr)
    )


def _is_commit(revision: object) -> bool:
    return COMMIT.fullmatch(str(revision)) is not None


def version_zero(run: Run) -> Callable[[MakeDraft], Blocks] | None:
    """Function that writes version 0 of a run that trains all weights, where the Hub's model is on this disk
    at the run's commit, so that no peer is asked for it. It raises ModelError or OSError."""
    if run.model.training != "full" or COMMIT.fullmatch(run.model.revision) is None:
        return None
    folder = _cached(run.model.name, run.model.revision)
    if folder is None:
        return None

    def write(draft: MakeDraft) -> Blocks:
        from swarm.learn.models.model import write_release

        return write_release(folder, draft)

    return write if any(folder.glob("*.safetensors")) else None


def _embedded(run: Run) -> Path:
    settings = run_dict(run)
    recipe = hashlib.sha256(repr((__version__, run.seed, settings["task"])).encode()).hexdigest()[:16]
    target = platformdirs.user_cache_path("swarm") / f"embedded-{recipe}"
    if not target.exists():
        from swarm.learn.models import embedded

        source = tasks.warm_start(run.task, run.seed)
        print("making the embedded model and warming it up (some seconds, once)", file=sys.stderr, flush=True)
        try:
            say = lambda line: print(f"  {line}", file=sys.stderr, flush=True)  # noqa: E731 (a value, not a name)
            embedded.make(target, run.seed, source.characters, source.example, say)
        except OSError as error:
            raise CannotHere(
                f"cannot write the embedded model to {target}: {error.strerror}; free some space or set"
                " XDG_CACHE_HOME"
            ) from error
    return target


def _hub(name: str, revision: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{name}"
    try:
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=FILES, ignore_patterns=COPIES)
        )
    except GatedRepoError as error:
        raise UserError(f"{name} is gated: accept its terms on {page}, then run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise WrongUsage(
            f"there is no folder and no Hub model {name}: name a folder, a Hub id such as org/model, or"
            f" one of {', '.join(MADE)} (a private model needs `hf auth login` first)"
        ) from error
    except RevisionNotFoundError as error:
        raise WrongUsage(f"{name} has no revision {revision}: {page}/commits/main lists them") from error
    except HFValidationError as error:
        raise WrongUsage(
            f"{name!r} is neither a folder here nor a Hub id: name a folder, org/model, or one of"
            f" {', '.join(MADE)}"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)):
            raise  # a fault of this disk, which peers.errors reports
        raise CannotHere(
            f"{name} is not on this disk and cannot be downloaded ({_why(error)}): "
            "check the network and HF_HUB_OFFLINE, or name a folder"
        ) from error


def _why(error: BaseException) -> str:
    """The class name of the first error: the Hub client's own message is several lines of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
