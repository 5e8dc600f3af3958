"""The worker's end: rows leave vLLM's paged memory without ever stopping the engine.

On an accelerator the rows are gathered on the stream that computed them, so that their
blocks may be reused at once; another stream copies them to the host, and this object's
thread waits for the copy and for the socket. What waits is bounded in bytes. The connector
takes no more out while `waiting_bytes` are many; where it must, because blocks are about to be
used again, and the bound is hit, the rows are dropped and their requests reported as lost,
which fails those alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from antiphon.transport.device_edge import host_array
from services.vllm.row_messages import encode_rows
from services.vllm.spans import RowSpan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of one step on their way to the host; `arrive` returns when they are there."""

    spans: Sequence[RowSpan]
    rows: torch.Tensor
    arrive: Callable[[], None]

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes


class RowSender:
    """Sends rows over a connection. Everything but `close` is called on the engine's thread."""

    def __init__(self, connection: Connection, most_bytes: int) -> None:
        """At most `most_bytes` wait for the socket; one step's rows always may."""
        self._connection = connection
        self._limit = most_bytes
        self._waiting: deque[_Batch] = deque()
        self._waiting_bytes = 0
        self._lost: list[int] = []
        self._closed = False
        self._wake = threading.Condition()
        self._copies: torch.cuda.Stream | None = None
        self._thread = threading.Thread(target=self._run, name="hidden rows", daemon=True)
        self._thread.start()

    def send_nowait(
        self, spans: Sequence[RowSpan], cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Send the rows in `slots` (int64 [n], on the host) of `cache` [blocks, 1, size, hidden].

        Never waits. Rows that find no room are lost, and their requests are told so.
        """
        size = len(slots) * cache.shape[3] * cache.element_size()
        with self._wake:
            if self._closed:
                return
            if self._waiting and self._waiting_bytes + size > self._limit:
                self._lost += sorted({span.number for span in spans})
                self._wake.notify()
                return
        batch = self._gather(spans, cache, slots)
        with self._wake:
            self._waiting.append(batch)
            self._waiting_bytes += batch.size_bytes
            self._wake.notify()

    @property
    def waiting_bytes(self) -> int:
        """Rows that wait for the socket."""
        with self._wake:
            return self._waiting_bytes

    def close(self) -> None:
        """Send no more; the thread closes the connection and ends."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _gather(self, spans: Sequence[RowSpan], cache: torch.Tensor, slots: torch.Tensor) -> _Batch:
        """Copy the rows out of paged memory and begin their way to the host."""
        block_size = cache.shape[2]
        if cache.device.type == "cpu":
            return _Batch(spans, cache[slots // block_size, 0, slots % block_size], _arrived)
        if self._copies is None:
            self._copies = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        on_device = slots.pin_memory().to(cache.device, non_blocking=True)
        rows = cache[on_device // block_size, 0, on_device % block_size]
        self._copies.wait_stream(torch.cuda.current_stream(cache.device))
        with torch.cuda.stream(self._copies):
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            rows.record_stream(self._copies)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._copies)
        return _Batch(spans, host, copied.synchronize)

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                self._connection.send_bytes(_message(*taken))
        except OSError as error:
            _log.error("the stage takes no more hidden rows: %s", error)
        except Exception:
            _log.exception("hidden rows can no longer be sent")
        finally:
            with self._wake:
                self._closed = True
                self._waiting.clear()
            # The other end finds out by this, and fails what waits for rows.
            self._connection.close()

    def _take(self) -> tuple[_Batch | None, list[int]] | None:
        """The next rows and who has lost some; None when closed."""
        with self._wake:
            while not (self._waiting or self._lost or self._closed):
                self._wake.wait()
            if self._closed:
                return None
            batch = self._waiting.popleft() if self._waiting else None
            self._waiting_bytes -= batch.size_bytes if batch else 0
            lost, self._lost = self._lost, []
            return batch, lost


def _message(batch: _Batch | None, lost: Sequence[int]) -> bytes:
    """One message; waits until the rows are on the host."""
    if batch is None:
        return encode_rows((), None, lost)
    batch.arrive()
    return encode_rows(batch.spans, host_array(batch.rows), lost)


def _arrived() -> None:
    """Rows that are on the host already."""
