"""The beginning of a reply that its client already has: see `antiphon.values.history`.

Its last id is sampled again, so that the end of the reply is decided in the usual place. The ids
before it are fed like those of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon.runtime.engine import EngineEvent
from antiphon_services.thinker.thinker_segment import G, ThinkerSegment


def check_history(segment: ThinkerSegment[G], vocabulary: int) -> None:
    """Raise `InvalidArgument` for ids outside `vocabulary`."""
    history = segment.settings.history
    if history is None or not len(history.ids):
        return
    if history.ids.min() < 0 or history.ids.max() >= vocabulary:
        raise InvalidArgument(
            f"history.ids: an id is outside 0..{vocabulary - 1}; leave the history out, and the "
            "reply is made anew",
            field="history.ids",
        )


def known_ids(segment: ThinkerSegment[G], special: MediaIds) -> list[int]:
    """Return the ids that need not be sampled.

    With log probabilities all must be sampled, since these are not stored. So must all from the
    first id on that would be a media placeholder in a prompt.
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
    """Send the ids and their text as if they had been sampled.

    Raises `InvalidArgument` for ids after the reply's end.
    """
    for number, id_ in enumerate(ids):
        release = generation.reply.push(id_)
        if release.finish is not None:
            raise InvalidArgument(
                f"history.ids: the reply ends with id {number}, and there are more; leave the "
                "history out, and the reply is made anew",
                field="history.ids",
            )
        if segment.wants_reply_rows and generation.reply_rows is not None:
            generation.reply_rows.release(release)
        yield from segment.emit_reply(generation, release)
