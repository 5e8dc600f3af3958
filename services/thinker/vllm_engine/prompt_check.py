"""Refuses the prompts that would end vLLM's engine, for everybody, before it sees them.

vLLM checks ids only where it has a tokeniser, and its position code assumes one more id
after each recording, image and video: a prompt that breaks one of these rules takes all
sessions with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from services.thinker.prompt import MediaIds, PreparedPrompt, is_media


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """The rules of one engine: ids below `vocabulary`, recordings only where it `hears`."""

    special: MediaIds
    vocabulary: int
    hears: bool

    def short_ids(self, prompt: PreparedPrompt) -> npt.NDArray[np.int32]:
        """The prompt's ids as vLLM wants them: one placeholder for each recording, image, video.

        Raises `InvalidArgument` for a prompt that vLLM must not see.
        """
        self._check_ids(prompt.ids)
        heard = list(prompt.audio.positions) if prompt.audio else []
        if heard and not self.hears:
            raise InvalidArgument(
                "messages: this thinker takes no recordings (pipeline_parallel_size above 1, "
                "or engine_args.limit_mm_per_prompt)",
                field="messages",
            )
        ids, special = prompt.ids, self.special
        begins = is_media(ids, special) & (ids != np.append([-1], ids[:-1]))
        ends = is_media(ids, special) & (ids != np.append(ids[1:], [-1]))
        runs = np.flatnonzero(ends) - np.flatnonzero(begins) + 1
        kinds = ids[begins]
        seen = prompt.visuals
        shown = {
            "recordings": (special.audio, heard),
            "images": (special.image, [each.positions for each in seen if each.kind == "image"]),
            "videos": (special.video, [each.positions for each in seen if each.kind == "video"]),
        }
        for name, (id_, positions) in shown.items():
            if (places := runs[kinds == id_].tolist()) != positions:
                # Two places side by side look like one that is too long.
                raise InvalidArgument(
                    f"messages: the prompt has places of {places} positions for {name} that "
                    f"take {positions}; each must have one of its own, parted from the next",
                    field="messages",
                )
        self._check_parted(np.flatnonzero(ends), ids)
        short: npt.NDArray[np.int32] = ids[begins | ~is_media(ids, special)]
        return short

    def _check_ids(self, ids: npt.NDArray[np.int32]) -> None:
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocabulary))
        if len(outside):
            raise InvalidArgument(
                f"messages: id {ids[outside[0]]} at position {outside[0]} is outside the "
                f"model's vocabulary of {self.vocabulary}",
                field="messages",
            )

    def _check_parted(self, lasts: npt.NDArray[np.intp], ids: npt.NDArray[np.int32]) -> None:
        """Raise unless an id of words follows each place, whose last positions are given."""
        if len(lasts) and lasts[-1] == len(ids) - 1:
            raise InvalidArgument(
                "messages: the prompt ends with a place for what is heard or seen; words must "
                "follow it",
                field="messages",
            )
        followers = ids[lasts + 1]
        if is_media(followers, self.special).any():
            raise InvalidArgument(
                "messages: two places for what is heard or seen are side by side; each must be "
                "parted from the next",
                field="messages",
            )
