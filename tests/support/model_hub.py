"""A model hub on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from swarm.learn.models import tiny

COMMIT = "c" * 40


UNWANTED = ("modeling_mine.py", "pytorch_model.bin", "original/copy.safetensors")
"""Code, pickles, and the weights once more."""


class Hub(BaseHTTPRequestHandler):
    """What the Hub says of `org/tiny` (main and one commit), of `org/gated`, and of everything else."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        api = "/api/models/org/"
        if path.startswith(("/api/models/org/gated", "/org/gated")):
            return self._say(
                403, {"error": "Access to model org/gated is restricted"}, {"X-Error-Code": "GatedRepo"}
            )
        if path in (f"{api}tiny", f"{api}tiny/revision/main", f"{api}tiny/revision/{COMMIT}"):
            return self._say(200, {"id": "org/tiny", "sha": COMMIT, "siblings": []})
        if path.startswith(f"{api}tiny/revision/"):
            return self._say(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if path == f"{api}tiny/tree/{COMMIT}":
            names = [*(file.name for file in self.folder.iterdir()), *UNWANTED]
            return self._say(
                200,
                [{"type": "file", "path": n, "size": self._size(n), "oid": n.encode().hex()} for n in names],
            )
        place = self.folder / path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        if path.startswith("/org/tiny/resolve/") and place.exists():
            return self._say(
                200, place.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{place.name.encode().hex()}"'}
            )
        return self._say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _size(self, name: str) -> int:
        return (self.folder / name).stat().st_size if (self.folder / name).exists() else 1

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


def point(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """As HF_ENDPOINT does, which is read when the client is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )


@contextmanager
def served(kind: type[BaseHTTPRequestHandler], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server on this machine is the Hub."""
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        point(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()
