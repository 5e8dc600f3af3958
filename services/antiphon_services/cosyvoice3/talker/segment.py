"""One segment of the talker: its text, and the prompts that are made of it. See `lm/frames.py`.

A segment speaks its utterances one after the other in one slot, each behind a prompt of its own:
positions and counts of draws begin at 0 with every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.cosyvoice3 import FIRST
from antiphon.segment import FinishReason
from antiphon_services.cosyvoice3.talker.prompt import (
    MOST_SILENT,
    SILENT_IDS,
    SpeechPrompt,
    UtterancePrompt,
)
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import SpokenText, SpokenTextSegment


@dataclass(frozen=True, slots=True)
class DrawPlace:
    """The number of a draw among all of its segment's, whether it is `early` in its utterance, and
    whether it `continues` it, so that no end is drawn: see `UtterancePrompt`."""

    number: int
    early: bool
    continues: bool


class UtteranceTexts(SpokenText[SpeechPrompt]):
    """The `input` of a segment; then the prompts of its utterances, one of which is `current`."""

    _utterance = 0

    @property
    def current(self) -> UtterancePrompt:
        """The prompt of the utterance that is being spoken; it must have been made."""
        return self.held.utterances[self._utterance]

    @property
    def rows(self) -> int:
        """Length of the current prompt, with the first draw's row."""
        return len(self.current.ids)

    def go_on(self) -> bool:
        """Turn to the next utterance; False if there is none."""
        if self._utterance + 1 == len(self.held.utterances):
            return False
        self._utterance += 1
        return True


@dataclass(slots=True)
class SpeechSegment(SpokenTextSegment[UtteranceTexts]):
    """Utterances before the current one had `drawn_before` draws. `begins` until the current one
    has a code that left, unless it is the first of all; its last `silent` codes were silent."""

    drawn_before: int = 0
    begins: bool = False
    silent: int = 0

    def take_text(self, step: int) -> None:
        """Nothing goes with a code."""

    @property
    def handed_on(self) -> int:
        """How many draws of the current utterance have been handed on."""
        return self.shown

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be made."""
        return not self.ended and self.waiting is None and self.prompt_complete

    def bound(self, context_limit: int) -> None:
        """Nothing: the prompts are made within the limit."""

    def next_draw(self) -> FrameDraw[DrawPlace]:
        """The next row and draw, which are made now; the segment can."""
        utterance = self.prompt.current
        early = self.launched < utterance.early_draws
        continues = self.launched < utterance.least_draws
        return self.launch(DrawPlace(self.drawn_before + self.launched, early, continues))

    def taken(self, code: int) -> int | None:
        """What leaves of a code that was drawn; None if it is one silent code too many."""
        self.silent = self.silent + 1 if code in SILENT_IDS else 0
        if self.silent > MOST_SILENT:
            return None
        self.frames += 1
        marked = code + FIRST if self.begins else code
        self.begins = False
        return marked

    @property
    def limit(self) -> FinishReason | None:
        """`LENGTH` when the utterance, or the segment, has had all of its draws."""
        spent = self.launched >= self.prompt.current.most_draws
        return FinishReason.LENGTH if spent or self.out_of_draws else None

    @property
    def out_of_draws(self) -> bool:
        """Whether the request allows no more draws."""
        return self.drawn_before + self.launched >= self.sampling.max_tokens

    def next_utterance(self) -> bool:
        """Begin the next utterance; False if there is none."""
        if self.out_of_draws or not self.prompt.go_on():
            return False
        self.drawn_before += self.launched
        self.prefilled = self.launched = self.shown = self.silent = 0
        self.begins = True
        return True
