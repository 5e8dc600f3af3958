"""The state of a talker segment: its text, and the prompt that was made from it. See
`lm/frames.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import SpokenText, SpokenTextSegment
from antiphon_services.qwen3_tts.talker.prompt import Prompt

INPUT = "input"


class TtsText(SpokenText[Prompt]):
    """The `input` of a segment, and then its prompt."""

    @property
    def rows(self) -> int:
        """The prompt length, including the row of the first draw."""
        return len(self.held.text)


@dataclass(slots=True)
class TtsSegment(SpokenTextSegment[TtsText]):
    """A segment of Qwen3-TTS. Its text is followed by padding, so there is always a next row."""

    def take_text(self, step: int) -> int | None:
        """Return the text ID of draw number `step`, or None for padding."""
        return self.prompt.held.beside(step)

    def next_draw(self) -> FrameDraw[int | None]:
        """Return the next row and its draw, and mark them as launched. The segment must be able to
        draw.
        """
        return self.launch(self.take_text(self.launched))
