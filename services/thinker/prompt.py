"""A conversation made ready for any engine: prompt ids and audio features.

Mirrors `Qwen3OmniMoeProcessor`: chat template, one placeholder id repeated for every
position that a recording takes, features. What is wrong with a request is found here,
before an engine spends anything on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.conversation import Conversation
from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import SpecialIds, user_positions
from services.thinker.audio import AudioFeatures, AudioFrontEnd
from services.thinker.chat import ChatTokenizer


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """What an engine prefills: ids int32 [P], and features for the audio ids among them."""

    ids: npt.NDArray[np.int32]
    audio: AudioFeatures | None

    @property
    def audio_positions(self) -> int:
        """How many of the positions stand for audio."""
        return sum(self.audio.positions) if self.audio else 0


@dataclass(frozen=True, slots=True)
class PromptFactory:
    """Makes prompts for one checkpoint; `context_limit` counts prompt and reply."""

    chat: ChatTokenizer
    audio: AudioFrontEnd
    special: SpecialIds
    context_limit: int

    def prepare(self, conversation: Conversation, *, speaks: bool) -> PreparedPrompt:
        """The prompt of a conversation; `speaks` if the reply is to be spoken.

        Raises `InvalidArgument` naming `messages` or `audio.N`.
        """
        if not conversation.messages:
            raise InvalidArgument("messages: there are none", field="messages")
        positions = self.audio.positions(conversation.recordings)
        short = np.asarray(self.chat.encode(conversation.messages), dtype=np.int32)
        ids = self._expand(short, positions)
        self._check(ids, speaks=speaks)
        return PreparedPrompt(ids, self.audio.extract(conversation.recordings))

    def _expand(
        self, ids: npt.NDArray[np.int32], positions: tuple[int, ...]
    ) -> npt.NDArray[np.int32]:
        """Repeat the nth audio id as often as the nth recording takes positions."""
        placeholders = np.flatnonzero(ids == self.special.audio)
        if len(placeholders) != len(positions):
            raise InvalidArgument(
                f"messages: the chat template has a place for {len(placeholders)} "
                f"of {len(positions)} recordings",
                field="messages",
            )
        repeats = np.ones(len(ids), dtype=np.intp)
        repeats[placeholders] = positions
        return np.repeat(ids, repeats)

    def _check(self, ids: npt.NDArray[np.int32], *, speaks: bool) -> None:
        """Raise unless there is room for a reply, and a user to speak to if need be."""
        if len(ids) >= self.context_limit:
            raise InvalidArgument(
                f"messages: the prompt takes {len(ids)} positions, which leaves no room "
                f"for a reply within the context limit of {self.context_limit}",
                field="messages",
            )
        if speaks and not len(user_positions(ids, self.special)):
            raise InvalidArgument(
                "messages: speech needs at least one user message", field="messages"
            )
