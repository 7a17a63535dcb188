"""Engines whose calls take time: a call that is stopped ends, and the next one is whole.

vLLM's server is one here that answers when it has the time. Against the real one: test_vllm_server.py.
Engines in processes of their own: test_engine_process.py.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from nouns import seeds
from vllm_policies import PROMPTS, Versions, recipe

from swarm.learn.files import weights
from swarm.learn.models import model, tiny, tokenization
from swarm.sample.base import Completions, Engine, EngineError
from swarm.sample.hf import HfEngine
from swarm.sample.server import ServerEngine

MANY = 64
"""Completions of a call that is stopped: the others have two."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@contextlib.contextmanager
def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = HfEngine(model.load_policy(folder), tokenization.load(folder), weights.load_into, 12)
    forward = engine._forward

    def endless(ids: Any, attend: Any, cache: Any) -> Any:
        while len(ids) == MANY * len(PROMPTS) and not engine._stopped:
            pass
        return forward(ids, attend, cache)

    monkeypatch.setattr(engine, "_forward", endless)
    yield engine


class SlowServer(BaseHTTPRequestHandler):
    """As much of vLLM's server as the engine asks for, with noise of its own. Of many completions it makes
    none, and says when nobody waits for them any more."""

    asked: list[int]
    left: threading.Semaphore

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.tell(b"process_start_time_seconds 1.5\n")
        elif self.path == "/v1/models":
            self.tell(json.dumps({"data": [{"id": "model", "max_model_len": 256}]}).encode())
        else:
            self.tell(json.dumps({"paths": {"/collective_rpc": {}}}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("n") == MANY:
            self.asked.append(MANY)
            assert self.rfile.read(1) == b"", "the client is gone"
            self.left.release()
            return
        top = {f"token_id:{k}": -asked.get("temperature", 1.0) - k for k in range(5)}
        logprobs = {"token_logprobs": [-1.0], "top_logprobs": [top]}
        choices = [{"index": k, "token_ids": [5], "logprobs": logprobs} for k in range(asked.get("n", 1))]
        self.tell(json.dumps({"choices": choices}).encode())

    def tell(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def at_a_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    handler = type("Handler", (SlowServer,), {"left": threading.Semaphore(0), "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        engine = ServerEngine(recipe(folder, heads=0, url=f"http://127.0.0.1:{server.server_port}"), "model")
        yield engine
        for _ in handler.asked:
            assert handler.left.acquire(timeout=30.0), "each request that came is closed"
        engine.close()
        server.shutdown()


def told(groups: list[Completions]) -> list[Any]:
    return [(group.lengths, group.tokens.tolist(), group.logprobs.tolist()) for group in groups]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [in_this_process, at_a_server])
def test_a_call_that_is_stopped_ends_and_the_next_one_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]
) -> None:
    over = threading.Event()
    with make(folder, monkeypatch) as engine:

        def stops() -> None:
            while not over.wait(0.01):
                engine.stop()

        engine.load(Versions(folder).move())
        engine.stop()
        before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
        thread = threading.Thread(target=stops)
        thread.start()
        try:
            with pytest.raises(EngineError, match="of no use any more"):
                engine.sample(PROMPTS, MANY, seeds(1, PROMPTS))
        finally:
            over.set()
            thread.join()
        assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before
        assert engine.statistics()["groups"] == 2 * len(PROMPTS), "and counts nothing that was stopped"
