"""The extras of the distribution: which package belongs to which, and the line that installs one.

    an import that fails --lack--> "this needs torch, which is not installed here: pip install ..."

`gepo-swarm` alone reads runs, invites to them and shows them. To take part, to study or to sample with
another engine needs an extra; a command that lacks it says so before it does anything. Not handled here:
versions (pyproject.toml, peers.commands.doctor.machine_checks).
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "gepo-swarm"
PEER = "peer"
"""Requirements of a sampler, a learner, an evaluator and a seed."""

EXTRA_OF = {
    "datasets": PEER,
    "hivemind": PEER,
    "huggingface_hub": PEER,
    "math_verify": PEER,
    "peft": PEER,
    "safetensors": PEER,
    "tokenizers": PEER,
    "torch": PEER,
    "transformers": PEER,
    "vllm": "vllm",
    "bitsandbytes": "quant",
    "reasoning_gym": "gym",
    "verifiers": "verifiers",
    "matplotlib": "plot",
    "psutil": "bench",
    "pyzmq": "bench",
    "scipy": "bench",
    "trl": "bench",
    "tensorboard": "track",
    "trackio": "track",
    "wandb": "track",
}
"""Module -> the extra that installs it."""

TRIED = {"peft": "0.21.2", "torch": "2.13.0", "transformers": "5.24.0"}
"""The newest versions that this program was tried with, of packages whose internals it depends on: each
version of theirs renames and imports something. The ranges of pyproject.toml end there."""

WATCHING = "hivemind==1.1.12"
"""An observer's requirement beside the distribution. Installed without its own dependencies it brings no
torch, which no observer imports (swarm.net.libp2p.bare_hivemind)."""


def with_version(package: str) -> str:
    """A package of TRIED with its version here, and the tried one where they differ."""
    here, tried = version(package), TRIED[package]
    also = "" if here.partition("+")[0] == tried else f" ({tried} was tried)"
    return f"{package} {here}{also}"


def install(extra: str) -> str:
    """The line that installs an extra into this environment."""
    what = f"'{DISTRIBUTION}[{extra}]'"
    tool = _tool(f"uv tool install --torch-backend auto {what}", f"pipx install --force {what}")
    return tool or f"pip install {what}"


def install_to_watch() -> str:
    """The command line that installs an observer's requirements, without torch, into this environment."""
    install = f"install --no-deps {WATCHING}"
    tool = _tool(
        f"uv pip install --python {sys.prefix} --no-deps {WATCHING}", f"pipx runpip {DISTRIBUTION} {install}"
    )
    return tool or f"pip {install}"


def upgrade() -> str:
    """The line that brings the newest version into this environment, as this one was installed."""
    if tool := _tool(f"uv tool upgrade {DISTRIBUTION}", f"pipx upgrade {DISTRIBUTION}"):
        return tool
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:  # a checkout that is not installed
        return "git pull"
    pip = "uv pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        return f"git -C {unquote(urlsplit(url).path)} pull"
    if vcs := origin.get("vcs_info"):
        return f"{pip} install --upgrade '{DISTRIBUTION} @ {vcs['vcs']}+{url}'"
    return f"{pip} install --upgrade {DISTRIBUTION}"


def absent(extra: str) -> list[str]:
    """Modules of an extra that are not installed."""
    return [module for module, of in EXTRA_OF.items() if of == extra and find_spec(module) is None]


def need(extra: str) -> None:
    """Raise ModuleNotFoundError for the first module of an extra that is not installed."""
    for module in absent(extra):
        need_module(module)


def need_module(module: str) -> None:
    """Raise ModuleNotFoundError when a module of an extra is not installed."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def lack(error: ModuleNotFoundError) -> str | None:
    """The sentence of an import that fails since an extra is not installed; None for a bug of ours."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF or find_spec(module) is not None:
        return None
    return f"this needs {module}, which is not installed here: {install(EXTRA_OF[module])}"


def _tool(uv: str, pipx: str) -> str | None:
    """The line of the tool that made this environment, by the file that each leaves; None without one."""
    left = {"uv-receipt.toml": uv, "pipx_metadata.json": pipx}
    return next((line for receipt, line in left.items() if (Path(sys.prefix) / receipt).exists()), None)
