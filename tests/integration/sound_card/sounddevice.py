"""A sound card for `examples/microphone.py`: its microphone has $RECORDING, then silence."""

from __future__ import annotations

import os
import threading
import wave
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

SAMPLE_BYTES = 2


class _Stream(ABC):
    """Calls back once for each block, at the rate of the samples."""

    def __init__(
        self,
        callback: Callable[..., None],
        samplerate: int,
        channels: int,
        dtype: str,
        blocksize: int = 960,
    ) -> None:
        assert (channels, dtype) == (1, "int16")
        self._callback, self._blocksize = callback, blocksize
        self._period_s = blocksize / samplerate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _block(self) -> Any:
        """What the callback is given."""

    def run(self) -> None:
        while not self._over.wait(self._period_s):
            self._callback(self._block(), self._blocksize, None, None)


class RawInputStream(_Stream):
    """The microphone."""

    def run(self) -> None:
        with wave.open(os.environ["RECORDING"]) as self._file:
            super().run()

    def _block(self) -> bytes:
        piece = self._file.readframes(self._blocksize)
        return piece.ljust(SAMPLE_BYTES * self._blocksize, b"\0")


class RawOutputStream(_Stream):
    """The loudspeaker."""

    def _block(self) -> memoryview:
        return memoryview(bytearray(SAMPLE_BYTES * self._blocksize))
