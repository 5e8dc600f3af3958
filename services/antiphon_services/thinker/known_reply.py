"""The beginning of a reply that the client already has, as described in `antiphon.values.history`.

The IDs are processed like a prompt, except for the last one. It is sampled again so that the engine
can detect the end of the reply in the usual way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon.runtime.engine import EngineEvent
from antiphon_services.thinker.thinker_segment import G, ThinkerSegment


def check_history(segment: ThinkerSegment[G], vocabulary: int) -> None:
    """Raise `InvalidArgument` if an ID is outside `vocabulary`."""
    history = segment.settings.history
    if history is None or not len(history.ids):
        return
    if history.ids.min() < 0 or history.ids.max() >= vocabulary:
        raise InvalidArgument(
            f"history.ids: an ID is not in the range 0..{vocabulary - 1}; leave the history "
            "out, and the reply is recomputed",
            field="history.ids",
        )


def known_ids(segment: ThinkerSegment[G], special: MediaIds) -> list[int]:
    """Return the IDs that don't have to be sampled.

    If the client requests log probabilities, all IDs must be sampled, because log probabilities are
    not part of the history. If an ID would be a media placeholder in a prompt, this ID and all
    following ones must be sampled.
    """
    history = segment.settings.history
    if history is None or segment.settings.sampling.top_logprobs is not None:
        return []
    ids = history.ids[:-1]
    placeholders = np.flatnonzero(is_media(ids, special))
    known: list[int] = ids[: placeholders[0] if len(placeholders) else None].tolist()
    return known


def repeat_reply(
    segment: ThinkerSegment[G], generation: G, ids: Sequence[int]
) -> Iterator[EngineEvent]:
    """Send the IDs and their text as if they had just been sampled.

    Raises `InvalidArgument` if the history contains IDs after the end of the reply.
    """
    for number, id_ in enumerate(ids):
        release = generation.reply.push(id_)
        if release.finish is not None:
            raise InvalidArgument(
                f"history.ids: the reply ends at index {number}, but more IDs follow; leave the "
                "history out, and the reply is recomputed",
                field="history.ids",
            )
        if segment.wants_reply_rows and generation.reply_rows is not None:
            generation.reply_rows.release(release)
        yield from segment.emit_reply(generation, release)
