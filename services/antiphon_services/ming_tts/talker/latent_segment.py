"""One segment of the talker: its text, and the prompts that are made of it. See `lm/frames.py`.

A segment speaks its utterances in order in one slot, with one stream of frames. Each has a prompt
of its own: positions and counts of draws start at 0 for every utterance.
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
    """The text of a segment, and then the prompts of its utterances, one of which is `current`.

    It arrives on `input`, or on the edge of a stage that writes it.
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
        """Whether all utterances have prompts."""
        self.rows_before = 0
        """Rows of the prompts of earlier utterances."""

    @property
    def current(self) -> LatentPrompt:
        """The prompt of the current utterance, which there must be."""
        assert self._current is not None
        return self._current

    @property
    def speaks(self) -> bool:
        """Whether there is a current utterance."""
        return self._current is not None

    @property
    def is_last(self) -> bool:
        """Whether no utterance follows the current one."""
        return self.complete and not self._waiting

    @property
    def rows(self) -> int:
        """Length of the current prompt, with the first draw's row."""
        return len(self.current.ids)

    @property
    def prompt_rows(self) -> int | None:
        """The current prompt's `rows`; None while there is no current utterance."""
        return self.rows if self.speaks else None

    def make_pieces(self, utf8: bytes, *, last: bool) -> Callable[[], LatentPrompts]:
        """See `LatentFrontEnd.prepare_piece`."""
        make, arriving = self._front_end.prepare_piece, self._arriving
        return partial(make, arriving, utf8, self._request, last=last, may_be_silent=self.written)

    def hold(self, prompt: LatentPrompts) -> None:
        """Store prepared prompts."""
        self._waiting += prompt.utterances
        self.complete = prompt.last

    def go_on(self) -> bool:
        """Make the next utterance the current one. Returns False if it is not there."""
        if self._current is not None:
            self.rows_before += len(self._current.ids)
        self._current = self._waiting.popleft() if self._waiting else None
        return self._current is not None


@dataclass(slots=True)
class LatentSegment(SpokenTextSegment[LatentText]):
    """Every draw is a frame, the last one of an utterance as well.

    Utterances before the current one had `drawn_before` frames. `cut` is set once a limit has ended
    an utterance, or left one out.
    """

    drawn_before: int = 0
    positions: int = 0
    cut: bool = False

    def take_text(self, step: int) -> None:
        """Nothing goes with a frame."""

    @property
    def handed_on(self) -> int:
        """Number of frames of the current utterance that were sent, including known ones."""
        return self.frames - self.drawn_before

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched."""
        known = self.frames < len(self.known)
        return self.prompt_complete and not known and self.launched < self.most_frames

    @property
    def next_known_end(self) -> int | None:
        """End of the next part of the known frames, within the current utterance."""
        if not self.prompt_complete or self.frames >= len(self.known):
            return None
        stop = self.frames - self.frames % PART_ROWS + PART_ROWS
        stop = min(stop, len(self.known), self.drawn_before + self.most_frames)
        return stop if stop > self.frames else None

    def known_part(self, stop: int) -> KnownPart[LatentText]:
        """The part of the known frames up to `stop`; no frame is before an utterance's first."""
        part = SpokenTextSegment.known_part(self, stop)
        return part if part.step else replace(part, before=self.known[:0])

    def bound(self, context_limit: int) -> None:
        """Limit the draws of each utterance to the context.

        Raises `InvalidArgument` for more known frames than the request allows.
        """
        self.positions = context_limit
        if len(self.known):
            check_count(self.known, self.sampling.max_tokens)

    @property
    def most_frames(self) -> int:
        """The most frames of the current utterance."""
        left = self.sampling.max_tokens - self.drawn_before
        room = self.positions - self.prompt.rows + 1
        own = self.prompt.current.most_steps
        return min(left, room) if own is None else min(left, room, own)

    @property
    def out_of_draws(self) -> bool:
        """Whether the request allows no more frames."""
        return self.frames >= self.sampling.max_tokens

    @property
    def reason(self) -> FinishReason:
        """Why the segment ends."""
        return FinishReason.LENGTH if self.cut else FinishReason.STOP

    def next_draw(self) -> FrameDraw[None]:
        """The next row and draw, which are made now; the segment can. Draws are counted over all
        utterances."""
        return replace(self.launch(None), step=self.frames)

    def end_utterance(self, frames: int) -> None:
        """End the current utterance after so many frames of the segment."""
        self.frames = self.drawn_before = frames
        self.prefilled = self.launched = self.shown = 0
