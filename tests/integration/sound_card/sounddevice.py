"""A sound card for the examples: its microphone has $RECORDING, then silence, and what its
loudspeaker plays is appended to the file $HEARD.
"""

from __future__ import annotations

import os
import threading
import wave
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

SAMPLE_BYTES = 2
default = SimpleNamespace(device=(0, 0))


def query_devices(device: int | None = None, kind: str | None = None) -> dict[str, str]:
    """The only device of each kind."""
    return {"name": f"{kind} {device}"}


def write_heard(samples: bytes | memoryview) -> None:
    """The loudspeaker plays these."""
    if path := os.environ.get("HEARD"):
        with Path(path).open("ab") as file:
            file.write(samples)


class _Stream(ABC):
    """Calls back once for each block, at the rate of the samples."""

    def __init__(
        self,
        callback: Callable[..., Any],
        samplerate: int,
        channels: int,
        dtype: str,
        blocksize: int = 960,
        device: int | None = None,
    ) -> None:
        assert (channels, dtype) == (1, "int16")
        self._callback, self._blocksize = callback, blocksize
        self._period_s = blocksize / samplerate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    close = stop

    @abstractmethod
    def block(self) -> Any:
        """What the callback is given."""

    @abstractmethod
    def done(self, block: Any) -> None:
        """The callback has returned."""

    def run(self) -> None:
        now = SimpleNamespace(currentTime=0.0, inputBufferAdcTime=0.0, outputBufferDacTime=0.0)
        while not self._over.wait(self._period_s):
            piece = self.block()
            self._callback(piece, self._blocksize, now, None)
            self.done(piece)


class RawInputStream(_Stream):
    """The microphone."""

    def run(self) -> None:
        with wave.open(os.environ["RECORDING"]) as self._file:
            super().run()

    def block(self) -> Any:
        piece = self._file.readframes(self._blocksize)
        return piece.ljust(SAMPLE_BYTES * self._blocksize, b"\0")

    def done(self, block: Any) -> None:
        """It has been heard."""


class InputStream(RawInputStream):
    """The microphone, for callbacks that take arrays."""

    def block(self) -> Any:
        import numpy as np

        return np.frombuffer(super().block(), np.int16).reshape(-1, 1)


class RawOutputStream(_Stream):
    """The loudspeaker."""

    def block(self) -> Any:
        return memoryview(bytearray(SAMPLE_BYTES * self._blocksize))

    def done(self, block: Any) -> None:
        write_heard(bytes(block))


class OutputStream(RawOutputStream):
    """The loudspeaker, for callbacks that fill arrays."""

    def block(self) -> Any:
        import numpy as np

        return np.zeros((self._blocksize, 1), np.int16)
