"""One segment of the talker: what it has, what it waits for, what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from services.lm.frames import FrameSegment
from services.qwen2_5_omni.talker.model import CodeDraw
from services.qwen2_5_omni.talker.rows import ThinkerRows


@dataclass(slots=True)
class SpokenSegment(FrameSegment[ThinkerRows]):
    """`frames` are the codes among its draws that have left."""

    @property
    def has_next_row(self) -> bool:
        """Whether the thinker's row for the next step has come."""
        return self.prompt.text(self.launched) is not None

    @property
    def missing_edge(self) -> str:
        """`prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else PROMPT

    def next_draw(self) -> CodeDraw:
        """The next row and draw, which are made now; the segment can."""
        step, text = self.launched, self.prompt.text(self.launched)
        assert text is not None
        assert self.slot is not None
        self.prompt.used(step)
        self.launched += 1
        return CodeDraw(self.slot, self.prefilled + step, text, self.sampling, step)
