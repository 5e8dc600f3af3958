"""One segment of the talker: its text, and the prompt that is made of it. See `lm/frames.py`."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import SpokenText, SpokenTextSegment
from antiphon_services.qwen3_tts.talker.prompt import Prompt

INPUT = "input"


class TtsText(SpokenText[Prompt]):
    """The `input` of a segment; then the prompt that was made of it."""

    @property
    def rows(self) -> int:
        """Length of the prompt, with the first draw's row."""
        return len(self.held.text)


@dataclass(slots=True)
class TtsSegment(SpokenTextSegment[TtsText]):
    """Behind its text comes padding, so that there always is a next row."""

    def take_text(self, step: int) -> int | None:
        """The text id of that row; None for padding."""
        return self.prompt.held.beside(step)

    def next_draw(self) -> FrameDraw[int | None]:
        """The next row and draw, which are made now; the segment can."""
        return self.launch(self.take_text(self.launched))
