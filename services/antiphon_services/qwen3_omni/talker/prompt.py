"""What has arrived of one segment's input, and what the talker may compute from it.

The talker's prompt is all user turns of the thinker's prompt and then nine rows
about the answer. With A the ids from the last assistant header on (the prompt's
tail and then the reply), the text side of those nine is

    A[0]  A[1]  A[2]  tts_pad x 4  tts_bos  A[3]

and each later step adds one row: A[4], A[5], ... then one tts_eos, then tts_pad.
Laws: a row exists only when everything in it has arrived, and tts_eos and tts_pad
only when `tokens` has ended, so that a late token is never spoken as silence.

A prompt may grow while the user speaks: its ids come in pieces, and hidden rows may come again,
from some row on, until `prompt` has ended. Nothing behind the user rows is ready before.
Mirrors `Qwen3OmniMoeForConditionalGeneration.generate` and its
`_get_talker_assistant_parts`. No torch here.
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
    """One segment's prompt and reply, as far as they have come.

    `vocabulary` bounds the ids; `row_width` is the width of hidden rows; `window` is how many of
    them the thinker makes at a time of what is being said, or 0.
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
        self._positions = np.empty((0, 3), np.int64)  # of the user rows, by axis
        self._next_position = 0
        self._cuts = self._windows = np.empty(0, np.intp)
        self._heard = np.empty(0, np.intp)  # which user rows are hidden rows, ascending
        self._heard_positions = np.empty(0, np.intp)  # and where they are in the prompt
        self._rows: list[Tensor] = []  # hidden rows from this one on
        self._rows_first = 0
        self._rows_come = 0
        self._changed: int | None = None
        self._answer_head: list[int] = []
        self._reply: list[int] = []
        self._prompt_finished = False
        self._tokens_finished = False

    @property
    def prompt_rows(self) -> int | None:
        """Length of the talker's prompt; None until the prompt's ids have come."""
        return self.user_rows + ANSWER_ROWS if self._ids_finished else None

    @property
    def user_rows(self) -> int:
        """How many of the prompt's rows come before the nine of the answer."""
        return 0 if self._user_ids is None else len(self._user_ids)

    @property
    def position_shift(self) -> int:
        """What to add to a row's place behind the user rows for the position that turns it."""
        return self._next_position - self.user_rows

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions [n, 3] (time, height, width) that turn the prompt's rows."""
        answer = np.arange(max(start, self.user_rows), max(stop, self.user_rows))
        later = np.repeat(answer[:, None] + self.position_shift, 3, axis=1)
        return np.concatenate((self._positions[start:stop], later))

    @property
    def silent(self) -> bool:
        """Whether it is certain that there is nothing to say."""
        return self._tokens_finished and self._ids_finished and self._answer_length <= HEADER_ROWS

    @property
    def ready_rows(self) -> int:
        """How many rows of the prompt, from its start, can be computed."""
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
        """Where the user's turns end, and the windows of what they hear, as far as that is known.

        So what is in of a turn that is being spoken is all that the thinker has told of it.
        """
        return self._cuts

    def is_behind_window(self, row: int) -> bool:
        """Whether a whole window of what is heard ends before this row."""
        return bool((self._windows == row).any())

    @property
    def next_prompt_edge(self) -> str:
        """The edge that the first row which is not ready waits for."""
        complete = self._ids_finished and self._rows_come == len(self._heard)
        return TOKENS if complete and not self._may_change else PROMPT

    @property
    def _may_change(self) -> bool:
        """Whether more ids may come, or rows again."""
        return self._grows and not self._prompt_finished

    def take_change(self) -> int | None:
        """The first row that has come again, told once; None if none has."""
        changed, self._changed = self._changed, None
        return changed

    def prompt_text(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Text ids of ready prompt rows; at hidden rows, the placeholder's id."""
        assert self._user_ids is not None
        special = self._special
        answer = [self._answer(index) for index in range(min(self._answer_length, HEADER_ROWS + 1))]
        fixed = [special.tts_pad] * 4 + [special.tts_bos]
        text = answer[:HEADER_ROWS] + fixed + answer[HEADER_ROWS:]
        users = len(self._user_ids)
        later = text[max(start - users, 0) : max(stop - users, 0)]
        return np.concatenate((self._user_ids[start:stop], np.array(later, np.int64)))

    def hidden_rows(self, start: int, stop: int) -> tuple[npt.NDArray[np.intp], Tensor | None]:
        """Which of the prompt rows are hidden rows, counted from `start`, and those rows.

        The rows are handed over: each range may be asked for once, in order, but for those that
        have come again.
        """
        first, last = map(int, np.searchsorted(self._heard, (start, stop)))
        if first == last:
            return self._heard[:0], None
        taken = self._come(first, last)
        # What comes again may begin within a part that is computed as a whole.
        if not self._may_change:
            left = self._rows[0][last - self._rows_first :]
            self._rows, self._rows_first = [left] if len(left) else [], last
        return self._heard[first:last] - start, taken

    def _come(self, first: int, last: int) -> Tensor:
        """Hidden rows that have come, and were not handed over."""
        if len(self._rows) > 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0][first - self._rows_first : last - self._rows_first]

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Of ready rows that have not been handed over; None for those of the answer."""
        if self._user_ids is None or stop > self.user_rows:
            return None
        first, last = map(int, np.searchsorted(self._heard, (start, stop)))
        rows = [self._come(first, last)] if first < last else []
        return part_name(start, self._positions[start:stop], self._user_ids[start:stop], *rows)

    def pass_part(self, start: int, stop: int) -> None:
        """These ready rows are in the slot: they need not be handed over."""
        self.hidden_rows(start, stop)

    def text(self, step: int) -> int | None:
        """The text id of decode step `step` (from 0); None when it has not come."""
        index = HEADER_ROWS + 1 + step
        if index < self._answer_length:
            return self._answer(index)
        if not self._tokens_finished:
            return None
        return self._special.tts_eos if index == self._answer_length else self._special.tts_pad

    def accept(self, chunk: InputChunk) -> None:
        """Take a chunk in. Raises `InvalidArgument`, `NotImplementedYet` or `DataLoss`."""
        if chunk.edge == PROMPT:
            self._accept_prompt(chunk)
        elif chunk.edge == TOKENS:
            self._accept_tokens(chunk)
        else:
            raise InvalidArgument(f"the talker has no input {chunk.edge!r}", edge=chunk.edge)

    def _accept_prompt(self, chunk: InputChunk) -> None:
        if self._prompt_finished:
            raise DataLoss("prompt: a chunk came after the last", edge=PROMPT)
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
                "prompt: all ids come once, in the first chunk unless there are `more_ids`",
                edge=PROMPT,
            )
        special = self._special
        # A copy, as of all that is kept: the chunk's bytes may belong to a transport.
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
            # The positions that are prepared are those of rows.
            raise NotImplementedYet("prompt: a video takes more time than positions", edge=PROMPT)
        self._heard = np.flatnonzero(is_media(ids[users], special))
        self._heard_positions = users[self._heard]
        self._user_ids = ids[users]
        begins = np.flatnonzero(self._user_ids == special.im_start)[1:]
        turns = np.append(begins, len(users)) if self._ids_finished else begins
        self._windows = self._window_ends(self._user_ids == special.audio)
        self._cuts = np.union1d(turns, self._windows)

    def _window_ends(self, heard: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Behind the whole windows of each recording, given which rows are `heard`."""
        if not self._window:
            return np.empty(0, np.intp)
        behind = np.flatnonzero(heard) + 1
        # A recording's rows stand side by side, and words between two recordings.
        begins = np.flatnonzero(heard & ~np.append(False, heard[:-1]))
        first = begins[np.searchsorted(begins, behind) - 1]
        ends: npt.NDArray[np.intp] = behind[(behind - first) % self._window == 0]
        return ends

    def _take_rows(self, tensors: Tensors) -> None:
        if self._user_ids is None:
            raise DataLoss("prompt: rows came before the ids", edge=PROMPT)
        try:
            rows, positions = tensors["rows"], tensors["row_positions"]
        except KeyError as missing:
            raise DataLoss(f"prompt: {missing.args[0]} is missing", edge=PROMPT) from None
        if rows.dtype.name not in FLOAT_DTYPES or rows.shape != (len(rows), self._row_width):
            raise DataLoss(
                f"prompt: rows are {rows.dtype} {rows.shape}, not floats [n, {self._row_width}]",
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
        """Hidden rows come again from this one on, if there were any."""
        if first < self._rows_come:
            kept = np.concatenate(self._rows)[: first - self._rows_first]
            self._rows = [kept] if len(kept) else []
            self._rows_come = first
            changed = int(self._heard[first])
            self._changed = changed if self._changed is None else min(changed, self._changed)

    def _accept_tokens(self, chunk: InputChunk) -> None:
        if self._tokens_finished:
            raise DataLoss("tokens: a chunk came after the last", edge=TOKENS)
        if "ids" in chunk.tensors:
            ids = self._checked_ids(chunk)
            if len(ids) and chunk.position != len(self._reply):
                raise DataLoss(
                    f"tokens: position {chunk.position} came instead of {len(self._reply)}",
                    edge=TOKENS,
                )
            self._reply.extend(ids.tolist())
        self._tokens_finished = chunk.segment_finished

    def _checked_ids(self, chunk: InputChunk) -> npt.NDArray[np.int32]:
        ids = chunk.tensors["ids"]
        if ids.dtype != np.int32 or ids.ndim != 1:
            raise DataLoss(
                f"{chunk.edge}: ids are {ids.dtype} {ids.shape}, not int32 [n]", edge=chunk.edge
            )
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocabulary):
            raise InvalidArgument(
                f"{chunk.edge}: an id is outside 0..{self._vocabulary - 1}", edge=chunk.edge
            )
        return ids

    @property
    def _answer_length(self) -> int:
        return len(self._answer_head) + len(self._reply)

    def _answer(self, index: int) -> int:
        """A[index]."""
        head = len(self._answer_head)
        return self._answer_head[index] if index < head else self._reply[index - head]


def _grids(tensors: Tensors) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Copies of what the prompt shows: grids int32 [n, 3] and steps int32 [n]. Raises
    `DataLoss`."""
    grids = tensors.get("grids", np.empty((0, 3), np.int32))
    steps = tensors.get("steps", np.empty(0, np.int32))
    if grids.dtype != np.int32 or steps.dtype != np.int32 or grids.shape != (len(steps), 3):
        raise DataLoss(
            f"prompt: grids are {grids.dtype} {grids.shape} with steps {steps.dtype} "
            f"{steps.shape}, not int32 [n, 3] and [n]",
            edge=PROMPT,
        )
    return np.array(grids), np.array(steps)
