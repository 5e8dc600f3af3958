"""One segment of the talker: its text, and the prompt that is made of it. See `lm/frames.py`."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import SpokenText, SpokenTextSegment
from antiphon_services.ming_tts.talker.prompt import LatentPrompt


class LatentText(SpokenText[LatentPrompt]):
    """The `input` of a segment; then its prompt."""

    @property
    def rows(self) -> int:
        """Length of the prompt, with the first draw's row."""
        return len(self.held.ids)

    @property
    def most_steps(self) -> int | None:
        """The prompt's `most_steps`; None until it is made."""
        return None if self._held is None else self._held.most_steps


@dataclass(slots=True)
class LatentSegment(SpokenTextSegment[LatentText]):
    """Every draw is a frame, the last one as well."""

    def take_text(self, step: int) -> None:
        """Nothing goes with a frame."""

    @property
    def most_frames(self) -> int:
        """All draws that it may have, as far as is known before the prompt is made."""
        most, own = self.sampling.max_tokens, self.prompt.most_steps
        return most if own is None else min(most, own)

    def next_draw(self) -> FrameDraw[None]:
        """The next row and draw, which are made now; the segment can."""
        return self.launch(None)
