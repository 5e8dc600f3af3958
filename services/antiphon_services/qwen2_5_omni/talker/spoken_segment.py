"""One segment of the talker: what it has, what it waits for, what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon_services.lm.frames import FrameDraw, FrameSegment
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.qwen2_5_omni.talker.model import RowText
from antiphon_services.qwen2_5_omni.talker.rows import ThinkerRows


@dataclass(slots=True)
class SpokenSegment(FrameSegment[ThinkerRows]):
    """`frames` are the codes among its draws that have left; rows of `tried` draws are in."""

    tried: int = 0

    def has_row(self, step: int) -> bool:
        """Whether the thinker's row for draw number `step` has come."""
        return self.prompt.text(step) is not None

    def take_text(self, step: int) -> RowText:
        """What the thinker has for that row."""
        text = self.prompt.text(step)
        assert text is not None
        return text

    @property
    def handed_on(self) -> int:
        """Draws are more than the codes that left."""
        return self.shown

    @property
    def most_frames(self) -> int:
        """The last draw allowed is a code like any other."""
        return self.sampling.max_tokens

    @property
    def doubtful(self) -> range:
        """See `FrameSegment.doubtful`: rows behind a draw that came out otherwise, too."""
        # Slots make the class anew, so that `super()` alone would not find it.
        doubtful = super(SpokenSegment, self).doubtful
        return range(doubtful.start, max(doubtful.stop, self.prefilled + self.tried))

    def next_known(self, most: int) -> KnownPart[ThinkerRows] | None:
        """Rows of known codes, which are drawn all the same: the draws among them that are no code
        are known to nobody. None if a row of them has not come, there are none, or more than so
        many."""
        stop = self.next_known_end
        if stop is None or stop - self.frames > most:
            return None
        stop = min(stop, self.frames + self.sampling.max_tokens - self.launched)
        part = self.known_part(stop)
        self.tried = max(self.tried, self.launched + len(part.frames))
        return part

    @property
    def missing_edge(self) -> str:
        """`prompt` or `tokens`."""
        return TOKENS if self.prompt_complete else PROMPT

    def next_draw(self) -> FrameDraw[RowText]:
        """The next row and draw, which are made now; the segment can."""
        text = self.take_text(self.launched)
        self.prompt.used(self.launched)
        return self.launch(text)

    def drawn(self) -> None:
        """The next draw was made with rows of known codes."""
        self.prompt.used(self.launched)
        self.launched += 1
