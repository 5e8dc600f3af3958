"""One segment of the talker: its conversation, the prompt that is made of it, and its answer.

See `antiphon_services.lm.frames`. A draw is a position: an id of text, or the id that stands for a
group and a group of frames.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from antiphon.values.history import History
from antiphon.values.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import ConversationInput, SpokenTextSegment
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReleasedText, ReplyText

Frames = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class PositionDraw:
    """The number of a draw in its answer, known positions included, and how codes are drawn."""

    number: int
    code_sampling: Sampling


class DialogueInput(ConversationInput[TaskPrompt]):
    """The `input` of a segment; then its prompt."""

    @property
    def rows(self) -> int:
        """Length of the prompt, with the first draw's row."""
        return len(self.held.ids)


@dataclass(slots=True)
class DialogueSegment(SpokenTextSegment[DialogueInput]):
    """`code_sampling` is that of codes. Groups that were drawn and may not leave yet wait in
    `groups`; `speaks` until the answer's speech has ended."""

    given: frozenset[str] = frozenset()
    code_sampling: Sampling | None = None
    history: History | None = None
    wants_text: bool = False
    wants_codes: bool = False
    reply: ReplyText | None = None
    logprobs: ReplyLogprobs | None = None
    speaks: bool = True
    groups: deque[Frames] = field(default_factory=deque)

    @property
    def handed_on(self) -> int:
        """How many draws have been handed on."""
        return self.shown

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be made."""
        return not self.ended and self.waiting is None and self.prompt_complete

    def take_text(self, step: int) -> None:
        """Nothing goes with a draw."""

    def bound(self, context_limit: int) -> None:
        """Nothing: the reply is bounded when it begins."""

    def next_draw(self) -> FrameDraw[PositionDraw]:
        """The next row and draw, which are made now; the segment can."""
        assert self.code_sampling is not None
        number = self.prompt.held.known + self.launched
        return self.launch(PositionDraw(number, self.code_sampling))

    def leaving(self, release: ReleasedText, group: int, speech_end: int) -> Frames | None:
        """uint16 [n, channels]: the frames that a release lets go; None if there are none."""
        left: list[Frames] = []
        for id_ in release.spoken:
            self.speaks = self.speaks and id_ != speech_end
            if id_ == group:
                frames = self.groups.popleft()
                if self.speaks:
                    left.append(frames)
        return np.concatenate(left) if left else None
