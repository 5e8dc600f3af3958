"""Tracks how much of an answer a client has received and works out what is missing when the answer
is generated again. This module performs no I/O.

A new attempt either generates the whole answer again with the same seeds, or it continues after the
part that the client has. In both cases, the stages send the complete output. The part that the
client already has is compared with the new output and then dropped. This is exact to the individual
ID, character and sample, so nothing is repeated or lost.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from antiphon.errors import Unavailable
from antiphon.values.chunk import Tensor
from antiphon.values.history import History
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    StepsAdvanced,
    TextProduced,
    ToolCallPiece,
    ToolCallsProduced,
)

ROUNDED = 1e-3
"""The maximum difference between floats in two attempts that is attributed to rounding errors."""


class DeliveredOutput:
    """The output of a segment that has been delivered, across all attempts. Pass every event to
    `take`, and call `start_over` before every new attempt.
    """

    def __init__(self) -> None:
        self._started = False
        self._text = _Series()
        self._frames = _Series()
        self._ids = _Series()
        self._logprobs = _Count()
        self._samples = _Count()
        self._images = _Count()
        self._call_text = _Series()
        self._ended_calls = _Count()
        # The IDs by which the client knows the function calls. A new attempt may use different IDs.
        self._call_ids: list[str] = []

    @property
    def size_bytes(self) -> int:
        """The size of the data that is kept for comparison, in bytes. This includes text, IDs and
        codec frames. For audio, only the length is kept.
        """
        return (
            self._text.size_bytes
            + self._frames.size_bytes
            + self._ids.size_bytes
            + self._call_text.size_bytes
        )

    @property
    def history(self) -> History:
        """The history from which another attempt can continue. It contains IDs and either codec
        frames or latent frames that all have the same size.
        """
        ids, frames = self._ids.values, self._frames.values
        history = History()
        if ids is not None:
            history = replace(history, ids=ids)
        if frames is not None and frames.ndim == 2:
            part = "latents" if frames.dtype.kind == "f" else "frames"
            history = replace(history, **{part: frames})
        return history

    @property
    def _series(self) -> tuple[_Series, ...]:
        return (self._text, self._frames, self._ids, self._call_text)

    def start_over(self) -> None:
        """Start over, because the next event is the first one of a new attempt."""
        for each in self._series:
            each.start_over()
        for count in (self._logprobs, self._samples, self._images, self._ended_calls):
            count.start_over()

    def take(self, event: Event) -> Event | None:
        """Return the part of an event that the client doesn't have yet, or None if it already has
        all of it.

        Raises `Unavailable` if the output differs from what was delivered before.
        """
        match event:
            case SegmentStarted():
                known, self._started = self._started, True
                return None if known else event
            case TextProduced():
                return self._take_text(event)
            case AudioProduced():
                return self._take_audio(event)
            case ImageProduced():
                images = event.images[self._images.take(len(event.images)) :]
                return ImageProduced(images) if images else None
            case ToolCallsProduced():
                pieces = tuple(filter(None, map(self._take_piece, event.pieces)))
                return ToolCallsProduced(pieces) if pieces else None
            case StepsAdvanced():
                return event
            case SegmentFinished():
                self._check_whole()
                return event

    def _take_text(self, event: TextProduced) -> TextProduced | None:
        utf8 = _utf8(event.text)
        text = utf8[self._text.take(utf8) :].tobytes().decode()
        ids = event.ids[self._ids.take(event.ids) :]
        logprobs = event.logprobs[self._logprobs.take(len(event.logprobs)) :]
        if not (text or len(ids) or logprobs):
            return None
        return TextProduced(text, ids, logprobs)

    def _take_piece(self, piece: ToolCallPiece) -> ToolCallPiece | None:
        begins = piece.begins and not self._call_text.take(_utf8(piece.name))
        arguments = _utf8(piece.arguments)
        arguments = arguments[self._call_text.take(arguments) :]
        if piece.index == len(self._call_ids):
            self._call_ids.append(piece.id)
        call_id, call = self._call_ids[piece.index], None
        if piece.call is not None and not self._ended_calls.take(1):
            call = structs.replace(piece.call, id=call_id)
        if not (begins or len(arguments) or call):
            return None
        text = arguments.tobytes().decode()
        return replace(piece, id=call_id, arguments=text, begins=begins, call=call)

    def _take_audio(self, event: AudioProduced) -> AudioProduced | None:
        known = self._samples.take(len(event.samples))
        frames = event.frames[self._frames.take(event.frames) :]
        samples = event.samples[known:]
        if not (len(samples) or len(frames)):
            return None
        if not known and len(frames) == len(event.frames):
            return event
        return replace(
            event, samples=samples, frames=frames, first_sample=event.first_sample + known
        )

    def _check_whole(self) -> None:
        """Raise an error unless the attempt has progressed at least as far as the earlier ones."""
        series = any(each.behind for each in self._series)
        if series or any(each.behind for each in (self._samples, self._images, self._ended_calls)):
            raise _differs()


class _Count:
    """Counts the elements that the client has and keeps track of the position of the current
    attempt.
    """

    def __init__(self) -> None:
        self._had = self.at = 0

    @property
    def behind(self) -> bool:
        return self.at < self._had

    def start_over(self) -> None:
        self.at = 0

    def take(self, count: int) -> int:
        """Return how many of the next elements the client already has."""
        known = min(count, self._had - self.at)
        self.at += count
        self._had = max(self._had, self.at)
        return known


class _Series:
    """Like `_Count`, but also keeps and compares the values."""

    def __init__(self) -> None:
        self._count = _Count()
        self._parts: list[Tensor] = []
        self._whole: Tensor | None = None
        self.size_bytes = 0

    @property
    def behind(self) -> bool:
        return self._count.behind

    @property
    def values(self) -> Tensor | None:
        """Return all values that the client has, or None if it has none."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else None

    def start_over(self) -> None:
        self._count.start_over()
        self._whole = self.values

    def take(self, values: Tensor) -> int:
        """Return how many of the next values the client already has. Raises `Unavailable` if they
        differ.
        """
        at = self._count.at
        known = self._count.take(len(values))
        if known:
            assert self._whole is not None
            if not _same(self._whole[at : at + known], values[:known]):
                raise _differs()
        if known < len(values):
            # Copy the values. Otherwise, they would keep a transport's buffer alive.
            self._parts.append(values[known:].copy())
            self.size_bytes += self._parts[-1].nbytes
        return known


def _same(had: Tensor, made: Tensor) -> bool:
    """Return whether the values are equal. Floats may differ by as much as rounding on another
    machine can explain.
    """
    if had.dtype.kind != "f":
        return np.array_equal(had, made)
    return had.shape == made.shape and np.allclose(had, made, rtol=0, atol=ROUNDED)


def _utf8(text: str) -> Tensor:
    return np.frombuffer(text.encode(), np.uint8)


def _differs() -> Unavailable:
    return Unavailable(
        "the answer could not be continued: the other replica generated a different answer"
    )
