"""One segment of the talker: its text, and the prompts that are made of it. See `lm/frames.py`.

A segment speaks its utterances in order in one slot, with one stream of frames. Each has a prompt
of its own: positions and counts of draws start at 0 for every utterance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from antiphon.errors import InvalidArgument
from antiphon.pipelines.edges import PIECE
from antiphon.pipelines.ming_tts import INPUT
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frames import PART_ROWS, FrameDraw
from antiphon_services.lm.known_frames import KnownPart, check_count
from antiphon_services.lm.spoken_text import ENCODING_WEIGHT, SpokenText, SpokenTextSegment
from antiphon_services.ming_tts.talker.front_end import LatentFrontEnd, LatentPrompts
from antiphon_services.ming_tts.talker.prompt import LatentPrompt
from antiphon_services.ming_tts.talker.utterances import ArrivingText
from antiphon_services.ming_tts.talker.voice_options import MingVoiceRequest
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.utf8_pieces import PIECES


class LatentText(SpokenText[LatentPrompts]):
    """The text of a segment, and then the prompts of its utterances, one of which is `current`.

    It arrives on `input`, whole, as one message, or in pieces. On another edge, that of a stage
    which writes, it arrives in pieces beside other tensors, and may be empty.
    """

    def __init__(
        self, front_end: LatentFrontEnd, request: MingVoiceRequest, edge: str = INPUT
    ) -> None:
        recording_bytes = 0 if request.reference is None else request.reference.nbytes
        make: Callable[[Tensors], LatentPrompts] = partial(front_end.prepare, request=request)
        super().__init__(edge, front_end.check_size, make, recording_bytes)
        self._front_end, self._request = front_end, request
        self._waiting: deque[LatentPrompt] = deque()
        self._current: LatentPrompt | None = None
        self.complete = False
        """Whether all utterances have prompts."""
        self.rows_before = 0
        """Rows of the prompts of earlier utterances."""
        # For a text in pieces: the waiting pieces, and the number of bytes that arrived.
        self._is_fed = edge != INPUT
        self._arriving = ArrivingText() if self._is_fed else None
        self._pieces: list[bytes] = []
        self._text_bytes = 0

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

    def accept(self, chunk: InputChunk) -> None:
        """Store the text, or a piece of it. Raises `InvalidArgument`."""
        piece = chunk.tensors.get(PIECE)
        if piece is None and self._arriving is None:
            super().accept(chunk)
            return
        if chunk.edge != self.edge:
            raise InvalidArgument(f"the stage has no input edge {chunk.edge!r}", edge=chunk.edge)
        if self._tensors or (chunk.tensors.keys() - {PIECE} and not self._is_fed):
            raise InvalidArgument(
                f"{PIECES}: a text comes as `messages` or in pieces; send one of them", field=PIECES
            )
        self._arriving = self._arriving or ArrivingText()
        if piece is not None:
            self._text_bytes += piece.nbytes
            self._front_end.check_pieces(self._text_bytes)
            self._pieces.append(piece.tobytes())
        self._finished = chunk.segment_finished

    def begin(
        self, key: SegmentKey, preparations: Preparations[LatentPrompts]
    ) -> Future[LatentPrompts] | None:
        """Start to prepare the prompts of a whole text, or of the pieces that have arrived."""
        if self._arriving is None:
            return super().begin(key, preparations)
        if not self._pieces and not self._finished:
            return None
        text, self._pieces = b"".join(self._pieces), []
        last, self._finished = self._finished, False
        make = self._front_end.prepare_piece
        return preparations.begin(
            key,
            partial(
                make, self._arriving, text, self._request, last=last, may_be_silent=self._is_fed
            ),
            text_bytes=len(text),
            media_bytes=ENCODING_WEIGHT * self._recording_bytes,
        )

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
