"""One segment of the talker: what it has, what it waits for, what comes next.

The prompt but its last row goes in by chunks. The last row is the first text of the
reply with a codec side that stands for a frame before the first; so from there on
each step is one row and one draw, whichever session it belongs to.

Chunks begin at multiples of `CHUNK_ROWS` and wait until all of their rows can be
computed. So how a prompt is cut up depends on the prompt alone, not on when it came or
who else is served, and neither do the digits of its keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from antiphon.sampling import Sampling
from antiphon.segment import SegmentKey
from services.qwen3_omni.talker.prompt import TOKENS, TalkerPrompt
from services.qwen3_omni.talker.readback import Drawn

CHUNK_ROWS = 128


@dataclass(slots=True)
class TalkerSegment:
    """`slot` is None until the first chunk; `prefilled` counts prompt rows that are in,
    `launched` draws that the device was asked for and `frames` those that were handed on.
    `waiting` is a draw that has been read and not handed on. After `shown` draws finite
    logits have shown that all the segment kept was finite."""

    key: SegmentKey
    voice: str
    sampling: Sampling
    prompt: TalkerPrompt
    slot: int | None = None
    prefilled: int = 0
    launched: int = 0
    frames: int = 0
    waiting: Drawn | None = None
    shown: int = 0
    ended: bool = False

    @property
    def doubtful(self) -> range:
        """Which positions of its slot may hold what is not finite."""
        first = self.prefilled + self.shown if self.shown else 0
        return range(first, self.prefilled + self.launched)

    @property
    def in_flight(self) -> bool:
        """Whether a draw was launched and not handed on."""
        return self.launched > self.frames

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is a step's and no longer the prompt's."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def next_token(self) -> int | None:
        """The text id of the next step's row; None when it has not come."""
        return self.prompt.text(self.launched - 1)

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens
        return within and self.prompt_complete and self.next_token is not None

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot go on; None while a draw is in flight."""
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        if self.prompt_complete:
            return TOKENS if self.next_token is None else None
        return None if self.next_chunk_end else self.prompt.next_prompt_edge

    @property
    def next_chunk_end(self) -> int | None:
        """Where the chunk from `prefilled` on ends; None when it is not ready or there is none."""
        total, start = self.prompt.prompt_rows, self.prefilled
        if total is None or start == total - 1:
            return None
        stop = min(start - start % CHUNK_ROWS + CHUNK_ROWS, total - 1)
        return stop if self.prompt.ready_rows >= stop else None

    def bound(self, context_limit: int) -> None:
        """Let the draws end where the context does; the prompt must be known."""
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
