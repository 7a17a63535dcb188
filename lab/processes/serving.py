"""Starts a vLLM server for the row `engines`, waits until it answers, and ends it with all its processes.

    with serving(model, "float32") as url: ...

It lets its weights or its adapter be replaced, and draws with our noise where it is asked to, as its engine
(swarm.sample.server) needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from lab.figures.table import Unmeasured
from lab.processes.baseline_engine import VLLM
from lab.swarms.partner import environment
from swarm.sample.vllm_process import PROCESSOR

START = 180.0
"""Seconds: imports and, on a CPU, a warm-up take a minute on a busy machine."""

SEQUENCES, RANK = 256, 16
"""Completions at once, and the rank of adapters: the largest call of the row, and the default of a run."""


@contextlib.contextmanager
def serving(model: Path, dtype: str = "auto", adapters: bool = False) -> Iterator[str]:
    """The server's URL; it takes whole weights, or `adapters`. On a CPU `auto` is float32.

    Raises Unmeasured when it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, cpu = f"http://127.0.0.1:{port}", not _gpu()
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING" if adapters else "VLLM_SERVER_DEV_MODE": "1"}
    more = ["--enable-lora", "--max-lora-rank", str(RANK)] if adapters else []
    words = [
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--logits-processors",
        PROCESSOR,
        "--logprobs-mode",
        "processed_logits",
        "--dtype",
        "float32" if dtype == "auto" and cpu else dtype,
        "--max-num-seqs",
        str(SEQUENCES),
        *more,
        # As swarm.sample.vllm sets it.
        *(["--enforce-eager", "--no-enable-chunked-prefill"] if cpu else []),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment() | VLLM | own,
        start_new_session=True,
    )
    try:
        _wait(process, url)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unmeasured(f"vLLM's server ended with code {process.returncode} before it answered")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            with urllib.request.urlopen(f"{url}/health", timeout=5.0):
                return
        time.sleep(0.5)
    raise Unmeasured(f"vLLM's server did not answer within {START:.0f} s")


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()
