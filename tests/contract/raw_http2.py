"""HTTP/2 as no gRPC library would send it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0
END_STREAM, END_HEADERS = 1, 4
MOMENT_S = 0.25

USUAL: Mapping[bytes, bytes] = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/antiphon.v1.Nobody/Asks",
    b":authority": b"localhost",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


async def sent(address: str, headers: Mapping[bytes, bytes], body: bytes = bytes(5)) -> bytes:
    """The first frame with which a server answers to a request with the usual headers and these;
    nothing where it ends the connection, or has said nothing after a moment."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    block = header_block(headers)
    writer.write(
        PREFACE
        + frame(SETTINGS, 0, 0, b"")
        + frame(HEADERS, END_HEADERS, 1, block)
        + frame(DATA, END_STREAM, 1, body)
    )
    try:
        async with asyncio.timeout(MOMENT_S):
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3]))
                if int.from_bytes(head[5:]) == 1:
                    return payload
    except (asyncio.IncompleteReadError, ConnectionResetError, TimeoutError):
        return b""
    finally:
        writer.close()


def header_block(headers: Mapping[bytes, bytes]) -> bytes:
    """The usual headers and these, none of them indexed."""
    return b"".join(_literal(name, value) for name, value in {**USUAL, **headers}.items())


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, of fewer than 127 bytes each."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
