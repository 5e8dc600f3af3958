"""Implements the stage's end of the row connection, which receives hidden rows from vLLM's workers.

The socket has no name in the file system, so nothing has to be cleaned up. A client must prove that
it knows a secret (HMAC challenge).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor
from antiphon_services.vllm.row_messages import MAX_MESSAGE_BYTES, decode_rows
from antiphon_services.vllm.spans import RowSpan

_FAMILY = "AF_UNIX"
_SECRET_BYTES = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowAddress:
    """The address to which workers send rows. It is in hexadecimal form, so that it can be part of
    a configuration.
    """

    name: str
    secret: str

    def connect(self) -> Connection:
        """Connect as a worker. Raises `OSError` or `AuthenticationError` if the connection
        fails.
        """
        return Client(f"\0{self.name}", _FAMILY, authkey=bytes.fromhex(self.secret))


class RowReceiver:
    """Accepts connections until `close` is called. All callbacks run on threads of this object.

    `rows` is called with each span and its rows [count, hidden]. `lost` is called with the number
    of each request that has lost rows. `broken` is called when a worker's connection ends. Its
    argument is the value that `life` returned when the connection began.
    """

    def __init__(
        self,
        *,
        rows: Callable[[RowSpan, Tensor], None],
        lost: Callable[[int], None],
        broken: Callable[[int], None],
        life: Callable[[], int],
    ) -> None:
        self._rows, self._lost, self._broken, self._life = rows, lost, broken, life
        name = f"antiphon-rows-{secrets.token_hex(16)}"
        self.address = RowAddress(name, secrets.token_hex(_SECRET_BYTES))
        self._listener = Listener(f"\0{name}", _FAMILY, authkey=bytes.fromhex(self.address.secret))
        self._closed = False
        threading.Thread(target=self._accept, name="hidden rows", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections. Existing connections end when their workers do."""
        self._closed = True
        # A blocked `accept` doesn't notice that its socket has been closed, so wake it by
        # connecting once more.
        with contextlib.suppress(OSError, EOFError, AuthenticationError):
            self.address.connect().close()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError) as error:
                if self._closed:
                    return
                _log.warning("a connection for hidden rows was rejected: %s", error)
                continue
            if self._closed:
                connection.close()
                return
            threading.Thread(
                target=self._read, args=(connection, self._life()), name="hidden rows", daemon=True
            ).start()

    def _read(self, connection: Connection, life: int) -> None:
        try:
            while True:
                arrived, lost = decode_rows(connection.recv_bytes(MAX_MESSAGE_BYTES))
                for span, rows in arrived:
                    self._rows(span, rows)
                for number in lost:
                    self._lost(number)
        except (OSError, EOFError, ValueError, TypeError, DataLoss) as error:
            connection.close()
            if not self._closed:
                _log.warning("a worker's connection for hidden rows ended: %r", error)
                self._broken(life)
