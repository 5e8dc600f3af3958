"""Downloads individual files from a repository to the hub's cache.

The huggingface_hub library manages the cache, resolves names and holds locks. The HTTP download
itself is implemented here, because the library discards partial files when its process is
interrupted and doesn't verify checksums.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import DataLoss, Unavailable
from antiphon.runtime.checkpoint.safetensors_header import header_length
from antiphon_tools.hub.errors import explained
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.progress import TransferProgress
from antiphon_tools.hub.settings import HubSettings

if TYPE_CHECKING:
    import httpx2

PARALLEL = 4
BLOCK_BYTES = 1 << 20
HEADER_GUESS_BYTES = 1 << 16
"""The size of the first request for a header. The length of the header is in the first bytes of the
response.
"""
RETRIES = 5
"""The maximum number of consecutive attempts without progress before a download fails."""
LONGEST_PAUSE_S = 8.0
PARTIAL = ".antiphon.incomplete"
"""The suffix of incomplete blobs."""
GIT_DIGITS = 40
"""The length of a Git checksum. Other checksums are SHA-256."""
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a repository. `size` is 0 if the hub does not list it."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class _Content:
    """The expected content of a file.

    `digest` is its SHA-256, or Git's SHA-1 for a small file. It is also the name of the blob in the
    cache.
    """

    digest: str
    size: int | None


class _Stopped(Exception):
    """Raised if another file failed or the process was interrupted."""


class _Interrupted(Exception):
    """Raised if the response ended early or was a retryable error."""


class Downloads:
    """Downloads files from one commit of a repository in parallel.

    If a download is interrupted or its process is killed, it resumes at the same byte.
    """

    def __init__(self, model: HubId, commit: str, settings: HubSettings) -> None:
        self._model, self._commit, self._settings = model, commit, settings
        self._stopping = threading.Event()

    def cached(self, path: str) -> Path | None:
        """Return the path of the file in the cache, or None if it is not there."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(
            self._model.repository,
            path,
            cache_dir=self._settings.cache_dir,
            revision=self._commit,
        )
        return Path(found) if isinstance(found, str) else None

    def fetch(self, files: Iterable[RemoteFile], progress: TransferProgress | None = None) -> None:
        """Download files that are not in the cache, starting with the largest one.

        `progress` counts the bytes that are downloaded. Raises the errors of `explained`, and
        `DataLoss` if a checksum does not match.
        """
        missing = [each for each in files if self.cached(each.path) is None]
        missing.sort(key=lambda each: -each.size)
        with ThreadPoolExecutor(PARALLEL, "download") as pool:
            tasks = [pool.submit(self._fetch, each.path, progress) for each in missing]
            try:
                done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                self._stopping.set()
                for task in tasks:
                    task.cancel()
        self._stopping.clear()
        for failed in (each.exception() for each in done):
            if failed is not None and not isinstance(failed, _Stopped):
                raise failed

    def header(self, path: str) -> bytes:
        """Download only the header of a safetensors file.

        Raises the errors of `explained`, and `DataLoss` if the file isn't in the safetensors
        format.
        """
        with explained(self._model, self._settings):
            start = self._first_bytes(path, HEADER_GUESS_BYTES)
            length = header_length(start)
            if length is None:
                raise DataLoss(
                    f"{self._model}: {path}: is not a safetensors file; check HF_ENDPOINT and "
                    "proxies"
                )
            found = start if length <= len(start) else self._first_bytes(path, length)
        if len(found) < length:
            raise DataLoss(f"{self._model}: {path}: ends before the end of its header; try again")
        return found[:length]

    def _first_bytes(self, path: str, count: int) -> bytes:
        """Return the first `count` bytes of a file, or all bytes of a shorter file."""
        received = bytearray()
        with self._stream(path, {"Range": f"bytes=0-{count - 1}"}) as response:
            if response.status_code in _TRANSIENT:
                raise Unavailable(
                    f"{self._model}: {path}: the hub responded with status "
                    f"{response.status_code}; try again later"
                )
            # Some servers ignore the range. In this case, the rest of the response is not read.
            for chunk in response.iter_raw(min(count, BLOCK_BYTES)):
                received += chunk
                if len(received) >= count:
                    break
        return bytes(received[:count])

    def _fetch(self, path: str, progress: TransferProgress | None) -> None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils import WeakFileLock

        settings, repository = self._settings, self._model.repository
        with explained(self._model, settings):
            content = self._content(path)
            folder = repo_folder_name(repo_id=repository, repo_type="model")
            blob = settings.cache_dir / folder / "blobs" / content.digest
            lock = settings.cache_dir / ".locks" / folder / f"{content.digest}.antiphon.lock"
            blob.parent.mkdir(parents=True, exist_ok=True)
            lock.parent.mkdir(parents=True, exist_ok=True)
            # If two processes request the same file, the second one finds that it is already
            # complete.
            with WeakFileLock(lock):
                if not blob.exists():
                    self._receive_all(path, content, blob, progress)
                elif progress is not None:
                    progress.held(blob.stat().st_size)
            # This finds the blob and creates a link with the name of the file.
            hf_hub_download(
                repository,
                path,
                revision=self._commit,
                cache_dir=settings.cache_dir,
                token=settings.token or None,
                endpoint=settings.url,
            )

    def _content(self, path: str) -> _Content:
        from huggingface_hub import get_hf_file_metadata

        settings = self._settings
        found = get_hf_file_metadata(
            self._url(path),
            token=settings.token or None,
            endpoint=settings.url,
            retry_on_errors=True,
        )
        if found.etag is None or not _DIGEST.fullmatch(found.etag):
            raise DataLoss(
                f"{self._model}: {settings.url} returned no checksum for {path} (ETag "
                f"{found.etag!r}); set HF_ENDPOINT to a server with the hub's API"
            )
        return _Content(found.etag, found.size)

    def _url(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            self._model.repository, path, revision=self._commit, endpoint=self._settings.url
        )

    def _receive_all(
        self, path: str, content: _Content, blob: Path, progress: TransferProgress | None
    ) -> None:
        """Receive a blob. Attempts are repeated as long as they make progress."""
        import httpx2

        partial = blob.with_name(f"{blob.name}{PARTIAL}")
        received = partial.stat().st_size if partial.exists() else 0
        if progress is not None:
            progress.held(received)
        failures = 0
        while content.size is None or received != content.size:
            if self._stopping.is_set():
                raise _Stopped
            try:
                self._receive(path, partial, progress)
                if content.size is None or partial.stat().st_size >= content.size:
                    break
                raise _Interrupted("the response ended too early")
            except (httpx2.TransportError, _Interrupted) as error:
                now = partial.stat().st_size if partial.exists() else 0
                failures = 0 if now > received else failures + 1
                received = now
                if failures > RETRIES:
                    raise Unavailable(
                        f"{self._model}: downloading {path} failed: "
                        f"{error or type(error).__name__}; the next start continues after "
                        f"{received} bytes"
                    ) from error
                if failures:
                    self._stopping.wait(min(LONGEST_PAUSE_S, 2.0 ** (failures - 1)))
        self._check(path, partial, content)
        partial.replace(blob)

    def _receive(self, path: str, partial: Path, progress: TransferProgress | None) -> None:
        """Append the data of a single request to the file."""
        offset = partial.stat().st_size if partial.exists() else 0
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._stream(path, headers) as response:
            if response.status_code in _TRANSIENT:
                raise _Interrupted(f"the hub responded with status {response.status_code}")
            if offset and response.status_code != 206:
                partial.unlink()
                if progress is not None:
                    progress.add(-offset)
            self._write(response, partial, progress)

    @contextlib.contextmanager
    def _stream(self, path: str, more: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Open a response that contains the unmodified bytes of a file or a transient status."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = build_hf_headers(token=self._settings.token or None)
        # The token isn't sent to other hosts if the request is redirected.
        with get_session().stream(
            "GET",
            self._url(path),
            headers={**headers, "Accept-Encoding": "identity", **more},
            follow_redirects=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        ) as response:
            if response.status_code not in _TRANSIENT:
                hf_raise_for_status(response)
            yield response

    def _write(
        self, response: httpx2.Response, partial: Path, progress: TransferProgress | None
    ) -> None:
        with partial.open("ab") as file:
            for chunk in response.iter_raw():
                if self._stopping.is_set():
                    raise _Stopped
                file.write(chunk)
                file.flush()
                if progress is not None:
                    progress.add(len(chunk))

    def _check(self, path: str, partial: Path, content: _Content) -> None:
        """Raise `DataLoss` and remove the file if its digest does not match."""
        found = digest_of(partial, git=len(content.digest) == GIT_DIGITS)
        if found != content.digest:
            count = partial.stat().st_size
            partial.unlink()
            raise DataLoss(
                f"{self._model}: {path}: {count} bytes were received with the checksum {found}, "
                f"but the hub lists {content.digest}; try again, or check HF_ENDPOINT and "
                "proxies, which may change the content"
            )


def digest_of(path: Path, *, git: bool) -> str:
    """Return a file's SHA-256, or the SHA-1 of its Git blob, in hexadecimal."""
    with path.open("rb") as file:
        if not git:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
        return digest.hexdigest()
