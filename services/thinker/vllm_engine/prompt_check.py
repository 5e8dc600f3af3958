"""Refuses the prompts that would end vLLM's engine, for everybody, before it sees them.

vLLM checks ids only where it has a tokeniser, and its position code assumes one more id
after each recording: a prompt that breaks one of these rules takes all sessions with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import SpecialIds
from services.thinker.prompt import PreparedPrompt


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """The rules of one engine: ids below `vocabulary`, recordings only where it `hears`."""

    special: SpecialIds
    vocabulary: int
    hears: bool

    def short_ids(self, prompt: PreparedPrompt) -> npt.NDArray[np.int32]:
        """The prompt's ids as vLLM wants them: one placeholder for each recording.

        Raises `InvalidArgument` for a prompt that vLLM must not see.
        """
        self._check_ids(prompt.ids)
        positions = prompt.audio.positions if prompt.audio else ()
        if positions and not self.hears:
            raise InvalidArgument(
                "messages: this thinker takes no recordings (pipeline_parallel_size above 1)",
                field="messages",
            )
        is_audio = prompt.ids == self.special.audio
        begins = is_audio & ~np.concatenate([[False], is_audio[:-1]])
        starts = np.flatnonzero(begins)
        ends = np.flatnonzero(is_audio & ~np.concatenate([is_audio[1:], [False]])) + 1
        self._check_places(starts, ends, positions, len(prompt.ids))
        short: npt.NDArray[np.int32] = prompt.ids[begins | ~is_audio]
        return short

    def _check_ids(self, ids: npt.NDArray[np.int32]) -> None:
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocabulary))
        if len(outside):
            raise InvalidArgument(
                f"messages: id {ids[outside[0]]} at position {outside[0]} is outside the "
                f"model's vocabulary of {self.vocabulary}",
                field="messages",
            )
        seen = np.flatnonzero(np.isin(ids, (self.special.image, self.special.video)))
        if len(seen):
            raise InvalidArgument(
                f"messages: a placeholder of an image or video at position {seen[0]}, "
                "but neither is taken",
                field="messages",
            )

    def _check_places(
        self,
        starts: npt.NDArray[np.intp],
        ends: npt.NDArray[np.intp],
        positions: tuple[int, ...],
        length: int,
    ) -> None:
        lengths = (ends - starts).tolist()
        if lengths != list(positions):
            # Two places side by side look like one that is too long.
            raise InvalidArgument(
                f"messages: the prompt has places of {lengths} positions for recordings that "
                f"take {list(positions)}; each must have one of its own, parted from the next",
                field="messages",
            )
        if len(ends) and ends[-1] == length:
            raise InvalidArgument(
                "messages: the prompt ends with a recording's place; words must follow it",
                field="messages",
            )
