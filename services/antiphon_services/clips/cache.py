"""Caches the results for recent clips, because most voices are cloned repeatedly."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

KEPT_CLIPS = 64
"""The maximum number of results in the cache. Each result takes up some tens of KB."""

Samples = npt.NDArray[np.float32]
Result = TypeVar("Result")


class ClipCache(Generic[Result]):
    """Calls `encode` once for each clip and keeps the last `KEPT_CLIPS` results.

    If several threads request the same new clip at the same time, each of them may encode it.
    """

    def __init__(self, encode: Callable[[Samples], Result]) -> None:
        self._encode = encode
        self._known: OrderedDict[bytes, Result] = OrderedDict()
        self._state = threading.Lock()

    def of(self, samples: Samples) -> Result:
        """Return the result for samples float32 [n]. Callers share this object. This method is
        thread-safe.
        """
        key = hashlib.blake2b(np.ascontiguousarray(samples).data, digest_size=16).digest()
        with self._state:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = self._encode(samples)
        with self._state:
            self._known[key] = made
            if len(self._known) > KEPT_CLIPS:
                self._known.popitem(last=False)
        return made
