"""The state of a talker segment.

The last row of the prompt has the first text id of the reply, and a codec side in place of a
previous frame. From there on each step is one row and one draw for every segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameSegment
from antiphon_services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt


@dataclass(slots=True)
class TalkerSegment(FrameSegment[TalkerPrompt]):
    """A talker segment; `frames` counts the draws that were emitted."""

    def has_row(self, step: int) -> bool:
        """Return whether the text id of draw `step` has arrived."""
        return self.prompt.text(step - 1) is not None

    def take_text(self, step: int) -> int:
        """Return the text id of draw `step`."""
        token = self.prompt.text(step - 1)
        assert token is not None
        return token

    def least_part_rows(self, start: int) -> int:
        """The rows between a recording's last full window and the end of the turn form a part of
        any length, so that later turns continue after it."""
        if self.prompt.is_behind_window(start):
            return 1
        return FrameSegment.least_part_rows(self, start)

    @property
    def missing_edge(self) -> str:
        """The edge that the segment waits for: `prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else self.prompt.next_prompt_edge
