"""One segment of the talker: what it has, what it waits for, what comes next.

The prompt's last row is the first text of the reply with a codec side that stands for a frame
before the first; so from there on each step is one row and one draw, whichever session it
belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameSegment
from antiphon_services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt


@dataclass(slots=True)
class TalkerSegment(FrameSegment[TalkerPrompt]):
    """`frames` are the draws that were handed on."""

    def has_row(self, step: int) -> bool:
        """Whether the text of draw number `step` has come."""
        return self.prompt.text(step - 1) is not None

    def take_text(self, step: int) -> int:
        """The text id of that row."""
        token = self.prompt.text(step - 1)
        assert token is not None
        return token

    def least_part_rows(self, start: int) -> int:
        """What follows a recording's last whole window has a part of its own up to the turn's end,
        however short: later turns go on behind it."""
        if self.prompt.is_behind_window(start):
            return 1
        return FrameSegment.least_part_rows(self, start)

    @property
    def missing_edge(self) -> str:
        """`prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else self.prompt.next_prompt_edge
