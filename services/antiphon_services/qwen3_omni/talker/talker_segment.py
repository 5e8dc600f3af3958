"""The state of a talker segment.

The prompt's last row contains the reply's first text ID. Since there is no previous frame yet, the
row's codec side is a special one. After that, each step consists of one row and one draw for every
segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameSegment
from antiphon_services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt


@dataclass(slots=True)
class TalkerSegment(FrameSegment[TalkerPrompt]):
    """A talker segment. `frames` is the number of draws that have been emitted."""

    def has_row(self, step: int) -> bool:
        """Return whether the text ID for draw number `step` has arrived."""
        return self.prompt.text(step - 1) is not None

    def take_text(self, step: int) -> int:
        """Return the text ID for draw number `step`."""
        token = self.prompt.text(step - 1)
        assert token is not None
        return token

    def least_part_rows(self, start: int) -> int:
        """Return the minimum length of a part.

        The rows between a recording's last full window and the end of the turn can form a part of
        any length, so that later turns can continue after it.
        """
        if self.prompt.is_behind_window(start):
            return 1
        return FrameSegment.least_part_rows(self, start)

    @property
    def missing_edge(self) -> str:
        """The edge that the segment is waiting for, which is `prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else self.prompt.next_prompt_edge
