"""Every engine whose calls take time: a call that is stopped ends, and the next one is whole.

vLLM's process has its own code here, over an LLM that gives a token a step; its server is one that answers
when it has the time. Against the real ones: test_vllm.py, test_vllm_server.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
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
from swarm.sample import vllm
from swarm.sample.base import Completions, Engine, EngineError
from swarm.sample.hf import HfEngine
from swarm.sample.server import ServerEngine
from swarm.sample.vllm import VllmEngine

ENDLESS = 1 << 20
"""Tokens of completions that nobody waits for."""

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


SLOW_VLLM = f"""
import sys, types
from types import SimpleNamespace
from swarm.sample import vllm_process
sys.modules["vllm"] = types.SimpleNamespace(SamplingParams=SimpleNamespace)


class Steps:
    waiting = {{}}
    told = SimpleNamespace(token_ids=[5], logprobs=[{{5: SimpleNamespace(logprob=-1.0)}}])

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def abort_request(self, ids, internal):
        assert internal
        for id in ids:
            del self.waiting[id]

    def step(self):
        step, self.waiting = self.waiting, {{id: left - 1 for id, left in self.waiting.items() if left}}
        out = [self.told]
        return [SimpleNamespace(request_id=id, finished=not left, outputs=out) for id, left in step.items()]


class Served(vllm_process.Served):
    def __init__(self, setup):
        self.setup, self.version, self.device, self.length = setup, "none", "cpu", 256
        self._vocabulary, self._adapter, self.stopped = 50, None, False
        self.llm = SimpleNamespace(llm_engine=Steps(), enqueue=self.enqueue)

    def enqueue(self, asked, parameters, use_tqdm, lora_request):
        steps = self.llm.llm_engine
        assert not steps.waiting, "nothing is left of the call before"
        steps.waiting = {{str(k): {ENDLESS} if len(asked) > {MANY} else 3 for k in range(len(asked))}}
        return [*steps.waiting]


vllm_process.Served = Served
vllm_process.main(sys.argv[1])
"""


@contextlib.contextmanager
def in_vllms_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(vllm, "COMMAND", (sys.executable, "-c", SLOW_VLLM))
    engine = VllmEngine(recipe(folder, heads=0))
    yield engine
    assert engine.statistics()["starts"] == 1, "the process goes on"
    engine.close()


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
@pytest.mark.parametrize("make", [in_this_process, in_vllms_process, at_a_server])
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
