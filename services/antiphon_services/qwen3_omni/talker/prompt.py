"""Keeps track of the input that has arrived for a talker segment and of the rows that can already
be computed.

The talker's prompt consists of all user turns in the thinker's prompt, followed by nine rows for
the answer. Let A be the IDs from the last assistant header onwards, which are the end of the prompt
followed by the reply. The text side of the nine rows is

    A[0]  A[1]  A[2]  tts_pad x 4  tts_bos  A[3]

Each later step adds one row: first A[4], A[5] and so on, then tts_eos once, and tts_pad after that.

A row is ready once all of its parts have arrived. tts_eos and tts_pad are only ready after the end
of `tokens`, so that the talker doesn't speak silence while a token is late.

A prompt can grow while the user is speaking, in which case its IDs arrive in pieces. Until the end
of `prompt`, only user rows are ready, and hidden rows from a certain row onwards may be sent again.

This mirrors `Qwen3OmniMoeForConditionalGeneration.generate` and `_get_talker_assistant_parts`. This
module doesn't import torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss, InvalidArgument, NotImplementedYet
from antiphon.pipelines.media_ids import is_media
from antiphon.pipelines.mrope import rotary_positions
from antiphon.pipelines.qwen3_omni import (
    SpecialIds,
    assistant_start,
    user_positions,
)
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensor, Tensors
from antiphon_services.lm.kept_parts import part_name

PROMPT, TOKENS = "prompt", "tokens"
HEADER_ROWS = 3
ANSWER_ROWS = 9
FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


class TalkerPrompt:
    """The part of a segment's prompt and reply that has arrived.

    All IDs must be below `vocabulary`, and `row_width` is the width of hidden rows. `window` is the
    number of hidden rows that the thinker computes at once while a recording grows, or 0 if it
    doesn't do so.
    """

    def __init__(
        self, special: SpecialIds, vocabulary: int, row_width: int, *, window: int = 0
    ) -> None:
        self._special = special
        self._vocabulary = vocabulary
        self._row_width = row_width
        self._window = window
        self._ids = np.empty(0, np.int32)
        self._grids: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None
        self._ids_finished = False
        self._grows = False
        self._user_ids: npt.NDArray[np.int32] | None = None
        self._positions = np.empty((0, 3), np.int64)  # The positions of the user rows by axis.
        self._next_position = 0
        self._cuts = self._windows = np.empty(0, np.intp)
        # The indices, in ascending order, of the user rows that are hidden rows.
        self._heard = np.empty(0, np.intp)
        self._heard_positions = np.empty(0, np.intp)  # The positions of these rows in the prompt.
        self._rows: list[Tensor] = []  # The hidden rows from this one onwards.
        self._rows_first = 0
        self._rows_come = 0
        self._changed: int | None = None
        self._answer_head: list[int] = []
        self._reply: list[int] = []
        self._prompt_finished = False
        self._tokens_finished = False

    @property
    def prompt_rows(self) -> int | None:
        """The length of the talker's prompt, or None if some of the prompt IDs haven't arrived
        yet.
        """
        return self.user_rows + ANSWER_ROWS if self._ids_finished else None

    @property
    def user_rows(self) -> int:
        """The number of rows before the answer's nine rows."""
        return 0 if self._user_ids is None else len(self._user_ids)

    @property
    def position_shift(self) -> int:
        """The difference between rotary positions and places in the sequence, for rows after the
        user rows.
        """
        return self._next_position - self.user_rows

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the rotary positions [n, 3] (time, height, width) of rows in the prompt."""
        answer = np.arange(max(start, self.user_rows), max(stop, self.user_rows))
        later = np.repeat(answer[:, None] + self.position_shift, 3, axis=1)
        return np.concatenate((self._positions[start:stop], later))

    @property
    def silent(self) -> bool:
        """Whether it is already known that the reply is empty."""
        return self._tokens_finished and self._ids_finished and self._answer_length <= HEADER_ROWS

    @property
    def ready_rows(self) -> int:
        """The number of rows at the start of the prompt that can be computed."""
        if self._user_ids is None:
            return 0
        if self._rows_come < len(self._heard):
            return int(self._heard[self._rows_come])
        if self._may_change:
            return self.user_rows
        known = self._answer_length
        if known < HEADER_ROWS:
            return self.user_rows + known
        return self.user_rows + ANSWER_ROWS - (known == HEADER_ROWS)

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """The ends of the user turns and audio windows that are known so far.

        A part of the prompt can end at any of these positions, so that a growing turn is computed
        up to the last row received from the thinker.
        """
        return self._cuts

    def is_behind_window(self, row: int) -> bool:
        """Return whether a full audio window ends just before this row."""
        return bool((self._windows == row).any())

    @property
    def next_prompt_edge(self) -> str:
        """The edge that delivers the first row that isn't ready."""
        complete = self._ids_finished and self._rows_come == len(self._heard)
        return TOKENS if complete and not self._may_change else PROMPT

    @property
    def _may_change(self) -> bool:
        """Whether more IDs may arrive, or hidden rows may be replaced."""
        return self._grows and not self._prompt_finished

    def take_change(self) -> int | None:
        """Return the first row that has been replaced since the last call, or None."""
        changed, self._changed = self._changed, None
        return changed

    def prompt_text(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the text IDs of rows that are ready. For hidden rows, this is the placeholder
        ID.
        """
        assert self._user_ids is not None
        special = self._special
        answer = [self._answer(index) for index in range(min(self._answer_length, HEADER_ROWS + 1))]
        fixed = [special.tts_pad] * 4 + [special.tts_bos]
        text = answer[:HEADER_ROWS] + fixed + answer[HEADER_ROWS:]
        users = len(self._user_ids)
        later = text[max(start - users, 0) : max(stop - users, 0)]
        return np.concatenate((self._user_ids[start:stop], np.array(later, np.int64)))

    def hidden_rows(self, start: int, stop: int) -> tuple[npt.NDArray[np.intp], Tensor | None]:
        """Return the indices, relative to `start`, of the hidden rows among these rows, and the
        hidden rows themselves.

        The prompt drops the rows that it returns. Ranges must be requested once and in order,
        except for rows that have been replaced.
        """
        first, last = map(int, np.searchsorted(self._heard, (start, stop)))
        if first == last:
            return self._heard[:0], None
        taken = self._come(first, last)
        # Rows may be replaced starting in the middle of a part, which is then computed again as a
        # whole.
        if not self._may_change:
            left = self._rows[0][last - self._rows_first :]
            self._rows, self._rows_first = [left] if len(left) else [], last
        return self._heard[first:last] - start, taken

    def _come(self, first: int, last: int) -> Tensor:
        """Return hidden rows that have arrived but haven't been taken yet."""
        if len(self._rows) > 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0][first - self._rows_first : last - self._rows_first]

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return a name for rows that are ready but haven't been taken, or None if they belong to
        the answer.
        """
        if self._user_ids is None or stop > self.user_rows:
            return None
        first, last = map(int, np.searchsorted(self._heard, (start, stop)))
        rows = [self._come(first, last)] if first < last else []
        return part_name(start, self._positions[start:stop], self._user_ids[start:stop], *rows)

    def pass_part(self, start: int, stop: int) -> None:
        """Drop the hidden rows in a range of prompt rows whose keys and values the slot already
        contains.
        """
        self.hidden_rows(start, stop)

    def text(self, step: int) -> int | None:
        """Return the text ID for a decode step, or None if it hasn't arrived yet. Steps are
        numbered from 0.
        """
        index = HEADER_ROWS + 1 + step
        if index < self._answer_length:
            return self._answer(index)
        if not self._tokens_finished:
            return None
        return self._special.tts_eos if index == self._answer_length else self._special.tts_pad

    def accept(self, chunk: InputChunk) -> None:
        """Add a chunk. Raises `InvalidArgument`, `NotImplementedYet` or `DataLoss` if the chunk is
        invalid.
        """
        if chunk.edge == PROMPT:
            self._accept_prompt(chunk)
        elif chunk.edge == TOKENS:
            self._accept_tokens(chunk)
        else:
            raise InvalidArgument(f"the talker has no input {chunk.edge!r}", edge=chunk.edge)

    def _accept_prompt(self, chunk: InputChunk) -> None:
        if self._prompt_finished:
            raise DataLoss("prompt: received a chunk after the last one", edge=PROMPT)
        if "ids" in chunk.tensors:
            self._take_prompt(chunk)
        if "rows" in chunk.tensors or "row_positions" in chunk.tensors:
            self._take_rows(chunk.tensors)
        if chunk.segment_finished:
            self._prompt_finished = True
            if not self._ids_finished or self._rows_come < len(self._heard):
                raise DataLoss(
                    f"prompt: ended after {self._rows_come} of {len(self._heard)} hidden rows",
                    edge=PROMPT,
                )

    def _take_prompt(self, chunk: InputChunk) -> None:
        come = self._checked_ids(chunk)
        if self._ids_finished or chunk.position != len(self._ids) or not len(come):
            raise DataLoss(
                "prompt: all IDs must be sent in the first chunk, unless it has `more_ids`",
                edge=PROMPT,
            )
        special = self._special
        # Copy all arrays that are kept, because the chunk's memory may belong to a transport.
        ids = self._ids = np.concatenate((self._ids, come))
        self._ids_finished = "more_ids" not in chunk.tensors
        self._grows = self._grows or not self._ids_finished
        if self._ids_finished:
            start = assistant_start(ids, special)
            if is_media(ids[start:], special).any():
                raise InvalidArgument("prompt: media after the last assistant header", edge=PROMPT)
            self._answer_head = ids[start:].tolist()
        users = user_positions(ids, special)
        self._grids = grids, steps = self._grids or _grids(chunk.tensors)
        self._positions, self._next_position = rotary_positions(
            ids[users], special.seen, grids, steps, edge=PROMPT
        )
        outgrown = self._positions.max(1) > np.arange(len(users))
        if outgrown.any() or self._next_position > len(users):
            # The positions that were prepared are those of rows.
            raise NotImplementedYet(
                "prompt: a video has more time steps than positions", edge=PROMPT
            )
        self._heard = np.flatnonzero(is_media(ids[users], special))
        self._heard_positions = users[self._heard]
        self._user_ids = ids[users]
        begins = np.flatnonzero(self._user_ids == special.im_start)[1:]
        turns = np.append(begins, len(users)) if self._ids_finished else begins
        self._windows = self._window_ends(self._user_ids == special.audio)
        self._cuts = np.union1d(turns, self._windows)

    def _window_ends(self, heard: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Return the end of each full window in each recording. `heard` marks the rows of
        recordings.
        """
        if not self._window:
            return np.empty(0, np.intp)
        behind = np.flatnonzero(heard) + 1
        # A recording's rows are contiguous, and there are always other IDs between two recordings.
        begins = np.flatnonzero(heard & ~np.append(False, heard[:-1]))
        first = begins[np.searchsorted(begins, behind) - 1]
        ends: npt.NDArray[np.intp] = behind[(behind - first) % self._window == 0]
        return ends

    def _take_rows(self, tensors: Tensors) -> None:
        if self._user_ids is None:
            raise DataLoss("prompt: received rows before the IDs", edge=PROMPT)
        try:
            rows, positions = tensors["rows"], tensors["row_positions"]
        except KeyError as missing:
            raise DataLoss(f"prompt: {missing.args[0]} is missing", edge=PROMPT) from None
        if rows.dtype.name not in FLOAT_DTYPES or rows.shape != (len(rows), self._row_width):
            raise DataLoss(
                f"prompt: rows are {rows.dtype} {rows.shape}, but must be floats with the shape "
                f"[n, {self._row_width}]",
                edge=PROMPT,
            )
        if self._grows and len(positions) and len(rows):
            self._forget_rows(int(np.searchsorted(self._heard_positions, positions[0])))
        end = self._rows_come + len(rows)
        if not np.array_equal(positions, self._heard_positions[self._rows_come : end]):
            raise DataLoss(
                f"prompt: hidden rows {self._rows_come} to {end} have wrong positions", edge=PROMPT
            )
        if len(rows):
            self._rows.append(np.array(rows))
        self._rows_come = end

    def _forget_rows(self, first: int) -> None:
        """Drop all hidden rows from `first` onwards. If there are any, this is recorded as a
        change.
        """
        if first < self._rows_come:
            kept = np.concatenate(self._rows)[: first - self._rows_first]
            self._rows = [kept] if len(kept) else []
            self._rows_come = first
            changed = int(self._heard[first])
            self._changed = changed if self._changed is None else min(changed, self._changed)

    def _accept_tokens(self, chunk: InputChunk) -> None:
        if self._tokens_finished:
            raise DataLoss("tokens: received a chunk after the last one", edge=TOKENS)
        if "ids" in chunk.tensors:
            ids = self._checked_ids(chunk)
            if len(ids) and chunk.position != len(self._reply):
                raise DataLoss(
                    f"tokens: received position {chunk.position} instead of {len(self._reply)}",
                    edge=TOKENS,
                )
            self._reply.extend(ids.tolist())
        self._tokens_finished = chunk.segment_finished

    def _checked_ids(self, chunk: InputChunk) -> npt.NDArray[np.int32]:
        ids = chunk.tensors["ids"]
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise DataLoss(
                f"{chunk.edge}: ids are {ids.dtype} {ids.shape}, but must be int32 with the "
                "shape [n]",
                edge=chunk.edge,
            )
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocabulary):
            raise InvalidArgument(
                f"{chunk.edge}: an ID is not in the range 0..{self._vocabulary - 1}",
                edge=chunk.edge,
            )
        return ids

    @property
    def _answer_length(self) -> int:
        return len(self._answer_head) + len(self._reply)

    def _answer(self, index: int) -> int:
        """Return A[index]."""
        head = len(self._answer_head)
        return self._answer_head[index] if index < head else self._reply[index - head]


def _grids(tensors: Tensors) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return copies of the prompt's grids (int32 [n, 3]) and steps (int32 [n]). Raises `DataLoss`
    if they are invalid.
    """
    grids = tensors.get("grids", np.empty((0, 3), np.int32))
    steps = tensors.get("steps", np.empty(0, np.int32))
    if grids.dtype != np.int32 or steps.dtype != np.int32 or grids.shape != (len(steps), 3):
        raise DataLoss(
            f"prompt: grids are {grids.dtype} {grids.shape} and steps {steps.dtype} "
            f"{steps.shape}, but must be int32 with the shapes [n, 3] and [n]",
            edge=PROMPT,
        )
    return np.array(grids), np.array(steps)
