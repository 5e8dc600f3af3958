"""The state of a talker segment.

The last row of the prompt contains the first text ID of the reply. In place of a previous frame, it
contains a special codec side. After that, each step consists of one row and one draw for every
segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameSegment
from antiphon_services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt


@dataclass(slots=True)
class TalkerSegment(FrameSegment[TalkerPrompt]):
    """A talker segment. `frames` is the number of draws that were emitted."""

    def has_row(self, step: int) -> bool:
        """Return whether the text ID of draw number `step` has arrived."""
        return self.prompt.text(step - 1) is not None

    def take_text(self, step: int) -> int:
        """Return the text ID of draw number `step`."""
        token = self.prompt.text(step - 1)
        assert token is not None
        return token

    def least_part_rows(self, start: int) -> int:
        """Return the minimum length of a part.

        The rows between the last full window of a recording and the end of the turn form a part of
        any length, so that later turns can continue after it.
        """
        if self.prompt.is_behind_window(start):
            return 1
        return FrameSegment.least_part_rows(self, start)

    @property
    def missing_edge(self) -> str:
        """The edge on which the segment is waiting, which is `prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else self.prompt.next_prompt_edge
