"""Continues an answer after another gateway has sent its beginning to the client. This module
performs no I/O.

This gateway only knows how much of the answer the client has. With the same order and the same
seed, it generates the same answer and drops that much of its beginning. A digest is used to verify
that the text is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from antiphon.errors import DataLoss
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageProduced,
    SegmentFinished,
    TextProduced,
)


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The part of an answer that a client has, with the SHA-256 digest of its UTF-8 text.

    `frame_values` is the total number of values in its codec frames, across all groups.
    """

    characters: int = 0
    text_sha256: bytes = b""
    ids: int = 0
    logprobs: int = 0
    samples: int = 0
    frame_values: int = 0
    images: int = 0


class ResumedOutput:
    """The output of an answer that is generated from the beginning. Pass every event to `take`.

    If `with_ids` is false, the client doesn't receive token IDs or codec frames, so they aren't
    taken into account.
    """

    def __init__(self, held: HeldPart, *, with_ids: bool) -> None:
        self._left = {
            "characters": held.characters,
            "ids": held.ids,
            "logprobs": held.logprobs,
            "samples": held.samples,
            "frame_values": held.frame_values,
            "images": held.images,
        }
        self._text_sha256 = held.text_sha256
        self._with_ids = with_ids
        self._digest = hashlib.sha256()

    def take(self, event: Event) -> Event | None:
        """Return the part of an event that the client doesn't have, or None if it has all of it.

        Raises `DataLoss` if the answer differs from the one that the client began to receive.
        """
        match event:
            case TextProduced():
                return self._take_text(event)
            case AudioProduced():
                return self._take_audio(event)
            case ImageProduced():
                images = event.images[self._drop("images", len(event.images)) :]
                return ImageProduced(images) if images else None
            case SegmentFinished():
                self._check_whole()
        return event

    def _take_text(self, event: TextProduced) -> TextProduced | None:
        known = self._drop("characters", len(event.text))
        if known:
            self._digest.update(event.text[:known].encode())
            if not self._left["characters"] and self._digest.digest() != self._text_sha256:
                raise _differs()
        ids = event.ids[self._drop("ids", len(event.ids)) :]
        logprobs = event.logprobs[self._drop("logprobs", len(event.logprobs)) :]
        text = event.text[known:]
        lacked = text or logprobs or (self._with_ids and len(ids))
        return TextProduced(text, ids, logprobs) if lacked else None

    def _take_audio(self, event: AudioProduced) -> AudioProduced | None:
        known = self._drop("samples", len(event.samples))
        samples, frames = event.samples[known:], event.frames
        if frames.size:
            groups = frames.shape[-1]
            frames = frames[self._drop("frame_values", frames.size) // groups :]
        if not (len(samples) or (self._with_ids and len(frames))):
            return None
        first = event.first_sample + known
        return replace(event, samples=samples, frames=frames, first_sample=first)

    def _drop(self, kind: str, count: int) -> int:
        """Return how many of the next elements of this type the client already has."""
        known = min(count, self._left[kind])
        self._left[kind] -= known
        return known

    def _check_whole(self) -> None:
        """Raise an error unless the answer has reached the end of the part that the client has."""
        if any(self._left.values()):
            raise _differs()


async def lacked(events: AsyncIterator[Event], resumed: ResumedOutput) -> AsyncIterator[Event]:
    """Yield the events of an answer, leaving out the part that the client already has."""
    async for event in events:
        if (lacking := resumed.take(event)) is not None:
            yield lacking


def _differs() -> DataLoss:
    return DataLoss(
        "delivered: the generated answer differs from the part that the client already has; "
        "send the request again without it",
        field="delivered",
    )
