"""The worker's end of the row connection. It sends rows from vLLM's paged memory without blocking
vLLM.

On an accelerator, rows are gathered on the stream that computed them, so that their blocks can be
reused immediately. Another stream copies them to the host, and a separate thread waits for the copy
and for the socket. Host memory is pinned once in advance, because pinning takes milliseconds. Rows
that don't fit into this memory have additional memory pinned for them.

The total size of waiting rows is limited, and the connector stops extracting rows while many bytes
are waiting. If the limit has been reached but rows must be extracted because their blocks are about
to be reused, the rows are dropped and the requests are reported as having lost rows. No other
requests fail.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from antiphon.transport.device_edge import Copies, Staging, copies_on, host_array
from antiphon_services.vllm.row_messages import encode_rows
from antiphon_services.vllm.spans import RowSpan

STAGING_BYTES = 64 << 20
"""The amount of pinned memory for rows in transfer and for the indices of their slots. Must be a
power of two.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """One step's rows while they are being transferred to the host. `arrive` waits for them.

    `places` contains views of the pinned memory that is in use. Releasing them frees this memory.
    """

    spans: Sequence[RowSpan]
    rows: torch.Tensor
    arrive: Callable[[], None]
    places: Sequence[memoryview] = ()

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes


class RowSender:
    """Sends rows over a connection. All methods except `close` must be called on the engine's
    thread.
    """

    def __init__(
        self,
        connection: Connection,
        most_bytes: int,
        copies: Copies | None = None,
        staging: Staging | None = None,
    ) -> None:
        """Create a sender. Up to `most_bytes` bytes can wait for the socket, except that the rows
        of a single step are always accepted.

        `copies` copies rows to the host, using `staging` as intermediate memory. Both are None if
        the rows are already on the host.
        """
        self._connection = connection
        self._limit = most_bytes
        self._waiting: deque[_Batch] = deque()
        self._waiting_bytes = 0
        self._lost: list[int] = []
        self._closed = False
        self._wake = threading.Condition()
        self._copies, self._staging = copies, staging
        self._thread = threading.Thread(target=self._run, name="hidden rows", daemon=True)
        self._thread.start()

    @classmethod
    def on(cls, device: torch.device, connection: Connection, most_bytes: int) -> RowSender:
        """Create a sender for rows on a device."""
        if device.type == "cpu":
            return cls(connection, most_bytes)
        staging = Staging(STAGING_BYTES, pinned=True)
        return cls(connection, most_bytes, copies_on(device), staging)

    def send_nowait(
        self, spans: Sequence[RowSpan], cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Send the rows in `slots` (int64 [n], on the host) of `cache` [blocks, 1, size, hidden].

        This call doesn't block. Rows that don't fit are dropped and reported as lost.
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
        """The number of bytes in rows that are waiting for the socket."""
        with self._wake:
            return self._waiting_bytes

    def close(self) -> None:
        """Stop sending. The thread closes the connection and ends."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _gather(self, spans: Sequence[RowSpan], cache: torch.Tensor, slots: torch.Tensor) -> _Batch:
        """Copy the rows out of paged memory and start their transfer to the host."""
        block_size = cache.shape[2]
        if self._copies is None:
            return _Batch(spans, cache[slots // block_size, 0, slots % block_size], _arrived)
        places: list[memoryview] = []
        pinned = self._pinned(slots.shape, slots.dtype, places).copy_(slots)
        there = pinned.to(cache.device, non_blocking=True)
        rows = cache[there // block_size, 0, there % block_size]
        host = self._pinned(rows.shape, rows.dtype, places)
        self._copies.begin(host, rows)
        return _Batch(spans, host, self._copies.mark().synchronize, places)

    def _pinned(
        self, shape: torch.Size, dtype: torch.dtype, places: list[memoryview]
    ) -> torch.Tensor:
        """Return pinned host memory. If it comes from the pool, a view of it is added to
        `places`.
        """
        taken = self._staging.take(shape.numel() * dtype.itemsize) if self._staging else None
        if taken is None:
            return torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_available())
        place, view = taken
        places.append(view)
        return place.view(dtype).view(shape)

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                self._connection.send_bytes(_message(*taken))
        except OSError as error:
            _log.error("the stage stopped reading hidden rows: %s", error)
        except Exception:
            _log.exception("hidden rows can no longer be sent")
        finally:
            with self._wake:
                self._closed = True
                self._waiting.clear()
            # The other end detects this and fails the requests that are waiting for rows.
            self._connection.close()

    def _take(self) -> tuple[_Batch | None, list[int]] | None:
        """Return the next rows and the requests that have lost rows, or None once the sender has
        been closed.
        """
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
    """Wait until the rows are on the host and return them as a message."""
    if batch is None:
        return encode_rows((), None, lost)
    batch.arrive()
    return encode_rows(batch.spans, host_array(batch.rows), lost)


def _arrived() -> None:
    """Do nothing, because the rows are already on the host."""
