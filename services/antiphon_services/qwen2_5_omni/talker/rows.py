"""Keeps track of the thinker rows that have arrived for a segment and of the rows that can already
be computed.

The talker's prompt consists of a row for each position of the thinker's prompt, a row that starts
the voice, and the row of the reply's first token. Each later step adds the next token's row, then
the row for the end of the text once, and padding after that. A row is only used after it has
arrived. The end and the padding are only used after the end of `tokens`, so that the talker doesn't
speak silence while a row is late. This module doesn't import torch.
"""

from __future__ import annotations

import enum
from collections import deque

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss, InvalidArgument, NotImplementedYet
from antiphon.pipelines.mrope import rotary_positions
from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS, PlaceholderIds
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensor
from antiphon_services.lm.kept_parts import NO_CUTS, part_name

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32"})
VOICE_ROWS = 1
"""The number of rows between the rows of the thinker's prompt and the reply's first row."""


class TextRow(enum.Enum):
    """The text side of a step after the reply's last row."""

    END = enum.auto()
    PAD = enum.auto()


class ThinkerRows:
    """The rows [width] that have arrived for a segment."""

    def __init__(self, placeholders: PlaceholderIds, width: int) -> None:
        self._placeholders = placeholders
        self._width = width
        self._length: int | None = None
        self._positions: npt.NDArray[np.int64] | None = None
        self._rows: deque[Tensor] = deque()
        self._rows_taken = self._rows_come = 0
        self._reply: dict[int, Tensor] = {}
        self._reply_come = 0
        self._prompt_finished = False
        self._reply_finished = False
        self.shift = 0
        """The difference between a row's position and its number, for rows after the thinker's
        prompt.
        """

    @property
    def prompt_rows(self) -> int | None:
        """The number of rows in the prompt, including the voice's row and the row of the first
        draw.

        It is None until the prompt IDs have arrived.
        """
        return None if self._length is None else self._length + VOICE_ROWS + 1

    @property
    def ready_rows(self) -> int:
        """The number of rows at the start of the prompt that are ready. It doesn't include the row
        of the first draw.
        """
        return self._rows_come + (VOICE_ROWS if self._rows_come == self._length else 0)

    @property
    def silent(self) -> bool:
        """Whether it is already known that the reply is empty."""
        return self._length is not None and self._reply_finished and not self._reply_come

    def text(self, step: int) -> Tensor | TextRow | None:
        """Return the text side of a step, or None if it hasn't arrived yet. Steps are numbered from
        0.

        A step must not be requested again after `used` has been called for a later one.
        """
        if step < self._reply_come:
            return self._reply[step]
        if not self._reply_finished:
            return None
        return TextRow.END if step == self._reply_come else TextRow.PAD

    def used(self, step: int) -> None:
        """Drop a step's row because it has been computed."""
        self._reply.pop(step, None)

    def take_prompt(self, stop: int) -> tuple[Tensor | None, bool]:
        """Return the thinker rows before `stop` [n, width] that haven't been taken yet.

        The second value is true if the voice's row is also before `stop`.
        """
        taken = []
        while self._rows and self._rows_taken < stop:
            rows = self._rows.popleft()
            count = min(len(rows), stop - self._rows_taken)
            taken.append(rows[:count])
            self._rows_taken += count
            if count < len(rows):
                self._rows.appendleft(rows[count:])
        voiced = self._length is not None and stop > self._length
        if len(taken) < 2:
            return (taken[0] if taken else None), voiced
        return np.concatenate(taken), voiced

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """Always empty, because all parts have the same length."""
        return NO_CUTS

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return a name for rows that are ready. They begin with the first row that hasn't been
        taken.

        Returns None if they include the voice's row.
        """
        if self._length is None or stop > self._length or start != self._rows_taken:
            return None
        rows, left = [], stop - start
        for each in self._rows:
            rows.append(each[:left])
            left -= len(rows[-1])
            if not left:
                break
        return part_name(start, self.positions(start, stop), np.concatenate(rows))

    def pass_part(self, start: int, stop: int) -> None:
        """Drop rows that are ready, because the slot already contains their keys and values."""
        self.take_prompt(stop)

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64] | None:
        """Return the rotary positions [n, 3] (time, height, width) of rows in the prompt and after
        it.

        Returns None if the positions are the same as the row numbers.
        """
        given = self._positions
        if given is None:
            return None
        later = np.arange(max(start, len(given)), max(stop, len(given))) + self.shift
        return np.concatenate((given[start:stop], np.repeat(later[:, None], 3, axis=1)))

    def accept(self, chunk: InputChunk) -> None:
        """Add a chunk. Raises `InvalidArgument`, `NotImplementedYet` or `DataLoss` if the chunk is
        invalid.
        """
        if chunk.edge == PROMPT:
            self._accept_prompt(chunk)
        elif chunk.edge == TOKENS:
            self._accept_reply(chunk)
        else:
            raise InvalidArgument(f"the talker has no input {chunk.edge!r}", edge=chunk.edge)

    def _accept_prompt(self, chunk: InputChunk) -> None:
        if self._prompt_finished:
            raise DataLoss("prompt: received a chunk after the last one", edge=PROMPT)
        if "ids" in chunk.tensors:
            self._take_ids(chunk)
        elif self._length is None:
            raise DataLoss("prompt: the first chunk contains no IDs", edge=PROMPT)
        if "rows" in chunk.tensors:
            rows = self._checked(chunk, self._rows_come)
            self._rows.append(rows)
            self._rows_come += len(rows)
        self._prompt_finished = chunk.segment_finished
        complete = self._rows_come == self._length
        if self._rows_come > (self._length or 0) or (chunk.segment_finished and not complete):
            raise DataLoss(
                f"prompt: received {self._rows_come} rows for {self._length} IDs", edge=PROMPT
            )

    def _take_ids(self, chunk: InputChunk) -> None:
        """Record the length of the prompt, and the positions of its images and videos."""
        ids, shown = chunk.tensors["ids"], self._placeholders.seen
        grids = chunk.tensors.get("grids", np.empty((0, 3), np.int32))
        steps = chunk.tensors.get("steps", np.empty(0, np.int32))
        shapes = ids.shape, grids.shape
        if {each.dtype.name for each in (ids, grids, steps)} != {"int32"} or shapes != (
            (len(ids),),
            (len(steps), 3),
        ):
            raise DataLoss(
                f"prompt: ids are {ids.dtype} {list(ids.shape)}, grids {grids.dtype} "
                f"{list(grids.shape)} and steps {steps.dtype} {list(steps.shape)}, but must be "
                "int32 with the shapes [n], [m, 3] and [m]",
                edge=PROMPT,
            )
        if self._length is not None or not len(ids):
            raise DataLoss("prompt: all IDs must be sent in the first chunk", edge=PROMPT)
        positions, following = rotary_positions(ids, shown, grids, steps, edge=PROMPT)
        self._length = len(ids)
        if not len(grids):
            return
        if (positions.max(1) > np.arange(len(ids))).any() or following > len(ids):
            # The positions that were prepared are those of rows.
            raise NotImplementedYet(
                "prompt: a video has more time steps than positions", edge=PROMPT
            )
        self._positions, self.shift = positions, following - len(ids)

    def _accept_reply(self, chunk: InputChunk) -> None:
        if self._reply_finished:
            raise DataLoss("tokens: received a chunk after the last one", edge=TOKENS)
        if chunk.tensors:
            rows = self._checked(chunk, self._reply_come)
            self._reply |= dict(enumerate(rows, self._reply_come))
            self._reply_come += len(rows)
        self._reply_finished = chunk.segment_finished

    def _checked(self, chunk: InputChunk, expected: int) -> Tensor:
        """Return a copy of a chunk's rows. Raises `DataLoss` if they are invalid.

        The rows have to be copied because the chunk's memory may belong to a transport, while the
        rows are kept until they have been computed.
        """
        rows = chunk.tensors.get("rows")
        if rows is None:
            raise DataLoss(f"{chunk.edge}: rows are missing", edge=chunk.edge)
        if rows.dtype.name not in FLOAT_DTYPES or rows.shape != (len(rows), self._width):
            raise DataLoss(
                f"{chunk.edge}: rows are {rows.dtype} {list(rows.shape)}, but must be floats "
                f"with the shape [n, {self._width}]",
                edge=chunk.edge,
            )
        if chunk.position != expected:
            raise DataLoss(
                f"{chunk.edge}: received rows from position {chunk.position} on instead of "
                f"{expected}",
                edge=chunk.edge,
            )
        return np.array(rows)
