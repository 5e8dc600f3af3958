"""A cache that stores the features of recent recordings by key."""

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
    """Features that are computed on first access. If several threads access them at the same time,
    each thread may compute them.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Float32]) -> None:
        self._make: Callable[[], Float32] | None = make
        self._made: Float32 | None = None

    def features(self) -> Float32:
        """Return the features."""
        make, made = self._make, self._made
        if made is None:
            # `make` is released after the features have been stored.
            made = self._made if make is None else make()
            assert made is not None
            self._made = made
            self._make = None
        return made


@dataclass(frozen=True, slots=True)
class KnownRecording:
    """A recording that consists of `samples` samples. `made` contains its features [mel bins,
    frames], which were extracted separately.

    `size_bytes` is the size of the features.
    """

    key: bytes
    samples: int
    size_bytes: int
    made: MadeOnce

    def __len__(self) -> int:
        return self.samples


class KnownRecordings:
    """A cache for up to `most_bytes` bytes of features. The most recent recording is always kept,
    even if it is larger. This class is thread-safe.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._known: OrderedDict[bytes, KnownRecording] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> KnownRecording | None:
        """Return a recording, or None if it is not in the cache."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def named(self, key: bytes, field: str) -> KnownRecording:
        """Return a recording. Raises `NotFound` with the field name if it is not in the cache."""
        known = self.get(key)
        if known is None:
            raise NotFound(
                f"{field}: this recording is no longer cached; send its samples again",
                field=field,
            )
        return known

    def put(self, recording: KnownRecording) -> None:
        """Add a recording to the cache. Evict the least recently used recordings if necessary."""
        with self._lock:
            before = self._known.pop(recording.key, None)
            self._bytes += recording.size_bytes - (before.size_bytes if before else 0)
            self._known[recording.key] = recording
            while self._bytes > self._most_bytes and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.size_bytes

    @property
    def size_bytes(self) -> int:
        """The total size of the cached features in bytes."""
        return self._bytes
