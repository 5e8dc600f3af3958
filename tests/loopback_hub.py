"""A server of this process with the API of the Hugging Face hub, and one that it redirects to.

As on the hub, large files are redirected to another host, and their responses have the checksum in
`X-Linked-Etag`; small files have Git's checksum as their ETag.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE_BYTES = 4096
"""Files of so many bytes are redirected."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Asked:
    """A request that came: where to, and what of its head tests look at."""

    host: str
    method: str
    path: str
    authorization: str | None
    range: str | None


@dataclass
class LoopbackHub:
    """Repositories, by id: the directories of their files. Tests change how they are served."""

    repositories: Mapping[str, Path]
    revisions: tuple[str, ...] = ("main",)
    """Names of the one commit, `COMMIT`."""
    gated: bool = False
    token: str = ""
    """The only one that reads anything; empty: none is needed."""
    listing: Callable[[dict[str, object]], dict[str, object]] | None = None
    """Changes what is listed."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """By the name of a large file: its responses end after so many bytes of the body, one each."""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """By the name of a large file: its next responses have these statuses."""
    ranges: bool = True
    damaged: str = ""
    """The name of a large file of which a byte changes on its way."""
    stall: str = ""
    """The name of a large file that stops in its middle, and `stalled` is set.

    Its connection buffers less than it sends, so that the client has read of it by then.
    """
    stalled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    storage_url: str = ""

    def asked_for(self, name: str, method: str = "GET") -> list[Asked]:
        """The requests for a file that reached what serves it."""
        return [each for each in self.asked if each.path.endswith(name) and each.method == method]


@contextmanager
def loopback_hub(repositories: Mapping[str, Path]) -> Iterator[LoopbackHub]:
    """The hub, running at `url`, with its storage at another address of this host."""
    hub = LoopbackHub(repositories)
    with _serving(hub, "127.0.0.1") as hub.url, _serving(hub, "127.0.0.2") as hub.storage_url:
        try:
            yield hub
        finally:
            hub.closing.set()


@contextmanager
def _serving(hub: LoopbackHub, host: str) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer((host, 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests look at `asked`."""

    def handle(self) -> None:
        # A client that is stopped resets its connections.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        hub, headers = self.hub, self.headers
        hub.asked.append(
            Asked(
                str(self.server.server_address[0]),
                self.command,
                path,
                headers["Authorization"],
                headers["Range"],
            )
        )
        if found := re.fullmatch("/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._list(found[1], found[2])
        elif found := re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*found.groups())
        elif found := re.fullmatch("/stored/([^/]+/[^/]+)/(.+)", path):
            self._send_large(hub.repositories[found[1]] / found[2])
        else:
            self._refuse(404, "EntryNotFound")

    def _list(self, repository: str, revision: str) -> None:
        if self._is_refused(repository, revision):
            return
        folder = self.hub.repositories[repository]
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        listed: dict[str, object] = {
            "id": repository,
            "modelId": repository,
            "sha": COMMIT,
            "siblings": [_sibling(folder, each) for each in files],
        }
        body = json.dumps(self.hub.listing(listed) if self.hub.listing else listed).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        if self._is_refused(repository, revision):
            return
        if self.hub.gated:
            self._refuse(403 if self.headers["Authorization"] else 401, "GatedRepo")
            return
        path = self.hub.repositories[repository] / name
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        size = path.stat().st_size
        if size < LARGE_BYTES:
            etag = _git_sha1(path.read_bytes())
            self._send(200, path.read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
            return
        etag = _sha256(path)
        self._send(
            302,
            b"",
            {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{etag}"',
                "X-Linked-Size": str(size),
                "Location": f"{self.hub.storage_url}/stored/{repository}/{name}",
            },
        )

    def _is_refused(self, repository: str, revision: str) -> bool:
        hub = self.hub
        if hub.token and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repository not in hub.repositories:
            # The hub answers so, to reveal no names of private models.
            self._refuse(401, "RepoNotFound")
        elif revision not in (*hub.revisions, COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            return False
        return True

    def _send_large(self, path: Path) -> None:
        hub, size = self.hub, path.stat().st_size
        if statuses := hub.statuses.get(path.name):
            self._refuse(statuses.pop(0), "")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        ranged = wanted if hub.ranges else None
        first = int(ranged[1]) if ranged else 0
        end = min(int(ranged[2]) + 1, size) if ranged and ranged[2] else size
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        if path.name == hub.stall:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        cuts = hub.cuts.get(path.name)
        left = cuts.pop(0) if cuts else size // 2 if path.name == hub.stall else end - first
        with path.open("rb") as file:
            file.seek(first)
            while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
                changed = bytes([block[0] ^ 1]) + block[1:]
                self.wfile.write(changed if path.name == hub.damaged else block)
                left -= len(block)
        if path.name == hub.stall:
            self.wfile.flush()
            hub.stalled.set()
            hub.closing.wait()
        if left <= 0:
            self.close_connection = True

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, b"{}", {name: value for name, value in headers.items() if value})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(folder: Path, path: Path) -> dict[str, object]:
    size = path.stat().st_size
    described: dict[str, object] = {
        "rfilename": path.relative_to(folder).as_posix(),
        "size": size,
        "blobId": "0" * 40,
    }
    if size >= LARGE_BYTES:
        described["lfs"] = {"sha256": _sha256(path), "size": size, "pointerSize": 134}
    return described


_checksums: dict[tuple[Path, int, int], str] = {}


def _sha256(path: Path) -> str:
    told = path.stat()
    key = (path, told.st_size, told.st_mtime_ns)
    if key not in _checksums:
        with path.open("rb") as file:
            _checksums[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _checksums[key]


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
