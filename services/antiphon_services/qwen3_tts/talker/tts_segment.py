"""The state of a talker segment, which consists of its text and the prompt prepared from it. See
`lm/frames.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import SpokenText, SpokenTextSegment
from antiphon_services.qwen3_tts.talker.prompt import Prompt

INPUT = "input"


class TtsText(SpokenText[Prompt]):
    """A segment's `input`, and its prompt once this has been prepared."""

    @property
    def rows(self) -> int:
        """The length of the prompt, including the row for the first draw."""
        return len(self.held.text)


@dataclass(slots=True)
class TtsSegment(SpokenTextSegment[TtsText]):
    """A segment of Qwen3-TTS. There is always a next row, because the text is followed by
    padding.
    """

    def take_text(self, step: int) -> int | None:
        """Return the text ID for draw number `step`, or None for padding."""
        return self.prompt.held.beside(step)

    def next_draw(self) -> FrameDraw[int | None]:
        """Return the next row and its draw, marking them as launched. The segment must be able to
        draw.
        """
        return self.launch(self.take_text(self.launched))
