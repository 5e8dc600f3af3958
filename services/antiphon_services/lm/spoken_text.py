"""Segments that speak a text. The text must be complete before the prompt is prepared.

`antiphon_services.lm.spoken_engine` prepares prompts on a worker thread, because tokenizing long
text and encoding reference recordings take a long time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import FrameDraw, FrameSegment
from antiphon_services.lm.kept_parts import NO_CUTS
from antiphon_services.stage.preparation import Preparations

ENCODING_WEIGHT = 4
"""The factor by which encoding a recording is more expensive than computing its features. As a
result, recordings of 11 s or more are queued as large jobs.
"""

Made = TypeVar("Made")


class SpokenText(ABC, Generic[Made]):
    """Text that arrives on `edge` in one chunk, and the prompt that `make` prepares from this text.

    `check_size` raises `InvalidArgument` if the text has more bytes than can possibly fit. `make`
    may be slow and raises an error if the text is invalid. `recording_bytes` is the size of the
    reference recording.
    """

    def __init__(
        self,
        edge: str,
        check_size: Callable[[int], None],
        make: Callable[[Tensors], Made],
        recording_bytes: int,
    ) -> None:
        self.edge = edge
        self._check_size = check_size
        self._make: Callable[[Tensors], Made] | None = make
        self._recording_bytes = recording_bytes
        self._tensors: Tensors = {}
        self._finished = False
        self._held: Made | None = None

    @property
    def held(self) -> Made:
        """The prepared prompt."""
        assert self._held is not None
        return self._held

    @property
    @abstractmethod
    def rows(self) -> int:
        """The length of the prepared prompt, including the row for the first draw."""

    @property
    def prompt_rows(self) -> int | None:
        """The number of `rows` in the prompt, or None until it has been prepared."""
        return None if self._held is None else self.rows

    @property
    def ready_rows(self) -> int:
        """The number of rows that can be computed. Once the prompt has been prepared, this includes
        all rows.
        """
        return self.prompt_rows or 0

    @property
    def silent(self) -> bool:
        """Always False, because an empty text is rejected."""
        return False

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """Always empty, because the text comes last in the prompt."""
        return NO_CUTS

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return None, because the next prompt doesn't share enough rows to make it worthwhile to
        keep them.
        """
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """Never called, because no part has a name."""

    def accept(self, chunk: InputChunk) -> None:
        """Store the text. Raises `InvalidArgument` if it is invalid."""
        self.check_edge(chunk)
        if chunk.tensors and self._tensors:
            raise InvalidArgument("messages: must be sent in a single chunk", field="messages")
        if (messages := chunk.tensors.get("messages")) is not None:
            self._check_size(messages.nbytes)
        self._tensors = chunk.tensors or self._tensors
        self._finished = chunk.segment_finished

    def check_edge(self, chunk: InputChunk) -> None:
        """Raise `InvalidArgument` unless the chunk is on the text's edge."""
        if chunk.edge != self.edge:
            raise InvalidArgument(f"the stage has no input edge {chunk.edge!r}", edge=chunk.edge)

    @property
    def media_bytes(self) -> int:
        """The cost of encoding the reference recording, expressed as an equivalent number of
        feature bytes.
        """
        return ENCODING_WEIGHT * self._recording_bytes

    def begin(self, key: SegmentKey, preparations: Preparations[Made]) -> Future[Made] | None:
        """Start to prepare the prompt if the text is complete. This releases the text and
        `make`.
        """
        if not self._finished or self._make is None:
            return None
        tensors, self._tensors = self._tensors, {}
        make, self._make = self._make, None
        return preparations.begin(
            key,
            partial(make, tensors),
            text_bytes=sum(tensor.nbytes for tensor in tensors.values()),
            media_bytes=self.media_bytes,
        )

    def hold(self, prompt: Made) -> None:
        """Store the prepared prompt."""
        self._held = prompt


class ConversationInput(SpokenText[Made]):
    """Input that is a conversation on `edge` instead of a text.

    If `live` is true, the conversation is followed by the samples of its last recording. There can
    be up to `most_samples` of them.
    """

    def __init__(
        self,
        edge: str,
        check_size: Callable[[int], None],
        make: Callable[[Tensors], Made],
        *,
        live: bool,
        most_samples: int,
    ) -> None:
        super().__init__(edge, check_size, make, recording_bytes=0)
        self._live, self._most_samples = live, most_samples
        self._pieces: list[Tensor] = []
        self._samples = 0

    def accept(self, chunk: InputChunk) -> None:
        """Store the conversation, or a piece of a live conversation's recording.

        Raises `InvalidArgument` if the chunk is invalid.
        """
        samples = chunk.tensors.get("samples") if self._live else None
        if samples is None:
            super().accept(chunk)
        else:
            if set(chunk.tensors) != {"samples"} or not self._tensors:
                raise InvalidArgument(
                    "input: the conversation must only be sent in the first chunk; later chunks "
                    "contain samples of its last recording",
                    field="messages",
                )
            self._samples += len(samples)
            if self._samples > self._most_samples or not np.isfinite(samples).all():
                raise InvalidArgument(
                    f"input: a recording has more than {self._most_samples} samples, or "
                    "contains NaN or infinity",
                    field="messages",
                )
            self._pieces.append(np.array(samples))
            self._finished = chunk.segment_finished
        if self._finished and self._pieces:
            index = sum(name.startswith("audio.") for name in self._tensors)
            self._tensors = {**self._tensors, f"audio.{index}": np.concatenate(self._pieces)}
            self._pieces = []


Spoken = TypeVar("Spoken", bound=SpokenText[Any])


@dataclass(slots=True)
class SpokenTextSegment(FrameSegment[Spoken]):
    """A segment that speaks text. `preparation` is set while its prompt is being prepared."""

    preparation: Future[Any] | None = None

    def has_row(self, step: int) -> bool:
        """Return True, because rows don't need any further input."""
        return True

    @property
    def missing_edge(self) -> str:
        """The prompt's edge, because there is no other input."""
        return self.prompt.edge

    @property
    def in_flight(self) -> bool:
        """Whether the prompt is being prepared, or a draw has been launched but not yet sent."""
        return self.preparation is not None or self.launched > self.handed_on

    @abstractmethod
    def next_draw(self) -> FrameDraw[Any]:
        """Return the next row together with its draw and count the draw as launched."""

    def end(self) -> None:
        """Mark the segment as ended."""
        self.ended = True


@dataclass(slots=True)
class JointSegment(SpokenTextSegment[Spoken]):
    """A segment of a `JointSpokenEngine`. Each row depends on the previous draw alone, so a draw is
    only launched once the previous one has been emitted, and rows have no text.
    """

    @property
    def handed_on(self) -> int:
        """The number of draws that have been emitted."""
        return self.shown

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched."""
        return not self.ended and self.waiting is None and self.prompt_complete

    def take_text(self, step: int) -> None:
        """Return None, because a row has no text."""
