"""A cache of features of recent recordings, by key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.errors import NotFound

Float32 = npt.NDArray[np.float32]


class MadeOnce:
    """Features computed on first access. Concurrent threads may each compute them."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Float32]) -> None:
        self._make: Callable[[], Float32] | None = make
        self._made: Float32 | None = None

    def features(self) -> Float32:
        """Return the features."""
        make, made = self._make, self._made
        if made is None:
            # `make` is released after the features are stored.
            made = self._made if make is None else make()
            assert made is not None
            self._made = made
            self._make = None
        return made


@dataclass(frozen=True, slots=True)
class KnownRecording:
    """A recording of `samples` samples, with its separate features [mel bins, frames] in `made`.

    The features take `size_bytes`.
    """

    key: bytes
    samples: int
    size_bytes: int
    made: MadeOnce

    def __len__(self) -> int:
        return self.samples


class KnownRecordings:
    """At most `most_bytes` of features, but always the latest recording's. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._known: OrderedDict[bytes, KnownRecording] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> KnownRecording | None:
        """Return the recording if it is cached."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def named(self, key: bytes, field: str) -> KnownRecording:
        """Return the recording. Raises `NotFound` with the field."""
        known = self.get(key)
        if known is None:
            raise NotFound(
                f"{field}: that recording is not known here any more; send its samples again",
                field=field,
            )
        return known

    def put(self, recording: KnownRecording) -> None:
        """Cache a recording. The least recently used ones are evicted."""
        with self._lock:
            before = self._known.pop(recording.key, None)
            self._bytes += recording.size_bytes - (before.size_bytes if before else 0)
            self._known[recording.key] = recording
            while self._bytes > self._most_bytes and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached features."""
        return self._bytes
