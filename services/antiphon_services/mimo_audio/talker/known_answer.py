"""The beginning of an answer that the client already has. This module doesn't import torch.

The client sends it as `antiphon.values.history`. Its positions are processed together with the
prompt, and decoding continues as if they had been drawn one by one. A group is only known if its
frames are known, because frames reach the client later than tokens. The last token is drawn again,
so that the usual code decides whether it ends the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.values.history import History
from antiphon_services.lm.known_frames import known_frames
from antiphon_services.mimo_audio.talker.prompt import Codes, Ids, TaskPrompt

ANEW = "leave the history out, and everything is recomputed"


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Positions that do not have to be drawn.

    `ids` is an int64 array of shape [n], and `codes` is a uint16 array of shape [n, group,
    channels].
    """

    ids: Ids
    codes: Codes

    def behind(self, prompt: TaskPrompt) -> TaskPrompt:
        """Append these positions to a prompt."""
        return replace(
            prompt,
            ids=np.concatenate((prompt.ids, self.ids)),
            codes=np.concatenate((prompt.codes, self.codes)),
            known=len(self.ids),
        )


def check_history(history: History | None, vocabulary: int, sizes: Sequence[int]) -> None:
    """Raise `InvalidArgument` if the history contains tokens or codes that cannot be drawn."""
    known_frames(history, sizes)
    if history is None or not len(history.ids):
        return
    if history.ids.min() < 0 or history.ids.max() >= vocabulary:
        raise InvalidArgument(
            f"history.ids: an ID is not in the range 0..{vocabulary - 1}; {ANEW}",
            field="history.ids",
        )


def known_answer(history: History | None, empty: Codes, group_id: int) -> KnownAnswer:
    """Return the known positions of an answer.

    `empty`, of shape [group, channels], contains the codes of a text position.
    """
    group = len(empty)
    if history is None:
        return KnownAnswer(np.empty(0, np.int64), np.empty((0, *empty.shape), np.uint16))
    ids = history.ids[:-1].astype(np.int64)
    groups = len(history.frames) // group
    unknown = np.flatnonzero(ids == group_id)[groups:]
    ids = ids[: unknown[0]] if len(unknown) else ids
    codes = np.repeat(empty[None], len(ids), axis=0)
    spoken = np.flatnonzero(ids == group_id)
    if len(spoken):
        codes[spoken] = history.frames[: group * len(spoken)].reshape(-1, *empty.shape)
    return KnownAnswer(ids, codes)
