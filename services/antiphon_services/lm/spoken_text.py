"""A segment that speaks a text. The text must be complete before its prompt is prepared.

`antiphon_services.lm.spoken_engine` prepares the prompt on a worker thread, because tokenizing a
long text and encoding a reference recording take a long time.
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
"""The cost of encoding a recording relative to computing features. A recording of 11 s or more is
queued as large work.
"""

Made = TypeVar("Made")


class SpokenText(ABC, Generic[Made]):
    """The text that arrives on `edge` in one chunk, and the prompt that `make` prepares from it.

    `check_size` raises `InvalidArgument` if the text has more bytes than can fit. `make` may be
    slow. It raises an error if the text is invalid. `recording_bytes` is the size of the reference
    recording.
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
        """The prompt after it has been prepared."""
        assert self._held is not None
        return self._held

    @property
    @abstractmethod
    def rows(self) -> int:
        """The length of the prepared prompt including the row of the first draw."""

    @property
    def prompt_rows(self) -> int | None:
        """The number of `rows` of the prompt, or None until it is prepared."""
        return None if self._held is None else self.rows

    @property
    def ready_rows(self) -> int:
        """The number of rows that can be computed. Once the prompt is prepared, these are
        all rows.
        """
        return self.prompt_rows or 0

    @property
    def silent(self) -> bool:
        """Always False, because an empty text is rejected."""
        return False

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """Always empty, because the text is the last part of the prompt."""
        return NO_CUTS

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return None, because the next text does not share enough rows to keep them."""
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """This is never called, because no part has a name."""

    def accept(self, chunk: InputChunk) -> None:
        """Store the text. Raises `InvalidArgument` if it is invalid."""
        self.check_edge(chunk)
        if chunk.tensors and self._tensors:
            raise InvalidArgument("messages: they come in one chunk", field="messages")
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
        """The cost of encoding the reference recording, in bytes of features."""
        return ENCODING_WEIGHT * self._recording_bytes

    def begin(self, key: SegmentKey, preparations: Preparations[Made]) -> Future[Made] | None:
        """Start to prepare the prompt if the text is complete. The text and `make` are then
        released.
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
        """Store the prompt that has been prepared."""
        self._held = prompt


class ConversationInput(SpokenText[Made]):
    """A conversation that arrives on `edge`, instead of a text.

    If it is `live`, it is followed by the samples of its last recording. `most_samples` is the
    maximum number of these samples.
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
        """Store the conversation, or a piece of the recording of a live conversation.

        Raises `InvalidArgument` if the chunk is invalid.
        """
        samples = chunk.tensors.get("samples") if self._live else None
        if samples is None:
            super().accept(chunk)
        else:
            if set(chunk.tensors) != {"samples"} or not self._tensors:
                raise InvalidArgument(
                    "input: the conversation comes once, in the first chunk; samples of its last "
                    "recording follow",
                    field="messages",
                )
            self._samples += len(samples)
            if self._samples > self._most_samples or not np.isfinite(samples).all():
                raise InvalidArgument(
                    f"input: a recording has more than {self._most_samples} samples, or NaN or Inf",
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
    """A segment that speaks a text. `preparation` is set while its prompt is being prepared."""

    preparation: Future[Any] | None = None

    def has_row(self, step: int) -> bool:
        """Return True, because rows need no further input."""
        return True

    @property
    def missing_edge(self) -> str:
        """The prompt's edge, because no other input is needed."""
        return self.prompt.edge

    @property
    def in_flight(self) -> bool:
        """Whether the prompt is being prepared, or a draw has been launched but not sent."""
        return self.preparation is not None or self.launched > self.handed_on

    @abstractmethod
    def next_draw(self) -> FrameDraw[Any]:
        """Return the next row and its draw, and count the draw as launched."""

    def end(self) -> None:
        """Mark the segment as ended."""
        self.ended = True
