"""A segment that speaks a text that is complete before its prompt is prepared.

The prompt is prepared on another thread than the engine's, since tokenizing a long text and
encoding a reference recording are slow. See `antiphon_services.lm.spoken_engine`.
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
from antiphon.values.chunk import Tensors
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import FrameDraw, FrameSegment
from antiphon_services.lm.kept_parts import NO_CUTS
from antiphon_services.stage.preparation import Preparations

ENCODING_WEIGHT = 4
"""Cost of encoding a recording relative to features; from 11 s on it is queued as large work."""

Made = TypeVar("Made")


class SpokenText(ABC, Generic[Made]):
    """The text received on `edge` in one chunk, and the prompt that `make` prepares from it.

    `check_size` raises `InvalidArgument` for more bytes of text than can fit. `make` may be slow,
    and raises the errors of the text. `recording_bytes` is the size of its reference recording.
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
        """Length of the prepared prompt, including the first draw's row."""

    @property
    def prompt_rows(self) -> int | None:
        """The prompt's `rows`; None until it is prepared."""
        return None if self._held is None else self.rows

    @property
    def ready_rows(self) -> int:
        """All rows of a prepared prompt can be computed."""
        return self.prompt_rows or 0

    @property
    def silent(self) -> bool:
        """Always False: an empty text is rejected."""
        return False

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """None: nothing follows the text."""
        return NO_CUTS

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return None: the next text shares no rows worth keeping."""
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """Never called: no part has a name."""

    def accept(self, chunk: InputChunk) -> None:
        """Store the text. Raises `InvalidArgument`."""
        if chunk.edge != self.edge:
            raise InvalidArgument(f"the stage has no input edge {chunk.edge!r}", edge=chunk.edge)
        if chunk.tensors and self._tensors:
            raise InvalidArgument("messages: they come in one chunk", field="messages")
        if (messages := chunk.tensors.get("messages")) is not None:
            self._check_size(messages.nbytes)
        self._tensors = chunk.tensors or self._tensors
        self._finished = chunk.segment_finished

    def begin(self, key: SegmentKey, preparations: Preparations[Made]) -> Future[Made] | None:
        """Start preparing the prompt if the text is complete. Text and `make` are released then."""
        if not self._finished or self._make is None:
            return None
        tensors, self._tensors = self._tensors, {}
        make, self._make = self._make, None
        return preparations.begin(
            key,
            partial(make, tensors),
            text_bytes=sum(tensor.nbytes for tensor in tensors.values()),
            media_bytes=ENCODING_WEIGHT * self._recording_bytes,
        )

    def hold(self, prompt: Made) -> None:
        """Store the prepared prompt."""
        self._held = prompt


Spoken = TypeVar("Spoken", bound=SpokenText[Any])


@dataclass(slots=True)
class SpokenTextSegment(FrameSegment[Spoken]):
    """A segment with its prompt's `preparation` while that is in progress."""

    preparation: Future[Any] | None = None

    def has_row(self, step: int) -> bool:
        """Return True: rows need no later input."""
        return True

    @property
    def missing_edge(self) -> str:
        """The prompt's edge: no other input is needed."""
        return self.prompt.edge

    @property
    def in_flight(self) -> bool:
        """Whether the prompt is being prepared, or a draw was launched and not sent."""
        return self.preparation is not None or self.launched > self.handed_on

    @abstractmethod
    def next_draw(self) -> FrameDraw[Any]:
        """Return the next row and draw, and count it as launched."""

    def end(self) -> None:
        """Mark the segment as ended."""
        self.ended = True
