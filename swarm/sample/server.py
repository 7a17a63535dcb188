"""Samples with an OpenAI-compatible vLLM server on this machine, which this peer alone uses.

    load    release's file, linked into a folder -> the server loads it in place:
            all weights by its development endpoints, adapters by those for LoRA
    sample  one /v1/completions request a group, all groups of a call at once
            token ids in, tokens and log-probabilities out

A server that was started with this project's processor (vllm_processor.py) draws with the noise of
swarm.draws.noise, and its groups say so. Any other one draws with its own, and its groups name none; it must
compute log-probabilities after the temperature. Either must allow its weights to be replaced. All that is
tried before the first release and whenever the server did not answer or was restarted; the error has the
command that starts it correctly. Weights pass through a folder, and those endpoints have no authentication:
loopback only. After each load of all weights a few tokens that the server draws must have the
log-probabilities of `reference`; where there is no reference, they must at least have changed. Invariant:
samples come from the version that `load` returned for. Not handled here: starting the server, several users
of it.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from swarm.sample import vllm_noise
from swarm.sample.base import Completions, EngineError, NoRoom, SampleCounts, Stopped
from swarm.sample.scratch import Scratch
from swarm.sample.vllm import PROBE, PROCESSOR, LoadedRelease, Recipe, completions
from swarm.sample.vllm_noise import DrawnToken
from swarm.storage.weights import Weights
from swarm.types import Noise

QUICK = 30.0
"""Seconds for requests that need little computing."""

LARGEST_DIFFERENCE = 0.02
"""Nats a token: largest mean difference between the server and the reference; rounding to bfloat16 causes
less."""

SAME_LOGPROB = 1e-4
"""Nats: log-probabilities at two temperatures that differ by less are computed before the temperature."""

LEAST_SHOWN = 20
"""Most probable tokens that a server reports without `--max-logprobs`."""

Reference = Callable[[Path, Sequence[int]], list[float]]
"""(a release's folder, token ids) -> log-probabilities of all but the first, at temperature 1."""


class ServerRefused(EngineError):
    """The server answers a request with an error."""


class Connections:
    """Connections whose `close` may be called from any thread."""

    def __init__(self) -> None:
        self.closed = False
        self._open = set[socket.socket]()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def holding(self, one: socket.socket) -> Iterator[None]:
        """`one` is among them in the body. Raises Stopped where they are closed already."""
        with self._lock:
            if self.closed:
                raise Stopped
            self._open.add(one)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(one)

    def close(self) -> None:
        """Calls that wait for an answer on one of them read its end instead, and the server does so, too."""
        with self._lock:
            self.closed = True
            for one in self._open:
                # One with a complete answer may be closed already.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def address(url: str) -> tuple[str, int, str]:
    """Host, port and path of `peer.engine.url`. Raises ValueError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise ValueError(
            f"peer.engine.url = {url!r} is not a URL ({error}): write http://127.0.0.1:8000"
        ) from error
    if parts.scheme != "http" or not host:
        raise ValueError(
            f"peer.engine.url = {url!r} is not the URL of a vLLM server: write http://127.0.0.1:8000"
        )
    if not _loopback(host):
        raise ValueError(
            f"peer.engine.url names another machine ({host}): releases reach the server through files, so run"
            " this peer there"
        )
    return host, port, parts.path.rstrip("/").removesuffix("/v1")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServerEngine:
    """Calls come from one thread at a time; `stop` from any."""

    name = "vllm-server"

    def __init__(self, recipe: Recipe, model: str, reference: Reference | None = None) -> None:
        """`model`: the model for the server's command line, for messages. Raises ValueError for a URL that is
        no loopback HTTP address."""
        self._recipe, self._model, self._reference = recipe, model, reference
        self._host, self._port, self._path = address(recipe.settings.url)
        self._place = Scratch("server", 0o755)  # the server may be another user's
        self._scratch = self._place.path
        self._adapters = f"swarm-{os.getpid()}-{time.time_ns() % 1_000_000}"
        self._served = ""
        self._models: list[str] = []
        """Names under which the server answers: the model's, and those of adapters."""
        self._length = 0
        """Most tokens of a prompt and its completion together."""
        self._started: str | None = None
        """Start time of the server process that has loaded the release; None: it has to be loaded again."""
        self._held: LoadedRelease | None = None
        self._seen: Any = None
        self._noise = Noise.UNKNOWN
        self._sampling: Connections | None = None
        """Those of the current call."""
        self._counts = SampleCounts()

    @property
    def version(self) -> int:
        """The version that was loaded last; -1: none."""
        return -1 if self._held is None else self._held.version

    def load(self, weights: Weights) -> None:
        """See Engine."""
        release = LoadedRelease.within(self._scratch, weights)
        with release.in_place_of(self._held):
            try:
                self._write(release)
                self._take(release)
            except BaseException:
                self._started = None
                raise
            self._held = release

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        began, sampling = time.perf_counter(), self._recipe.sampling
        self._ready()
        shown = min(sampling.heads + 1, self._recipe.vocabulary) if sampling.heads else 0
        asked = [self._drawn(seed, group_size, sampling.temperature, shown) for seed in seeds]
        ids = self._recipe.tokenizer.encode(prompts)
        if (longest := max(map(len, ids), default=0)) > self._length - sampling.max_tokens:
            raise NoRoom(
                f"a prompt of {longest} tokens and {sampling.max_tokens} of completion do not fit into the"
                f" {self._length} of the vLLM server: start it with a larger --max-model-len if the model"
                " reads more, or the run needs shorter prompts or completions"
            )
        drawn = self._complete(ids, asked)
        groups = completions(drawn, self._recipe.tokenizer, self._noise, sampling.heads)
        self._counts.add(groups, began)
        return groups

    def greedy(self, prompts: Sequence[str]) -> list[str]:
        self._ready()
        ids, room = self._recipe.tokenizer.encode(prompts), self._length - self._recipe.sampling.max_tokens
        asked = [row for row in ids if len(row) <= room]
        groups = iter(self._complete(asked, [{"temperature": 0.0}] * len(asked)))
        rows: list[list[list[DrawnToken]]] = [next(groups) if len(row) <= room else [[]] for row in ids]
        return [group.texts[0] for group in completions(rows, self._recipe.tokenizer)]

    def stop(self) -> None:
        """The server ends requests whose client is gone."""
        if (sampling := self._sampling) is not None:
            sampling.close()

    def statistics(self) -> dict[str, float]:
        return {"version": self.version, **self._counts.statistics()}

    def close(self) -> None:
        self._place.remove()

    def _write(self, release: LoadedRelease) -> None:
        with self._place.writing():
            self._recipe.write(release.weights.blocks, release.folder)

    # --- the server -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the server answers and is configured as needed. Raises EngineError with the command that
        starts it correctly."""
        try:
            models = self._get("/v1/models")["data"]
            self._models = [str(model["id"]) for model in models]
            self._served, self._length = self._models[0], int(models[0]["max_model_len"])
        except (KeyError, IndexError, TypeError):
            raise EngineError(
                f"what answers at {self._recipe.settings.url} is not a vLLM server: {self._start()}"
            ) from None
        paths = self._get("/openapi.json").get("paths", {})
        if (needed := "/v1/load_lora_adapter" if self._recipe.rank else "/collective_rpc") not in paths:
            raise EngineError(
                f"{self._recipe.settings.url} does not let weights be replaced (no {needed}): {self._start()}"
            )
        if not self._process():
            raise EngineError(
                f"{self._recipe.settings.url} does not report when its process started, so that a restart,"
                " which brings other weights, would go unnoticed: start it as one API server and with"
                " PROMETHEUS_MULTIPROC_DIR unset"
            )
        self._noise = Noise.GUMBEL if self._proves() else Noise.UNKNOWN
        if self._noise:
            return
        if (sampling := self._recipe.sampling).replayable or sampling.heads:
            raise EngineError(
                "this run takes only groups that learners can replay, and"
                f" {self._recipe.settings.url} draws with its own: {self._start()}"
            )
        self._check_logprobs()

    def _proves(self) -> bool:
        """Whether the server draws with the noise that it is asked for."""
        heads = self._recipe.sampling.heads
        shown = min(max(vllm_noise.SHOWN, heads + 1), self._recipe.vocabulary)
        asked = named_noise(vllm_noise.PROOF, vllm_noise.PROVING, vllm_noise.HEAT, shown)
        try:
            [rows] = self._drawn_once(vllm_noise.probe(8, 100), vllm_noise.PROVING, asked)
        except ServerRefused as error:
            raise EngineError(f"{error}: {self._start()}") from None
        return vllm_noise.proven(rows, vllm_noise.PROOF, self._recipe.vocabulary)

    def _drawn_once(
        self, prompt: list[int], tokens: int, own: dict[str, Any]
    ) -> list[list[list[DrawnToken]]]:
        """The answer to one request, whose completions end after so many tokens."""
        asked = {**fixed(self._served, tokens), **own, "prompt": prompt}
        return parse_answers([self._post("/v1/completions", asked, self._recipe.settings.timeout)])

    def _drawn(self, seed: int, group: int, temperature: float, shown: int = 0) -> dict[str, Any]:
        """A group's part of its request."""
        if self._noise:
            return named_noise(seed, group, temperature, shown)
        return own_noise(seed, group, temperature)

    def _check_logprobs(self) -> None:
        """Raises EngineError when the server reports anything but log-probabilities after the temperature."""
        body = {**fixed(self._served, 1), "prompt": vllm_noise.probe(8, 100), "logprobs": 5, "seed": 1}
        bodies = [{**body, "temperature": heat} for heat in (1.0, 0.5)]
        hot, cold = (self._post("/v1/completions", body, self._recipe.settings.timeout) for body in bodies)
        tops = [
            sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values())[-3:]
            for answer in (hot, cold)
        ]
        if max(abs(a - b) for a, b in zip(*tops, strict=True)) < SAME_LOGPROB:
            raise EngineError(
                f"{self._recipe.settings.url} takes log-probabilities before the temperature: {self._start()}"
            )
        if max(sum(map(math.exp, top)) for top in tops) > 1 + SAME_LOGPROB:
            raise EngineError(
                f"{self._recipe.settings.url} reports logits for log-probabilities: {self._start()}"
            )

    def _take(self, release: LoadedRelease) -> None:
        """Make the server take this release. Raises EngineError."""
        started = self._process()
        if started != self._started:
            self.check()
        elif self._held is not None and self._held.digest == release.digest:
            return
        if self._recipe.rank:
            self._adapt(release)
        else:
            rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(release.folder)}}
            self._post("/collective_rpc", rpc, self._recipe.settings.timeout)
            if self._post("/reset_prefix_cache", {}, QUICK).get("success") is False:
                raise EngineError(
                    "the server could not empty its cache of prompts: does another client use it?"
                )
            self._verify(release, known=started == self._started)
        self._started = started

    def _adapt(self, release: LoadedRelease) -> None:
        """Load an adapter under a name of its own for each release: under a known name the server uses cached
        results of the old one, and it loads none that is loaded."""
        name = f"{self._adapters}-{release.folder.name}"
        if name not in self._models:
            what = {"lora_name": name, "lora_path": str(release.folder)}
            self._post("/v1/load_lora_adapter", what, self._recipe.settings.timeout)
            self._models.append(name)
        self._served = name
        for old in [each for each in self._models if each.startswith(self._adapters) and each != name]:
            self._post("/v1/unload_lora_adapter", {"lora_name": old}, QUICK)
            self._models.remove(old)

    def _verify(self, release: LoadedRelease, known: bool) -> None:
        """Raises EngineError when the server's tokens are not drawn from this release."""
        prompt = vllm_noise.probe(8, self._recipe.vocabulary)
        [[row]] = self._drawn_once(prompt, PROBE, self._drawn(1, 1, 1.0))
        tokens, seen = [each.token for each in row], [each.logprob for each in row]
        if self._reference is not None:
            expected = self._reference(release.folder, [*prompt, *tokens])[-len(tokens) :]
            apart = float(np.abs(np.subtract(seen, expected)).mean())
            if not apart <= LARGEST_DIFFERENCE:
                raise EngineError(
                    f"after an update in place the server is {apart:.2g} nats a token from version"
                    f" {release.version}: it keeps old weights (on a CPU vLLM does for tied embeddings); use"
                    " peer.engine.name = vllm instead"
                )
        elif known and (tokens, seen) == self._seen:
            raise EngineError(
                "after an update in place the server answers as before, to the last bit: restart it"
            )
        self._seen = tokens, seen

    def _ready(self) -> None:
        """Make a server that was started again take the last release."""
        if self._held is None:
            raise RuntimeError("no policy has been loaded")
        if self._process() != self._started:
            if not self._held.folder.exists():  # a cleaner of old files was there
                self._write(self._held)
            self._take(self._held)

    def _complete(
        self, prompts: Sequence[list[int]], parameters: Sequence[dict[str, Any]]
    ) -> list[list[list[DrawnToken]]]:
        common = {
            **fixed(self._served, self._recipe.sampling.max_tokens),
            "stop_token_ids": list(self._recipe.tokenizer.ends),
        }
        bodies = [{**common, **own, "prompt": ids} for ids, own in zip(prompts, parameters, strict=True)]
        seconds = self._recipe.settings.timeout
        self._sampling = sampling = Connections()
        try:
            with ThreadPoolExecutor(max(len(bodies), 1)) as pool:
                answers = list(
                    pool.map(lambda body: self._post("/v1/completions", body, seconds, sampling), bodies)
                )
        except EngineError:
            if sampling.closed:
                raise Stopped from None
            self._started = None
            raise
        finally:
            self._sampling = None
        return parse_answers(answers)

    def _process(self) -> str:
        """Start time of the server's process, which identifies it: another process has other weights. Empty
        where the server does not report it."""
        for line in self._ask("GET", "/metrics", None, QUICK).decode(errors="replace").splitlines():
            if line.startswith("process_start_time_seconds "):
                return line.split()[1]
        return ""

    # --- HTTP -----------------------------------------------------------------------------------------------

    def _get(self, path: str) -> dict[str, Any]:
        return _object(self._ask("GET", path, None, QUICK))

    def _post(
        self, path: str, body: dict[str, Any], seconds: float, among: Connections | None = None
    ) -> dict[str, Any]:
        return _object(self._ask("POST", path, json.dumps(body).encode(), seconds, among))

    def _ask(
        self, method: str, path: str, body: bytes | None, seconds: float, among: Connections | None = None
    ) -> bytes:
        """The body of an answer. Each request has its own connection, one of `among`: on loopback that costs
        nothing, and none can be stale."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        url = self._recipe.settings.url
        try:
            connection.connect()
            with (among or Connections()).holding(connection.sock):
                connection.request(method, self._path + path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
        except TimeoutError:
            slow = "if it is only slow, raise peer.engine.timeout"
            raise EngineError(f"{url} did not answer {path} within {seconds:g} s: {slow}") from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(
                f"no vLLM server answers at {url} ({error or type(error).__name__}): {self._start()}"
            ) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ServerRefused(f"{url} answered {path} with {answer.status}: {_reason(data)}")
        return data

    def _start(self) -> str:
        """The command that starts a fitting server."""
        adapters = self._recipe.rank
        mode = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" if adapters else "VLLM_SERVER_DEV_MODE=1"
        own = f" --enable-lora --max-lora-rank {self._recipe.room}" if adapters else ""
        if (shown := self._recipe.sampling.heads + 1) > LEAST_SHOWN:
            own += f" --max-logprobs {shown}"
        return (
            f"start it with {mode} python -m vllm.entrypoints.openai.api_server --model {self._model} --host"
            f" {self._host} --port {self._port} --logits-processors {PROCESSOR} --logprobs-mode"
            f" processed_logits{own}"
        )


def fixed(model: str, tokens: int) -> dict[str, Any]:
    """Fields that all requests share, for at most so many tokens; with a temperature, everything that a
    server would otherwise take from the model's generation_config.json."""
    return {
        "model": model,
        "max_tokens": tokens,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "skip_special_tokens": False,
    }


def own_noise(seed: int, group: int, temperature: float) -> dict[str, Any]:
    return {"n": group, "temperature": temperature, "seed": vllm_seed(seed)}


def named_noise(seed: int, group: int, temperature: float, shown: int = 0) -> dict[str, Any]:
    """`shown`: most probable tokens returned with each token. vLLM adds a completion's number to the seed of
    a request."""
    argument = vllm_noise.argument(seed, group, temperature)
    return {"n": group, "temperature": 1.0, "seed": 0, "logprobs": shown, "vllm_xargs": argument}


def vllm_seed(seed: int) -> int:
    """The seed of a group for a server's own noise: 62 bits, so that adding a completion's number neither
    overflows nor collides with another group."""
    return int(np.random.SeedSequence(seed % (1 << 64)).generate_state(1, np.uint64)[0]) >> 2


def parse_answers(answers: Sequence[dict[str, Any]]) -> list[list[list[DrawnToken]]]:
    """Answers of the completions endpoint, one for each group. Raises EngineError for a malformed answer."""
    try:
        groups = [sorted(answer["choices"], key=lambda choice: choice["index"]) for answer in answers]
        return [[_row(choice) for choice in choices] for choices in groups]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(
            f"the server's answer lacks what was asked for ({error!r}): vLLM 0.27 or later is needed"
        ) from error


def _row(choice: dict[str, Any]) -> list[DrawnToken]:
    tokens, logprobs = choice["token_ids"], choice["logprobs"]
    shown = logprobs["top_logprobs"] or [{}] * len(tokens)
    return [
        DrawnToken(int(np.int32(token)), {**_scores(others), token: _finite(score)})
        for token, score, others in zip(tokens, logprobs["token_logprobs"], shown, strict=True)
    ]


def _scores(others: dict[str, float]) -> dict[int, float]:
    return {int(name.removeprefix("token_id:")): score for name, score in others.items()}


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ValueError("a log-probability that is not finite")
    return score


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object; an empty answer gives an empty object, other text the object {"text": ...}."""
    try:
        answer = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"text": data.decode(errors="replace")}


def _reason(data: bytes) -> str:
    answer = _object(data)
    error = answer.get("error", answer)
    return str(error.get("message", error.get("detail", error)) if isinstance(error, dict) else error)[:500]
