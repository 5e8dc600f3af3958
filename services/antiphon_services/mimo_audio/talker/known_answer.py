"""The beginning of an answer that its client has already (`antiphon.values.history`). No torch.

Its positions go in with the prompt, and what follows is drawn as if they had been drawn one by one.
A group is known if its frames are, which reach the client later than the ids. The last id is drawn
again, so that whether the answer ends with it is decided where it ever is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.values.history import History
from antiphon_services.lm.known_frames import known_frames
from antiphon_services.mimo_audio.talker.prompt import Codes, Ids, TaskPrompt

ANEW = "leave the history out, and all is made anew"


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Positions that need not be drawn: `ids` int64 [n], `codes` uint16 [n, group, channels]."""

    ids: Ids
    codes: Codes

    def behind(self, prompt: TaskPrompt) -> TaskPrompt:
        """The prompt with these positions at its end."""
        return replace(
            prompt,
            ids=np.concatenate((prompt.ids, self.ids)),
            codes=np.concatenate((prompt.codes, self.codes)),
            known=len(self.ids),
        )


def check_history(history: History | None, vocabulary: int, sizes: Sequence[int]) -> None:
    """Raise `InvalidArgument` for ids or codes that cannot be drawn."""
    known_frames(history, sizes)
    if history is None or not len(history.ids):
        return
    if history.ids.min() < 0 or history.ids.max() >= vocabulary:
        raise InvalidArgument(
            f"history.ids: an id is outside 0..{vocabulary - 1}; {ANEW}", field="history.ids"
        )


def known_answer(history: History | None, empty: Codes, group_id: int) -> KnownAnswer:
    """What is known of an answer; `empty` [group, channels] are the codes of a position of text."""
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
