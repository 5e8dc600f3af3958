"""A DNS server for one name, of which a test says the address."""

from __future__ import annotations

import socket
import struct
import threading

NAME = "gateway.test"
_A, _IN = 1, 1
_NOT_FOUND = 3


class NameServer(threading.Thread):
    """Answers over UDP on a free port. `host` is the name's IPv4 address; None: there is none."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.host: str | None = None
        self._asked = threading.Semaphore(0)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]
        self.start()

    def target(self, port: int) -> str:
        """A gRPC target: the name, resolved here, with that port."""
        return f"dns://127.0.0.1:{self._port}/{NAME}:{port}"

    def wait_asked(self, times: int) -> None:
        """Return when the name has been asked for so often again."""
        for _ in range(times):
            assert self._asked.acquire(timeout=240)

    def run(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(512)
            if not query:
                return
            self._socket.sendto(self._answer(query), sender)

    def close(self) -> None:
        """Serve no more."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", ("127.0.0.1", self._port))
        self.join()
        self._socket.close()

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", 12) + 5
        question, (kind,) = query[12:end], struct.unpack("!H", query[end - 4 : end - 2])
        host = self.host
        found = b""
        if host is not None and kind == _A:
            found = b"\xc0\x0c" + struct.pack("!HHIH", _A, _IN, 0, 4) + socket.inet_aton(host)
        if kind == _A:
            self._asked.release()
        flags = 0x8180 | (0 if host is not None else _NOT_FOUND)
        return query[:2] + struct.pack("!HHHHH", flags, 1, bool(found), 0, 0) + question + found
