"""What a step drew, on its way to the host.

A step may be launched before the frames of the one before have been read: from the host
it needs nothing but text, as the codes before are in `Talker`'s memory on the device. What
it overwrites there, graphs' outputs included, comes after all that the earlier step reads
and writes, since both are asked of one stream in turn. The copy to the host is made beside
that stream, and so from a tensor that belongs to it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.chunk import Tensor
from antiphon.transport.device_edge import Mark


@dataclass(frozen=True, slots=True)
class Drawn:
    """A frame's codes uint16 [1, G]; the first may be the stop code, out of which no
    frame follows. `decided` is False when the logits left nothing to choose from."""

    codes: npt.NDArray[np.uint16]
    decided: bool


class Readback:
    """The draws of one step: rows int64 [n, G + 1] of codes and `decided`.

    They are there when `mark` is reached, or from the start if it is None. `order` has
    the row of each draw.
    """

    def __init__(self, rows: Tensor, order: Sequence[int], mark: Mark | None) -> None:
        self._rows, self._order, self._mark = rows, order, mark

    @property
    def landed(self) -> bool:
        """Whether the device says that they are there. One that copies at once says nothing."""
        return self._mark is not None and self._mark.query()

    def read(self) -> list[Drawn]:
        """Each draw's frame, once it is there: until then this waits, but for no later step."""
        if self._mark is not None:
            self._mark.synchronize()
        rows = (self._rows[at] for at in self._order)
        return [Drawn(row[None, :-1].astype(np.uint16), bool(row[-1])) for row in rows]
