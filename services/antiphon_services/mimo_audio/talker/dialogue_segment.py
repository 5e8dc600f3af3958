"""A segment of the talker: its conversation, the prompt made from it, and the answer.

Each draw produces one position. A position is either a text token, or a special token that stands
for a group together with the frames of the group. The base classes are in
`antiphon_services.lm.frames`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from antiphon.values.history import History
from antiphon.values.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.spoken_text import ConversationInput, JointSegment
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReleasedText, ReplyText

Frames = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class PositionDraw:
    """The index of a draw in its answer, and the sampling settings for its codes. Known positions
    are counted in the index.
    """

    number: int
    code_sampling: Sampling


class DialogueInput(ConversationInput[TaskPrompt]):
    """Receives the `input` of a segment and stores its prompt."""

    @property
    def rows(self) -> int:
        """The length of the prompt, including the row of the first draw."""
        return len(self.held.ids)


@dataclass(slots=True)
class DialogueSegment(JointSegment[DialogueInput]):
    """A segment of the talker.

    `code_sampling` is the sampling of the codes. `groups` contains groups that have been drawn but
    cannot be emitted yet. `speaks` is true until the speech of the answer ends.
    """

    given: frozenset[str] = frozenset()
    code_sampling: Sampling | None = None
    history: History | None = None
    wants_text: bool = False
    wants_codes: bool = False
    reply: ReplyText | None = None
    logprobs: ReplyLogprobs | None = None
    speaks: bool = True
    groups: deque[Frames] = field(default_factory=deque)

    def bound(self, context_limit: int) -> None:
        """Does nothing, because the length of the reply is limited when it starts."""

    def next_draw(self) -> FrameDraw[PositionDraw]:
        """Return the next row and draw, marking them as launched. Only call this if `can_draw` is
        true.
        """
        assert self.code_sampling is not None
        number = self.prompt.held.known + self.launched
        return self.launch(PositionDraw(number, self.code_sampling))

    def leaving(self, release: ReleasedText, group: int, speech_end: int) -> Frames | None:
        """Return the frames that can be emitted with a text release, or None if there are none.

        The result is a uint16 array of shape [n, channels].
        """
        left: list[Frames] = []
        for id_ in release.spoken:
            self.speaks = self.speaks and id_ != speech_end
            if id_ == group:
                frames = self.groups.popleft()
                if self.speaks:
                    left.append(frames)
        return np.concatenate(left) if left else None
