"""A connection that can be cut, be paused, or lose or damage the data that it carries."""

from __future__ import annotations

import asyncio
import contextlib
import random


class CutWire:
    """A TCP proxy for an address. It can cut or pause connections, or lose or damage the bytes that
    they carry.
    """

    def __init__(self, target: str) -> None:
        self.redirect(target)
        self._writers: set[asyncio.StreamWriter] = set()
        self._joined: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._swallowed: set[asyncio.StreamWriter] = set()
        self._closed = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.address = ""
        self.damaged = 0
        self._chance = random.Random(0)
        self._passing = 0
        self._misspelt = b""
        self._last = b"_"

    async def open(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def redirect(self, target: str) -> None:
        """Forward new connections to a different address."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)

    def damage(self, chance: random.Random, passing: int = 0) -> None:
        """Change one byte of a transmitted piece, in either direction, after this many pieces."""
        self._chance, self._passing = chance, passing + 1

    def misspell(self, word: bytes, last: bytes = b"_") -> None:
        """Change the last byte of `word` the first time it is transmitted within a single piece."""
        self._misspelt, self._last = word, last

    def cut(self) -> None:
        """Break all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    def swallow(self) -> None:
        """From now on, discard everything that is sent on the present connections, in both
        directions. They stay open, and new connections work.
        """
        self._swallowed |= self._writers

    async def close(self) -> None:
        """Cut all connections and stop listening."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        self.flowing.set()
        self.cut()
        if self._joined:
            await asyncio.wait(self._joined)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # From now on, this connection is cut together with the others. The proxy may have been
        # closed in the meantime.
        self._writers.add(writer)
        if self._closed:
            writer.transport.abort()
        task = asyncio.create_task(self._join(reader, writer))
        self._joined.add(task)
        task.add_done_callback(self._joined.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = {writer}
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
            both.add(back)
            self._writers.add(back)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back))
                pumps.create_task(self._pump(there, writer))
        except* OSError:
            pass  # Cut, or nobody there: that is what it is for.
        finally:
            self._writers -= both
            self._swallowed -= both
            for each in both:
                each.transport.abort()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(1 << 16):
            await self.flowing.wait()
            if target in self._swallowed:
                continue
            target.write(self._passed(piece))
            await target.drain()
        raise ConnectionResetError

    def _passed(self, piece: bytes) -> bytes:
        if self._misspelt and self._misspelt in piece:
            word, self._misspelt = self._misspelt, b""
            self.damaged += 1
            return piece.replace(word, word[:-1] + self._last, 1)
        if not self._passing:
            return piece
        self._passing -= 1
        if self._passing:
            return piece
        self.damaged += 1
        changed = bytearray(piece)
        changed[self._chance.randrange(len(piece))] ^= self._chance.randint(1, 255)
        return bytes(changed)
