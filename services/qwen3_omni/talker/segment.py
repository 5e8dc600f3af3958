"""One segment of the talker: what it has, what it waits for, what comes next.

The prompt's last row is the first text of the reply with a codec side that stands for a frame
before the first; so from there on each step is one row and one draw, whichever session it
belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.lm.frames import FrameSegment
from services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt
from services.qwen3_omni.talker.readback import Drawn


@dataclass(slots=True)
class TalkerSegment(FrameSegment[TalkerPrompt]):
    """`frames` are the draws that were handed on; `waiting` is one that has been read and not
    handed on."""

    waiting: Drawn | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a draw was launched and not handed on."""
        return self.launched > self.frames

    @property
    def next_token(self) -> int | None:
        """The text id of the next step's row; None when it has not come."""
        return self.prompt.text(self.launched - 1)

    @property
    def has_next_row(self) -> bool:
        """Whether the next step's text has come."""
        return self.next_token is not None

    @property
    def missing_edge(self) -> str:
        """`prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else self.prompt.next_prompt_edge
