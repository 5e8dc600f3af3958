"""One segment of the talker: what it has, what it waits for, what comes next.

The prompt goes in by parts that begin at multiples of `PART_ROWS` and wait until all of their
rows have come. So how a prompt is cut up depends on the prompt alone, not on when it came or who
else is served, and neither do the digits of its keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from antiphon.sampling import Sampling
from antiphon.segment import SegmentKey
from services.qwen2_5_omni.talker.ids import PROMPT, TOKENS
from services.qwen2_5_omni.talker.model import CodeDraw, PromptPart
from services.qwen2_5_omni.talker.rows import ThinkerRows

PART_ROWS = 128


@dataclass(slots=True)
class SpokenSegment:
    """`slot` is None until the first chunk; `prefilled` counts prompt rows that are in, `drawn`
    draws and `sent` the codes among them that have left. After `shown` draws finite logits have
    shown that all the segment kept was finite."""

    key: SegmentKey
    voice: str
    sampling: Sampling
    rows: ThinkerRows
    slot: int | None = None
    prefilled: int = 0
    drawn: int = 0
    sent: int = 0
    shown: int = 0
    ended: bool = False

    @property
    def doubtful(self) -> range:
        """Which positions of its slot may hold what is not finite."""
        first = self.prefilled + self.shown if self.shown else 0
        return range(first, self.prefilled + self.drawn)

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is a step's and no longer the prompt's."""
        return self.prefilled == self.rows.prompt_rows

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be made."""
        return self.prompt_complete and self.rows.text(self.drawn) is not None

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot go on."""
        if self.ended or self.rows.silent:
            return None
        if self.prompt_complete:
            return None if self.can_draw else TOKENS
        return None if self.next_part_end else PROMPT

    @property
    def next_part_end(self) -> int | None:
        """Where the part from `prefilled` on ends; None when it is not ready or there is none."""
        total, start = self.rows.prompt_rows, self.prefilled
        stop = start - start % PART_ROWS + PART_ROWS
        stop = stop if total is None else min(stop, total)
        return stop if start < stop <= self.rows.ready_rows else None

    def next_part(self) -> PromptPart:
        """The prompt's next part, which is computed now; there is one."""
        start, stop = self.prefilled, self.next_part_end
        assert stop is not None
        assert self.slot is not None
        self.prefilled = stop
        return PromptPart(self.slot, start, stop, self.rows, self.voice)

    def next_draw(self) -> CodeDraw:
        """The next row and draw, which are made now; the segment can."""
        step, text = self.drawn, self.rows.text(self.drawn)
        assert text is not None
        assert self.slot is not None
        self.rows.used(step)
        self.drawn += 1
        return CodeDraw(self.slot, self.prefilled + step, text, self.sampling, step)

    def bound(self, context_limit: int) -> None:
        """Let the draws end where the context does; the prompt must be complete."""
        room = context_limit - (self.rows.prompt_rows or 0)
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
