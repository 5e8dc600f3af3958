"""Rejects prompts that would crash vLLM's engine, which would end all sessions.

vLLM only validates IDs if it has a tokenizer, and its code for positions assumes that each
recording, image and video is followed by an ID. A prompt that violates either of these rules would
crash it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon_services.thinker.prompt import Ids

if TYPE_CHECKING:
    from antiphon_services.thinker.vision import Visual


@dataclass(frozen=True, slots=True)
class PromptCheck:
    """The rules for one engine. IDs must be below `vocabulary`, and recordings are only accepted if
    `hears` is true.
    """

    special: MediaIds
    vocabulary: int
    hears: bool

    def short_ids(
        self,
        ids: Ids,
        heard: Sequence[Sequence[int]],
        seen: Sequence[Visual],
        *,
        is_open: bool = False,
    ) -> Ids:
        """Return a prompt's IDs in vLLM's form, with a single placeholder for each image, video and
        window of a recording.

        `heard` contains the positions of the windows. If the prompt `is_open`, it may end in the
        middle of a recording. Raises `InvalidArgument` if the prompt must not be passed to vLLM.
        """
        self._check_ids(ids)
        if heard and not self.hears:
            raise InvalidArgument(
                "messages: recordings are not supported by this configuration "
                "(pipeline_parallel_size above 1, or engine_args.limit_mm_per_prompt)",
                field="messages",
            )
        special, media = self.special, is_media(ids, self.special)
        begins = media & (ids != np.append([-1], ids[:-1]))
        ends = media & (ids != np.append(ids[1:], [-1]))
        runs = np.flatnonzero(ends) - np.flatnonzero(begins) + 1
        kinds = ids[begins]
        shown = {
            "recordings": (special.audio, [sum(each) for each in heard if each]),
            "images": (special.image, [each.positions for each in seen if each.kind == "image"]),
            "videos": (special.video, [each.positions for each in seen if each.kind == "video"]),
        }
        for name, (id_, positions) in shown.items():
            if (places := runs[kinds == id_].tolist()) != positions:
                # vLLM can't distinguish two adjacent placeholders from a single one that is too
                # long.
                raise InvalidArgument(
                    f"messages: the prompt's placeholders for {name} have {places} positions, "
                    f"but the media take {positions}; each item needs a separate placeholder",
                    field="messages",
                )
        lasts = np.flatnonzero(ends)
        within = is_open and len(ids) and ids[-1] == special.audio
        self._check_parted(lasts[:-1] if within else lasts, ids)
        repeats = (~media).astype(np.intp)
        repeats[begins] = 1
        repeats[begins & (ids == special.audio)] = [len(each) for each in heard if each]
        return np.repeat(ids, repeats)

    def _check_ids(self, ids: Ids) -> None:
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocabulary))
        if len(outside):
            raise InvalidArgument(
                f"messages: the ID {ids[outside[0]]} at position {outside[0]} is not in the "
                f"model's vocabulary of {self.vocabulary} IDs",
                field="messages",
            )

    def _check_parted(self, lasts: npt.NDArray[np.intp], ids: Ids) -> None:
        """Raise an error unless a text ID follows each placeholder. `lasts` contains the
        placeholders' last positions.
        """
        if len(lasts) and lasts[-1] == len(ids) - 1:
            raise InvalidArgument(
                "messages: the prompt ends with a placeholder for media; text must follow it",
                field="messages",
            )
        followers = ids[lasts + 1]
        if is_media(followers, self.special).any():
            raise InvalidArgument(
                "messages: two placeholders for media are adjacent; they must be separated",
                field="messages",
            )
