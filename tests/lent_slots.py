"""Chunks whose tensors are views of a transport's memory, as a link of shared memory has them."""

from __future__ import annotations

import gc
import os
from types import TracebackType

import numpy as np
from msgspec import structs

from antiphon.runtime.engine import InputChunk
from antiphon.transport.payload.slab import UNIT_BYTES, AttachedSlab, Slab
from antiphon.transport.payload.transport import NotPlaced
from antiphon.wire.blob import Encoding, decode

CAPACITY = 1024 * UNIT_BYTES
NOISE = np.random.default_rng(0).integers(0, 256, UNIT_BYTES // 2, np.uint8)


class LentSlots:
    """A slab with both of its ends, within its context."""

    def __init__(self) -> None:
        self._slab = Slab(CAPACITY)
        self._attached = AttachedSlab(os.dup(self._slab.fd), CAPACITY)

    def __enter__(self) -> LentSlots:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._slab.close()

    def lend(self, chunk: InputChunk) -> InputChunk:
        """The chunk with its tensors in a slot, which is free again when the last view has died."""
        encoding = Encoding(chunk.tensors)
        offset, generation = self._slab.place(encoding)
        views = decode(self._attached.view(offset, generation, encoding.size_bytes))
        return structs.replace(chunk, tensors=views)

    @property
    def used(self) -> int:
        """How many slots are still viewed."""
        gc.collect()
        return self._slab.used

    def overwrite(self) -> None:
        """Write noise to every slot that is free, as later chunks would."""
        taken = []
        while True:
            try:
                taken.append(self._slab.place(Encoding({"noise": NOISE}))[1])
            except NotPlaced:
                break
        for generation in taken:
            self._slab.release(generation)
