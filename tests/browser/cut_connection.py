"""A way to the gateway that can be cut, beside a browser whose calls block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from antiphon_testkit.cut_wire import CutWire


class CutConnection:
    """`url` leads to the gateway until `cut`, and again after it."""

    def __init__(self, wire: CutWire, loop: asyncio.AbstractEventLoop) -> None:
        self._wire = wire
        self._loop = loop
        self.url = f"http://{wire.address}"

    def cut(self) -> None:
        """Break every connection at once."""
        self._loop.call_soon_threadsafe(self._wire.cut)


@contextmanager
def cut_connection(url: str) -> Iterator[CutConnection]:
    """To the gateway at that URL."""
    wire = CutWire(urlsplit(url).netloc)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.run_until_complete(wire.open())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield CutConnection(wire, loop)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(wire.close())
