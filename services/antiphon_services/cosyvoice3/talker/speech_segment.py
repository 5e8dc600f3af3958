"""The state of a talker segment: its text and the prompts made from it.

A segment speaks its utterances in order and uses a single slot. Each utterance has its own prompt,
and its positions and draws are counted from 0. Streamed text is one utterance that consists of
several turns, which all use the same positions of the slot. The base classes are in `lm/frames.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from antiphon.pipelines.cosyvoice3 import FIRST, INPUT
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.talker.front_end import UtteranceFrontEnd
from antiphon_services.cosyvoice3.talker.growing_text import GrowingText
from antiphon_services.cosyvoice3.talker.interleaved import InterleavedText
from antiphon_services.cosyvoice3.talker.prompt import (
    MOST_SILENT,
    SILENT_IDS,
    SpeechPrompt,
    UtterancePrompt,
)
from antiphon_services.cosyvoice3.talker.voice_options import VoiceRequest
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.spoken_text import JointSegment
from antiphon_services.lm.text_in_pieces import TextInPieces
from antiphon_services.stage.preparation import Preparations


@dataclass(frozen=True, slots=True)
class DrawPlace:
    """The indices of a draw and the restrictions that apply to it.

    `number` is the index of the draw in the segment, and `place` is its index among all tokens of
    the utterance. `early` and `continues` are described in `UtterancePrompt`. If `continues` is
    true, the draw cannot end the utterance.
    """

    number: int
    place: int
    early: bool
    continues: bool


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The token IDs that a piece of streamed text adds.

    `last` is true for the last piece. `opened` is the newly opened utterance for the first piece,
    and None for the pieces after it.
    """

    ids: list[int]
    last: bool
    opened: InterleavedText | None


class UtteranceTexts(TextInPieces[SpeechPrompt | TextPiece]):
    """Receives the `input` of a segment and stores the prompts of its utterances.

    `current` is the prompt of the current utterance. Streamed text is a single utterance, so in
    this case `current` is one of its turns.
    """

    def __init__(self, front_end: UtteranceFrontEnd, request: VoiceRequest) -> None:
        make = partial(front_end.prepare, request=request)
        super().__init__(INPUT, front_end, make, request.reference)
        self._open: Callable[[], InterleavedText] | None = partial(front_end.open, request)
        self._growing = front_end.growing_text()
        self._utterance = 0
        self._interleaved: InterleavedText | None = None
        self._turn: UtterancePrompt | None = None
        self._awaits_turn = True

    @property
    def current(self) -> UtterancePrompt:
        """The current prompt or turn, which must already be prepared."""
        if self._interleaved is not None:
            assert self._turn is not None
            return self._turn
        assert isinstance(self.held, SpeechPrompt)
        return self.held.utterances[self._utterance]

    @property
    def rows(self) -> int:
        """The end of the current prompt in the slot, including the row of the first draw."""
        return self.current.first + len(self.current.ids)

    @property
    def prompt_rows(self) -> int | None:
        """The value of `rows`, or None if the prompt is not prepared or the segment waits for more
        text.
        """
        if self.in_pieces:
            return None if self._awaits_turn else self.rows
        return super().prompt_rows

    def make_pieces(self, utf8: bytes, *, last: bool) -> Callable[[], TextPiece]:
        """Return a function that tokenizes a piece of text. The first piece also opens the
        utterance.
        """
        return partial(_piece, self._growing, utf8, last, self._open)

    def begin(
        self, key: SegmentKey, preparations: Preparations[SpeechPrompt | TextPiece]
    ) -> Future[SpeechPrompt | TextPiece] | None:
        """Implements `TextInPieces.begin`.

        The recording is only encoded once and can be released afterwards.
        """
        begun = super().begin(key, preparations)
        if begun is not None:
            self._open, self._recording_bytes = None, 0
        return begun

    def hold(self, prompt: SpeechPrompt | TextPiece) -> None:
        """Store a prepared prompt or the tokens of a piece."""
        if isinstance(prompt, SpeechPrompt):
            super().hold(prompt)
            return
        self._interleaved = prompt.opened or self._interleaved
        assert self._interleaved is not None
        self._interleaved.add(prompt.ids, last=prompt.last)

    def go_on(self) -> bool:
        """Select the next utterance. Return False if there is none."""
        if self.in_pieces:
            return False
        assert isinstance(self.held, SpeechPrompt)
        if self._utterance + 1 == len(self.held.utterances):
            return False
        self._utterance += 1
        return True

    def end_turn(self, code: int | None, *, forced: bool) -> None:
        """End the current turn and wait for more text, as described in
        `InterleavedText.end_turn`.
        """
        assert self._interleaved is not None
        self._interleaved.end_turn(code, forced=forced)
        self._awaits_turn = True

    def next_turn(self, drawn: int) -> bool:
        """Start the next turn if the segment waits for one and its text has arrived."""
        if not self._awaits_turn:
            return False
        assert self._interleaved is not None
        turn = self._interleaved.next_turn(self._turn, drawn)
        if turn is not None:
            self._turn, self._awaits_turn = turn, False
        return turn is not None

    def placed(self, part: PromptPart[Any]) -> PromptPart[Any]:
        """Shift a part of the current prompt to its positions in the slot, which follow earlier
        draws.
        """
        drawn = self.current.drawn
        return replace(part, start=part.start + drawn, stop=part.stop + drawn)


def _piece(
    growing: GrowingText, text: bytes, last: bool, open_: Callable[[], InterleavedText] | None
) -> TextPiece:
    opened = None if open_ is None else open_()
    return TextPiece(growing.take(text, last=last), last, opened)


@dataclass(slots=True)
class SpeechSegment(JointSegment[UtteranceTexts]):
    """A CosyVoice3 segment.

    `drawn_before` is the number of draws in earlier utterances. `begins` is true if the current
    utterance is not the first one and has not emitted a code yet. `silent` is the number of silent
    codes at the end of the current utterance, and `last_code` is the most recent code.
    """

    drawn_before: int = 0
    begins: bool = False
    silent: int = 0
    last_code: int = 0

    def bound(self, context_limit: int) -> None:
        """Does nothing, because the prompts are prepared to fit within the limit."""

    def next_draw(self) -> FrameDraw[DrawPlace]:
        """Return the next row and draw, marking them as launched. Only call this if `can_draw` is
        true.
        """
        utterance, drawn = self.prompt.current, self.launched
        place = DrawPlace(
            number=self.drawn_before + drawn,
            place=drawn + utterance.forced,
            early=drawn < utterance.early_draws,
            continues=drawn < utterance.least_draws,
        )
        return self.launch(place)

    def taken(self, code: int) -> int | None:
        """Return the code to emit, or None if there are too many consecutive silent codes."""
        self.last_code = code
        self.silent = self.silent + 1 if code in SILENT_IDS else 0
        if self.silent > MOST_SILENT:
            return None
        self.frames += 1
        marked = code + FIRST if self.begins else code
        self.begins = False
        return marked

    @property
    def limit(self) -> FinishReason | None:
        """`LENGTH` if the utterance or the segment has used all of its draws."""
        spent = self.launched >= self.prompt.current.most_draws
        return FinishReason.LENGTH if spent or self.out_of_draws else None

    @property
    def doubtful(self) -> range:
        """The positions of the slot that might contain non-finite values.

        The positions of a turn are included until a draw after the turn has been emitted.
        """
        turn = self.prompt.current if self.prompt.prompt_rows is not None else None
        if turn is not None and self.shown <= turn.drawn:
            first = turn.first + turn.drawn
        else:
            first = self.prefilled + self.shown
        return range(first, self.prefilled + self.launched)

    def asks(self, *, forced: bool) -> bool:
        """End the turn if it can request more text.

        `forced` is true if the end was forced and false if it was sampled. Returns False if the
        segment ends.
        """
        turn = self.prompt.current
        if not turn.asks or self.out_of_draws:
            return False
        codes = self.launched - turn.drawn - (not forced)
        self.prompt.end_turn(self.last_code if codes else None, forced=forced)
        return True

    @property
    def out_of_draws(self) -> bool:
        """Whether the segment has used all draws that the request allows."""
        return self.drawn_before + self.launched >= self.sampling.max_tokens

    def next_utterance(self) -> bool:
        """Start the next utterance. Return False if there is none."""
        if self.out_of_draws or not self.prompt.go_on():
            return False
        self.drawn_before += self.launched
        self.prefilled = self.launched = self.shown = self.silent = 0
        self.begins = True
        return True
