"""An HTTP server on loopback that imitates a Hugging Face hub and Ollama's registry.

Like the real ones it has a listing with sizes and hashes, redirects to another address (the CDN),
byte ranges, and error codes in X-Error-Code. `Faults` make it misbehave.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PATIENCE_S = 20  # less than that of a download


@dataclass
class Faults:
    """Faults of the server. A callable decides for each request for a file's bytes.

    cut: returns the bytes after which the connection is closed, None for no cut.
    """

    cut: Callable[[int], int | None] = lambda n_requests: None
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # before real ones
    api_answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    has_ranges: bool = True
    corrupt: bool = False
    corrupt_requests: int = 10**9  # requests whose bytes are corrupted, with `corrupt`
    listed_size_is_off_by: int = 0
    stated_size_is_off_by: int = 0
    wrong_range: bool = False
    bytes_per_s: float | None = None
    held: threading.Event | None = None  # files are sent when it is set
    gated: bool = False
    no_hash: bool = False
    other_server: str | None = None  # the address that files are redirected to


class FakeHub:
    """The server. repos: repository -> path -> bytes. tokens: tokens with access to gated files."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.faults = Faults()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.n_file_requests = 0
        self.lock = threading.Lock()
        server = self

        class Handler(_Handler):
            hub = server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def add(self, repo: str, files: dict[str, bytes]) -> None:
        """Add files to a repository."""
        self.repos.setdefault(repo, {}).update(files)
        self.blobs.update({hashlib.sha256(data).hexdigest(): data for data in files.values()})

    def add_ollama(self, model: str, tag: str, gguf: bytes, media_type: str | None = None) -> None:
        """Add a model to the registry: a GGUF layer, a template and a configuration."""
        kinds = [
            (media_type or "application/vnd.ollama.image.model", gguf),
            ("application/vnd.ollama.image.template", b"{{ .Prompt }}"),
        ]
        layers = [self._layer(kind, data) for kind, data in kinds]
        config = self._layer("application/vnd.docker.container.image.v1+json", b"{}")
        manifest = {"schemaVersion": 2, "config": config, "layers": layers}
        self.manifests[f"{model}/manifests/{tag}"] = json.dumps(manifest).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _layer(self, media_type: str, data: bytes) -> dict[str, object]:
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": len(data)}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        with self.hub.lock:
            self.hub.requests.append((path, {k.lower(): v for k, v in self.headers.items()}))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._listing(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[3])
        elif found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            self._bytes(self.hub.blobs.get(found[1]))
        elif found := re.fullmatch(r"/v2/(.+/manifests/.+)", path):
            self._manifest(found[1])
        elif found := re.fullmatch(r"/v2/.+/blobs/sha256:([0-9a-f]{64})", path):
            self._redirect(f"/cdn/{found[1]}")
        else:
            self._answer(404, b"", {})

    def _listing(self, repo: str, revision: str) -> None:
        faults = self.hub.faults
        if faults.api_answers:
            status, headers = faults.api_answers.pop(0)
            return self._answer(status, b"", headers)
        if repo not in self.hub.repos:
            return self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", COMMIT):
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for path, data in self.hub.repos[repo].items():
            size = len(data) + faults.listed_size_is_off_by
            entry: dict[str, object] = {"rfilename": path, "size": size, "blobId": "ab" * 20}
            if not faults.no_hash:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
            siblings.append(entry)
        info = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        return self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, path: str) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.faults.gated and token not in self.hub.tokens:
            status = 403 if token else 401
            return self._answer(status, b"", {"X-Error-Code": "GatedRepo"})
        data = self.hub.repos.get(repo, {}).get(path)
        if data is None:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        base = self.hub.faults.other_server or ""
        return self._redirect(f"{base}/cdn/{hashlib.sha256(data).hexdigest()}")

    def _manifest(self, key: str) -> None:
        text = self.hub.manifests.get(key)
        if self.hub.faults.api_answers:
            status, headers = self.hub.faults.api_answers.pop(0)
            return self._answer(status, b"", headers)
        return self._answer(200 if text else 404, text or b"", {})

    def _redirect(self, location: str) -> None:
        self._answer(302, b"", {"Location": location})

    def _bytes(self, data: bytes | None) -> None:
        faults = self.hub.faults
        with self.hub.lock:
            self.hub.n_file_requests += 1
            n_requests = self.hub.n_file_requests
            answer = faults.answers.pop(0) if faults.answers else None
        if answer is not None:
            return self._answer(answer[0], b"", answer[1])
        if faults.held is not None:
            faults.held.wait(PATIENCE_S)
        if data is None:
            return self._answer(404, b"", {})
        if faults.corrupt and n_requests <= faults.corrupt_requests:
            data = bytes([data[0] ^ 1]) + data[1:]
        total = len(data) + faults.stated_size_is_off_by
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not faults.has_ranges:
            return self._send(200, data, {"Content-Length": str(total)}, n_requests)
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        claimed = start + 1 if faults.wrong_range else start
        headers = {
            "Content-Range": f"bytes {claimed}-{end - 1}/{total}",
            "Content-Length": str(end - start),
        }
        return self._send(206, data[start:end], headers, n_requests)

    def _send(self, status: int, data: bytes, headers: dict[str, str], n_requests: int) -> None:
        cut = self.hub.faults.cut(n_requests)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._write(data if cut is None else data[:cut])
        except OSError:
            self.close_connection = True
        if cut is not None:
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        rate = self.hub.faults.bytes_per_s
        if rate is None:
            self.wfile.write(data)
            return
        step = max(1, int(rate / 50))
        for start in range(0, len(data), step):
            self.wfile.write(data[start : start + step])
            self.wfile.flush()
            time.sleep(step / rate)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
