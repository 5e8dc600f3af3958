"""A segment of the talker: its text and the prompts made from it.

A segment speaks its utterances in order. They share a single slot and a single stream of frames.
Each utterance has its own prompt, and its positions and draws are counted from 0. The base classes
are in `lm/frames.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from antiphon.pipelines.ming_tts import INPUT
from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason
from antiphon_services.lm.frames import PART_ROWS, FrameDraw
from antiphon_services.lm.known_frames import KnownPart, check_count
from antiphon_services.lm.spoken_text import SpokenTextSegment
from antiphon_services.lm.text_in_pieces import TextInPieces
from antiphon_services.ming_tts.talker.front_end import LatentFrontEnd, LatentPrompts
from antiphon_services.ming_tts.talker.prompt import LatentPrompt
from antiphon_services.ming_tts.talker.utterances import ArrivingText
from antiphon_services.ming_tts.talker.voice_options import MingVoiceRequest


class LatentText(TextInPieces[LatentPrompts]):
    """Receives the text of a segment and stores the prompts of its utterances.

    `current` is the prompt of the current utterance. The text arrives on `input`, or on the edge of
    a stage that generates it.
    """

    def __init__(
        self, front_end: LatentFrontEnd, request: MingVoiceRequest, edge: str = INPUT
    ) -> None:
        make: Callable[[Tensors], LatentPrompts] = partial(front_end.prepare, request=request)
        super().__init__(edge, front_end, make, request.reference, written=edge != INPUT)
        self._front_end, self._request = front_end, request
        self._arriving = ArrivingText()
        self._waiting: deque[LatentPrompt] = deque()
        self._current: LatentPrompt | None = None
        self.complete = False
        """Whether the prompts of all utterances have been prepared."""
        self.rows_before = 0
        """The number of rows in the prompts of earlier utterances."""

    @property
    def current(self) -> LatentPrompt:
        """The prompt of the current utterance, which must exist."""
        assert self._current is not None
        return self._current

    @property
    def speaks(self) -> bool:
        """Whether there is a current utterance."""
        return self._current is not None

    @property
    def is_last(self) -> bool:
        """Whether the current utterance is the last one."""
        return self.complete and not self._waiting

    @property
    def rows(self) -> int:
        """The length of the current prompt, including the row of the first draw."""
        return len(self.current.ids)

    @property
    def prompt_rows(self) -> int | None:
        """The value of `rows`, or None if there is no current utterance."""
        return self.rows if self.speaks else None

    def make_pieces(self, utf8: bytes, *, last: bool) -> Callable[[], LatentPrompts]:
        """Return a function that prepares a piece, as described in
        `LatentFrontEnd.prepare_piece`.
        """
        make, arriving = self._front_end.prepare_piece, self._arriving
        return partial(make, arriving, utf8, self._request, last=last, may_be_silent=self.written)

    def hold(self, prompt: LatentPrompts) -> None:
        """Store prepared prompts."""
        self._waiting += prompt.utterances
        self.complete = prompt.last

    def go_on(self) -> bool:
        """Select the next utterance. Return False if it is not available."""
        if self._current is not None:
            self.rows_before += len(self._current.ids)
        self._current = self._waiting.popleft() if self._waiting else None
        return self._current is not None


@dataclass(slots=True)
class LatentSegment(SpokenTextSegment[LatentText]):
    """A segment in which every draw is a frame, including the last draw of an utterance.

    `drawn_before` is the number of frames in earlier utterances. `cut` is true if a limit has ended
    or skipped an utterance.
    """

    drawn_before: int = 0
    positions: int = 0
    cut: bool = False

    def take_text(self, step: int) -> None:
        """Does nothing, because a frame has no additional text."""

    @property
    def handed_on(self) -> int:
        """The number of frames in the current utterance that have been emitted. Known frames are
        included.
        """
        return self.frames - self.drawn_before

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched."""
        known = self.frames < len(self.known)
        return self.prompt_complete and not known and self.launched < self.most_frames

    @property
    def next_known_end(self) -> int | None:
        """The end of the next part of known frames. Such a part doesn't extend beyond the current
        utterance.
        """
        if not self.prompt_complete or self.frames >= len(self.known):
            return None
        stop = self.frames - self.frames % PART_ROWS + PART_ROWS
        stop = min(stop, len(self.known), self.drawn_before + self.most_frames)
        return stop if stop > self.frames else None

    def known_part(self, stop: int) -> KnownPart[LatentText]:
        """Return the known frames up to `stop`. The first frame of an utterance has no previous
        frame.
        """
        part = SpokenTextSegment.known_part(self, stop)
        return part if part.step else replace(part, before=self.known[:0])

    def bound(self, context_limit: int) -> None:
        """Limit the number of draws in each utterance to the size of the context.

        Raises `InvalidArgument` if there are more known frames than the request allows.
        """
        self.positions = context_limit
        if len(self.known):
            check_count(self.known, self.sampling.max_tokens)

    @property
    def most_frames(self) -> int:
        """The maximum number of frames in the current utterance."""
        left = self.sampling.max_tokens - self.drawn_before
        room = self.positions - self.prompt.rows + 1
        own = self.prompt.current.most_steps
        return min(left, room) if own is None else min(left, room, own)

    @property
    def out_of_draws(self) -> bool:
        """Whether the segment has used all frames that the request allows."""
        return self.frames >= self.sampling.max_tokens

    @property
    def reason(self) -> FinishReason:
        """The reason why the segment ends."""
        return FinishReason.LENGTH if self.cut else FinishReason.STOP

    def next_draw(self) -> FrameDraw[None]:
        """Return the next row and draw, marking them as launched. Only call this if `can_draw` is
        true.

        Draws are numbered across all utterances.
        """
        return replace(self.launch(None), step=self.frames)

    def end_utterance(self, frames: int) -> None:
        """End the current utterance. `frames` is the number of frames in the segment up to its
        end.
        """
        self.frames = self.drawn_before = frames
        self.prefilled = self.launched = self.shown = 0
