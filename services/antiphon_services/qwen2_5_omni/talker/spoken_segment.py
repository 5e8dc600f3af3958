"""The state of a talker segment."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon_services.lm.frames import FrameDraw, FrameSegment
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.qwen2_5_omni.talker.model import RowText
from antiphon_services.qwen2_5_omni.talker.rows import ThinkerRows


@dataclass(slots=True)
class SpokenSegment(FrameSegment[ThinkerRows]):
    """A talker segment. `frames` is the number of codes that have been emitted. The slot contains
    the rows of `tried` draws.
    """

    tried: int = 0

    def has_row(self, step: int) -> bool:
        """Return whether the thinker row for draw number `step` has arrived."""
        return self.prompt.text(step) is not None

    def take_text(self, step: int) -> RowText:
        """Return the text side of the row for draw number `step`."""
        text = self.prompt.text(step)
        assert text is not None
        return text

    @property
    def handed_on(self) -> int:
        """The number of draws that have been processed. It can exceed the number of emitted
        codes.
        """
        return self.shown

    @property
    def most_frames(self) -> int:
        """The maximum number of codes. The last allowed draw is an ordinary code."""
        return self.sampling.max_tokens

    @property
    def doubtful(self) -> range:
        """Like `FrameSegment.doubtful`, but also includes the rows after a draw that differed from
        its known code.
        """
        # Because of `slots=True`, `super()` without arguments would fail: the decorator creates a
        # new class.
        doubtful = super(SpokenSegment, self).doubtful
        return range(doubtful.start, max(doubtful.stop, self.prefilled + self.tried))

    def next_known(self, most: int) -> KnownPart[ThinkerRows] | None:
        """Return the rows of known codes, which are sampled again because some draws among them may
        not have been codes. A client doesn't know about such draws.

        Returns None if one of the rows hasn't arrived, if there are no known codes, or if there are
        more than `most`.
        """
        stop = self.next_known_end
        if stop is None or stop - self.frames > most:
            return None
        stop = min(stop, self.frames + self.sampling.max_tokens - self.launched)
        part = self.known_part(stop)
        self.tried = max(self.tried, self.launched + len(part.frames))
        return part

    @property
    def missing_edge(self) -> str:
        """The edge that the segment is waiting for, which is `prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else PROMPT

    def next_draw(self) -> FrameDraw[RowText]:
        """Return the next row and its draw, marking them as launched. The segment must be able to
        draw.
        """
        text = self.take_text(self.launched)
        self.prompt.used(self.launched)
        return self.launch(text)

    def drawn(self) -> None:
        """Mark the next draw as launched together with the rows of known codes."""
        self.prompt.used(self.launched)
        self.launched += 1
