"""Which rows of the thinker have come for one segment, and which the talker may use next.

The talker's prompt is a row for each position of the thinker's prompt, one that starts the
voice, and the row of the reply's first token; each later step adds the row of the next token,
then the text's end once, then padding. Laws: a row is used only when it has come, and end and
padding only when `tokens` has ended, so that a late row is never spoken as silence. No torch.
"""

from __future__ import annotations

import enum
from collections import deque

import numpy as np
import numpy.typing as npt

from antiphon.chunk import Tensor
from antiphon.errors import DataLoss, InvalidArgument, NotImplementedYet
from antiphon.runtime.engine import InputChunk
from services.qwen2_5_omni.talker.ids import PROMPT, TOKENS

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32"})
VOICE_ROWS = 1
"""Behind the prompt's rows, before the reply's first."""


class TextRow(enum.Enum):
    """What a step takes where the reply has no row more."""

    END = enum.auto()
    PAD = enum.auto()


class ThinkerRows:
    """One segment's rows, each [width], as far as they have come."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._prompt: deque[Tensor] = deque()
        self._prompt_start = 0
        self.prompt_come = 0
        self._positions: list[npt.NDArray[np.int64]] = []
        self._reply: dict[int, Tensor] = {}
        self._reply_come = 0
        self._prompt_finished = False
        self._reply_finished = False

    @property
    def prompt_rows(self) -> int | None:
        """Rows before the first step's, the voice's among them; None until all have come."""
        return self.prompt_come + VOICE_ROWS if self._prompt_finished else None

    @property
    def ready_rows(self) -> int:
        """How many of these, from the start, can be computed."""
        return self.prompt_come + (VOICE_ROWS if self._prompt_finished else 0)

    @property
    def silent(self) -> bool:
        """Whether it is certain that there is nothing to say."""
        return self._prompt_finished and self._reply_finished and not self._reply_come

    def text(self, step: int) -> Tensor | TextRow | None:
        """What goes into step `step`, from 0; None when it has not come.

        A reply's row is handed over: no earlier one is asked for again.
        """
        if step < self._reply_come:
            return self._reply[step]
        if not self._reply_finished:
            return None
        return TextRow.END if step == self._reply_come else TextRow.PAD

    def used(self, step: int) -> None:
        """Step `step` has its row: it is not kept any longer."""
        self._reply.pop(step, None)

    def take_prompt(self, stop: int) -> Tensor | None:
        """The thinker's rows up to `stop` [n, width] that were not taken before."""
        taken = []
        while self._prompt and self._prompt_start < stop:
            rows = self._prompt.popleft()
            count = min(len(rows), stop - self._prompt_start)
            taken.append(rows[:count])
            self._prompt_start += count
            if count < len(rows):
                self._prompt.appendleft(rows[count:])
        if not taken:
            return None
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64] | None:
        """Positions [n, 3] (time, height, width) of rows of the prompt and behind it; None where
        they are the rows' numbers."""
        if not self._positions:
            return None
        told = self._positions[0]
        if len(self._positions) > 1:
            told = np.concatenate(self._positions)
            self._positions = [told]
        later = np.arange(max(start, len(told)), max(stop, len(told))) + self.shift
        return np.concatenate((told[start:stop], np.repeat(later[:, None], 3, axis=1)))

    @property
    def shift(self) -> int:
        """What to add to a row's number behind the prompt for its position."""
        if not self._positions:
            return 0
        return int(max(each.max() for each in self._positions)) + 1 - self.prompt_come

    def accept(self, chunk: InputChunk) -> None:
        """Take a chunk in. Raises `InvalidArgument`, `NotImplementedYet` or `DataLoss`."""
        if chunk.edge == PROMPT:
            self._accept_prompt(chunk)
        elif chunk.edge == TOKENS:
            self._accept_reply(chunk)
        else:
            raise InvalidArgument(f"the talker has no input {chunk.edge!r}", edge=chunk.edge)

    def _accept_prompt(self, chunk: InputChunk) -> None:
        if self._prompt_finished:
            raise DataLoss("prompt: a chunk came after the last", edge=PROMPT)
        rows = self._checked(chunk, self.prompt_come)
        if rows is not None:
            self._take_positions(chunk, len(rows))
            self._prompt.append(rows)
            self.prompt_come += len(rows)
        self._prompt_finished = chunk.segment_finished
        if chunk.segment_finished and not self.prompt_come:
            raise DataLoss("prompt: it has no rows", edge=PROMPT)

    def _take_positions(self, chunk: InputChunk, count: int) -> None:
        """All of a prompt's chunks tell positions, or none does."""
        told = chunk.tensors.get("positions")
        if (told is None) == bool(self._positions) and self.prompt_come:
            raise DataLoss("prompt: some rows have positions, others none", edge=PROMPT)
        if told is None:
            return
        if told.dtype.name != "int32" or told.shape != (count, 3):
            raise DataLoss(
                f"prompt: positions are {told.dtype} {list(told.shape)}, not int32 [{count}, 3]",
                edge=PROMPT,
            )
        own = np.arange(self.prompt_come, self.prompt_come + count)
        if (told < 0).any() or (told.max(1) > own).any():
            # The positions that are prepared are those of rows.
            raise NotImplementedYet("prompt: a video takes more time than positions", edge=PROMPT)
        self._positions.append(told.astype(np.int64))

    def _accept_reply(self, chunk: InputChunk) -> None:
        if self._reply_finished:
            raise DataLoss("tokens: a chunk came after the last", edge=TOKENS)
        rows = self._checked(chunk, self._reply_come)
        if rows is not None:
            self._reply |= dict(enumerate(rows, self._reply_come))
            self._reply_come += len(rows)
        self._reply_finished = chunk.segment_finished

    def _checked(self, chunk: InputChunk, expected: int) -> Tensor | None:
        rows = chunk.tensors.get("rows")
        if rows is None:
            if chunk.tensors:
                raise DataLoss(f"{chunk.edge}: rows is missing", edge=chunk.edge)
            return None
        if rows.dtype.name not in FLOAT_DTYPES or rows.shape != (len(rows), self._width):
            raise DataLoss(
                f"{chunk.edge}: rows are {rows.dtype} {list(rows.shape)}, not floats "
                f"[n, {self._width}]",
                edge=chunk.edge,
            )
        if chunk.position != expected:
            raise DataLoss(
                f"{chunk.edge}: rows from {chunk.position} came, {expected} is next",
                edge=chunk.edge,
            )
        return rows
