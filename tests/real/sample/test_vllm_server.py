"""The engine over a vLLM server: against the real one over HTTP (`make test-vllm`), and without one what is
refused and said."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from nouns import seeds
from undecided_policy import rows
from vllm_policies import LORA, PROMPTS, SAME, TEMPERATURE, Versions, recipe

from peers.build.model import vllm_folder
from swarm.draws.heads import unpack
from swarm.learn import replay
from swarm.learn.files import weights
from swarm.learn.models import model, tiny, tokenization
from swarm.sample.base import EngineError, NoRoom
from swarm.sample.hf import HfEngine
from swarm.sample.server import ServerEngine, ServerRefused, fixed, named_noise, own_noise, vllm_seed
from swarm.sample.vllm import PROCESSOR
from swarm.storage.weights import Weights
from swarm.types import Noise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "llama", "llama")


def engine_at(folder: Path, port: int, **settings: float) -> ServerEngine:
    return ServerEngine(recipe(folder, url=f"http://127.0.0.1:{port}", **settings), "org/model")


# --- without a server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.1.2.3:8000", "names another machine"),
        ("http://example.org:8000", "names another machine"),
        ("https://127.0.0.1:8000", "is not the URL of a vLLM server"),
        ("127.0.0.1:8000", "is not the URL of a vLLM server"),
        ("http://127.0.0.1:eight", "is not a URL"),
    ],
)
def test_only_a_server_of_this_machine_will_do(folder: Path, url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ServerEngine(recipe(folder, url=url), "org/model")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_a_server_that_is_away_is_named_with_the_command_that_starts_it(folder: Path) -> None:
    port = free_port()
    with pytest.raises(EngineError) as raised:
        engine_at(folder, port).check()
    assert f"no vLLM server answers at http://127.0.0.1:{port}" in str(raised.value)
    command = (
        "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model org/model --host"
        " 127.0.0.1"
    )
    own = "--logits-processors swarm.sample.vllm_processor:GumbelProcessor --logprobs-mode processed_logits"
    assert f"start it with {command} --port {port} {own}" in str(raised.value)


def test_a_server_for_adapters_is_started_differently(folder: Path) -> None:
    engine = ServerEngine(recipe(folder, LORA, url=f"http://127.0.0.1:{free_port()}"), "org/model")
    with pytest.raises(
        EngineError, match=r"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 .* --enable-lora --max-lora-rank 8"
    ):
        engine.check()


@pytest.mark.parametrize(("heads", "shown"), [(0, ""), (19, ""), (20, " --max-logprobs 21")])
def test_the_command_makes_room_for_the_heads_of_the_run(folder: Path, heads: int, shown: str) -> None:
    engine = ServerEngine(recipe(folder, heads=heads, url=f"http://127.0.0.1:{free_port()}"), "org/model")
    with pytest.raises(EngineError) as raised:
        engine.check()
    assert str(raised.value).endswith(f" --logprobs-mode processed_logits{shown}")
    engine.close()


def test_a_server_that_reports_fewer_tokens_than_the_run_asks_for_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(engine: ServerEngine, path: str, body: dict[str, int], *rest: object) -> dict[str, object]:
        raise ServerRefused(f"asked for {body['logprobs']}")

    monkeypatch.setattr(ServerEngine, "_post", told)
    for heads, asked in ((4, 19), (30, 31)):
        engine = ServerEngine(recipe(folder, heads=heads, url="http://127.0.0.1:9"), "org/model")
        with pytest.raises(EngineError, match=f"asked for {asked}: start it with "):
            engine._proves()
        engine.close()


def answering(status: int, body: bytes) -> tuple[HTTPServer, int]:
    """An HTTP server that is no vLLM."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_port


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b'{"error": {"message": "engine is dead"}}', "answered /metrics with 503: engine is dead"),
        (200, b"<html>", "is not a vLLM server: "),
        (200, b'{"data": []}', "is not a vLLM server: "),
        (200, b"[" * 3000 + b"]" * 3000, "is not a vLLM server: "),
    ],
)
def test_what_is_no_working_vllm_server_is_an_engine_error(
    folder: Path, status: int, body: bytes, said: str
) -> None:
    server, port = answering(status, body)
    engine = engine_at(folder, port)
    with pytest.raises(EngineError, match=said):
        engine.load(Versions(folder).move())
    assert engine.version == -1
    engine.close()
    server.shutdown()


def test_a_server_that_hangs_is_an_engine_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.sample.server.QUICK", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(EngineError, match=r"did not answer /v1/models within 0\.5 s"):
            engine_at(folder, silent.getsockname()[1]).check()


DEFAULTS = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
"""What a server takes from the model's generation_config.json where a request says nothing, the temperature
apart, and the values that change no probability."""


def test_no_request_leaves_sampling_to_the_models_generation_config(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def told(_: ServerEngine, path: str, body: dict[str, object], *rest: object) -> dict[str, object]:
        asked.append(body)
        low, high = (-1.0, -0.5) if body["temperature"] == 1.0 else (-2.0, -0.2)
        logprobs = {"top_logprobs": [{"token_id:1": low, "token_id:2": high}], "token_logprobs": [high]}
        return {"choices": [{"index": 0, "token_ids": [2], "logprobs": logprobs}]}

    monkeypatch.setattr(ServerEngine, "_post", told)
    monkeypatch.setattr(ServerEngine, "_ready", lambda _: None)
    engine = engine_at(folder, free_port())
    engine._length = 256
    engine.sample(PROMPTS, 1, seeds(1, PROMPTS))
    engine.greedy(PROMPTS)
    engine._proves()
    engine._check_logprobs()
    assert len(asked) == 2 * len(PROMPTS) + 3
    with pytest.raises(
        NoRoom, match=r"of \d+ tokens and \d+ of completion do not fit into the 256 of the vLLM"
    ):
        engine.sample(["1" * 999], 1, [1])
    for body in asked:
        assert "temperature" in body and {name: body.get(name) for name in DEFAULTS} == DEFAULTS
    engine.close()


def test_seeds_of_neighbouring_groups_are_far_apart_and_fit_vllm() -> None:
    seeds = sorted(vllm_seed(seed) for seed in [*range(1000), (1 << 64) - 1, 1 << 63])
    assert all(after - before > 1 << 20 for before, after in pairwise(seeds))
    assert seeds[0] >= 0 and seeds[-1] + 4096 < 1 << 63


@pytest.mark.vllm
def test_vllm_takes_nothing_else_from_a_generation_config() -> None:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    defaults = CompletionRequest._DEFAULT_SAMPLING_PARAMS
    defaults = getattr(defaults, "default", defaults)  # pydantic keeps a class's private attribute so
    assert defaults == {**DEFAULTS, "temperature": 1.0}
    for own in (named_noise(1, 4, 0.8), own_noise(1, 4, 0.8), {"temperature": 0.0}):
        assert defaults.keys() <= {**fixed("model", 12), **own}.keys()


STARTED = b"process_start_time_seconds 1.7e+09\n"


def adapting(metrics: bytes = STARTED) -> tuple[HTTPServer, list[str]]:
    """An HTTP server that takes adapters as vLLM does, and their names."""
    loaded: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(metrics)
                return
            self._say(
                {
                    "/v1/models": {
                        "data": [{"id": name, "max_model_len": 256} for name in ("model", *loaded)]
                    },
                    "/openapi.json": {"paths": {"/v1/load_lora_adapter": {}}},
                }.get(self.path, {})
            )

        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["lora_name"]
            if (name in loaded) == self.path.startswith("/v1/load"):
                return self._say({"error": {"message": f"{name} is loaded, or is not"}}, 400)
            (loaded.append if self.path.startswith("/v1/load") else loaded.remove)(name)
            return self._say({})

        def _say(self, body: dict[str, object], status: int = 200) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, loaded


def test_a_server_whose_restart_would_go_unnoticed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerEngine, "_proves", lambda _: True)
    server, loaded = adapting(b"vllm:num_requests_running 0.0\n")
    engine = ServerEngine(recipe(folder, LORA, url=f"http://127.0.0.1:{server.server_port}"), "org/model")
    with pytest.raises(EngineError, match=r"one API server and with PROMETHEUS_MULTIPROC_DIR unset"):
        engine.load(Versions(folder, LORA).move())
    assert engine.version == -1 and not loaded
    engine.close()
    server.shutdown()


def test_a_held_out_prompt_that_does_not_fit_gets_an_empty_answer_and_the_others_theirs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 tokens of completion: of the server's 256, 244 are left."""
    asked: list[int] = []

    def told(_: ServerEngine, path: str, body: dict[str, list[int]], *rest: object) -> dict[str, object]:
        asked.append(len(body["prompt"]))
        logprobs = {"top_logprobs": None, "token_logprobs": [-0.5]}
        return {"choices": [{"index": 0, "token_ids": [40], "logprobs": logprobs}]}

    monkeypatch.setattr(ServerEngine, "_proves", lambda _: True)
    server, _ = adapting()
    engine = ServerEngine(recipe(folder, LORA, url=f"http://127.0.0.1:{server.server_port}"), "org/model")
    engine.load(Versions(folder, LORA).move())
    monkeypatch.setattr(ServerEngine, "_post", told)
    answer = engine._recipe.tokenizer.decode([40])
    assert answer and engine.greedy(["1" * 300, "1" * 244, "1" * 245, "1"]) == ["", answer, "", answer]
    assert sorted(asked) == [1, 244] and engine.greedy(["1" * 300]) == [""]
    engine.close()
    server.shutdown()


def test_an_adapter_has_a_name_of_its_own_also_beside_one_of_its_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerEngine, "_proves", lambda _: True)
    server, loaded = adapting()
    engine = ServerEngine(recipe(folder, LORA, url=f"http://127.0.0.1:{server.server_port}"), "org/model")
    versions = Versions(folder, LORA)
    first, other = versions.move(), versions.move()
    for each in (first, Weights(first.version, other.blocks)):
        engine.load(each)
        assert [name.endswith(f"v0-{each.digest[:12]}") for name in loaded] == [True]
        assert [path.name for path in engine._scratch.iterdir()] == [f"v0-{each.digest[:12]}"]
    engine._started = None  # as after a call that failed: the server still has it
    engine._ready()
    assert len(loaded) == 1
    engine.close()
    server.shutdown()


# --- a real one ---------------------------------------------------------------------------------------------


NAMED = ("--logits-processors", PROCESSOR, "--logprobs-mode", "processed_logits")
"""A server draws with our noise, as the engine's message says; else with its own, as people start it."""

OWN = ("--logprobs-mode", "processed_logprobs")


def serve(folder: Path, port: int, log: Path, *own: str) -> subprocess.Popen[bytes]:
    """A server as a person would start it; returns when it answers."""
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    words = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "64",
        "--enforce-eager",
        *own,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True
        )
    end = time.monotonic() + 600
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return process
        except OSError:
            time.sleep(1)
    stop(process)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def whole(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerEngine, Versions, Callable[[], None]]]:
    """An engine, its policy, and what kills the server and starts it again."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    processes = [serve(folder, port, log, *NAMED)]

    def again(*own: str) -> None:
        processes.append(serve(folder, port, log, *(own or NAMED)))

    def kill() -> None:
        stop(processes.pop())

    engine, versions = (
        ServerEngine(recipe(folder, url=f"http://127.0.0.1:{port}"), str(folder), vllm_folder.score),
        Versions(folder),
    )
    engine.load(versions.move())
    kill.again = again  # type: ignore[attr-defined]
    yield engine, versions, kill
    engine.close()
    for process in processes:
        stop(process)


Whole = tuple[ServerEngine, Versions, Callable[[], None]]


@pytest.mark.vllm
@pytest.mark.timeout(1200)
class TestServer:
    def test_log_probabilities_are_the_learners_after_every_update_in_place(self, whole: Whole) -> None:
        engine, versions, _ = whole
        assert versions.apart(engine) < SAME
        for _ in range(2):
            engine.load(versions.move())
            assert versions.apart(engine) < SAME

    def test_learners_replay_what_was_drawn_and_another_seed_shows(self, whole: Whole) -> None:
        engine, versions, _ = whole
        for prompt, seed, group in zip(
            PROMPTS, (-1, 5, 6), engine.sample(PROMPTS, 4, [-1, 5, 6]), strict=True
        ):
            assert group.noise == Noise.GUMBEL and group.heads is not None
            told = prompt, rows(group), TEMPERATURE
            found = replay.replay(versions.learned, *told, seed, unpack(group.heads, len(group.tokens)))
            assert found.margins.max() < SAME and found.apart is not None and found.apart.max() < 2 * SAME
            assert replay.replay(versions.learned, *told, seed + 1).margins.mean() > 1.0
            assert len({tuple(row) for row in rows(group)}) == 4

    def test_greedy_answers_are_not_drawn(self, whole: Whole, folder: Path) -> None:
        engine, versions, _ = whole
        other = HfEngine(model.load_policy(folder), tokenization.load(folder), weights.load_into, 12)
        other.load(Weights.of(weights.release_bytes(versions.module), 0))
        assert engine.greedy(PROMPTS) == other.greedy(PROMPTS)

    def test_a_group_is_replayed_alone_from_its_seed(self, whole: Whole) -> None:
        engine, _, _ = whole
        together = engine.sample(PROMPTS, 4, seeds(100, PROMPTS))
        for i, prompt in enumerate(PROMPTS):
            assert np.array_equal(engine.sample([prompt], 4, [100 + i])[0].tokens, together[i].tokens)

    def test_the_end_token_counts_and_nothing_follows_it(self, whole: Whole, folder: Path) -> None:
        engine, _, _ = whole
        ends = set(tokenization.load(folder).ends)
        sampled = [row for group in engine.sample(PROMPTS, 64, seeds(3, PROMPTS)) for row in rows(group)]
        assert all(not ends & set(row[:-1]) and (len(row) == 12 or row[-1] in ends) for row in sampled)
        assert {row[-1] for row in sampled} & ends

    def test_the_server_ends_what_is_stopped(self, whole: Whole) -> None:
        engine, versions, _ = whole
        prompts, over = PROMPTS * 100, threading.Event()

        def stops() -> None:
            while not over.wait(0.05):
                engine.stop()

        def running() -> float:
            lines = engine._ask("GET", "/metrics", None, 30.0).decode().splitlines()
            names = "vllm:num_requests_running", "vllm:num_requests_waiting{"
            return sum(float(line.split()[-1]) for line in lines if line.startswith(names))

        thread = threading.Thread(target=stops)
        thread.start()
        try:
            with pytest.raises(EngineError, match="of no use any more"):
                engine.sample(prompts, 64, seeds(1, prompts))
        finally:
            over.set()
            thread.join()
        end = time.monotonic() + 30
        while running() and time.monotonic() < end:
            time.sleep(0.1)
        assert not running() and versions.apart(engine) < SAME

    def test_a_server_that_was_away_gets_the_last_release_again(self, whole: Whole) -> None:
        engine, versions, kill = whole
        kill()
        with pytest.raises(EngineError, match="no vLLM server answers"):
            engine.sample(PROMPTS, 4, seeds(1, PROMPTS))
        kill.again()  # type: ignore[attr-defined]
        assert versions.apart(engine) < SAME and engine.version == versions.version

    def test_a_server_that_comes_back_without_our_noise_is_no_sampler_where_a_run_asks_for_it(
        self, whole: Whole, folder: Path
    ) -> None:
        engine, versions, kill = whole
        kill()
        kill.again(*OWN)  # type: ignore[attr-defined]
        with pytest.raises(EngineError, match=r"draws with its own: start it with .* --logits-processors"):
            engine.sample(PROMPTS, 4, seeds(1, PROMPTS))
        elsewhere = ServerEngine(
            recipe(folder, heads=0, url=engine._recipe.settings.url), str(folder), vllm_folder.score
        )
        elsewhere.load(versions.move())
        assert versions.apart(elsewhere) < SAME
        [group] = elsewhere.sample(PROMPTS[:1], 4, [3])
        assert group.noise == Noise.UNKNOWN and group.heads is None
        elsewhere.close()


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A server with tied embeddings and adapters; its folder and port."""
    root, port = tmp_path_factory.mktemp("tied"), free_port()
    folder = tiny.make(root / "qwen3", "qwen3")
    process = serve(folder, port, root / "log", *NAMED, "--enable-lora", "--max-lora-rank", "8")
    yield folder, port
    stop(process)


@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_adapters_are_replaced_on_a_server(tied: tuple[Path, int]) -> None:
    folder, port = tied
    engine = ServerEngine(recipe(folder, LORA, url=f"http://127.0.0.1:{port}"), str(folder))
    engine.check()
    versions = Versions(folder, LORA)
    for _ in range(3):
        engine.load(versions.move())
        assert versions.apart(engine) < SAME
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as told:
        assert told.read().count(b'"swarm-') == 1, "old adapters are unloaded"
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_a_server_without_room_for_the_heads_of_the_run_is_refused(tied: tuple[Path, int]) -> None:
    folder, port = tied
    engine = ServerEngine(recipe(folder, LORA, heads=30, url=f"http://127.0.0.1:{port}"), str(folder))
    with pytest.raises(EngineError, match=r"31, .* 20.*: start it with .* --max-logprobs 31"):
        engine.check()
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_weights_that_a_server_does_not_really_take_are_noticed(tied: tuple[Path, int]) -> None:
    """On a CPU vLLM goes on with the first weights of a tied head after an update in place, and says that it
    succeeded."""
    folder, port = tied
    engine = ServerEngine(recipe(folder, url=f"http://127.0.0.1:{port}"), str(folder), vllm_folder.score)
    with pytest.raises(EngineError, match=r"keeps old weights .* use peer\.engine\.name = vllm"):
        engine.load(Versions(folder).move(0.2))
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("raw_logprobs", "takes log-probabilities before the temperature"),
        ("processed_logits", "reports logits for log-probabilities"),
    ],
)
def test_a_server_that_tells_other_log_probabilities_is_refused(
    folder: Path, tmp_path: Path, mode: str, said: str
) -> None:
    port = free_port()
    process = serve(folder, port, tmp_path / "log", "--logprobs-mode", mode)
    try:
        with pytest.raises(EngineError, match=f"{said}: start it with"):
            ServerEngine(recipe(folder, heads=0, url=f"http://127.0.0.1:{port}"), "org/model").check()
    finally:
        stop(process)
