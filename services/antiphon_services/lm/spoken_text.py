"""A segment that speaks a text which is complete before the prompt can be made.

The prompt is made on a thread beside the engine's, since tokenizing a long text and encoding a
reference recording take long. See `antiphon_services.lm.spoken_engine`.
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
"""Encoding a recording takes far longer than features do: from 11 s on it waits with its likes."""

Made = TypeVar("Made")


class SpokenText(ABC, Generic[Made]):
    """The text that comes on `edge`, in one chunk; then the prompt that `make` makes of it.

    `check_size` raises `InvalidArgument` for more bytes of text than can fit. `make` may take
    long, and raises what is wrong with the text. So many bytes of a recording go into it.
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
        """The prompt, which must have been made."""
        assert self._held is not None
        return self._held

    @property
    @abstractmethod
    def rows(self) -> int:
        """Length of the prompt, with the first draw's row; it must have been made."""

    @property
    def prompt_rows(self) -> int | None:
        """The prompt's `rows`; None until it is made."""
        return None if self._held is None else self.rows

    @property
    def ready_rows(self) -> int:
        """All rows of a prompt can be computed."""
        return self.prompt_rows or 0

    @property
    def silent(self) -> bool:
        """Never: a text without anything to say is refused."""
        return False

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """None: nothing follows the text."""
        return NO_CUTS

    def part_name(self, start: int, stop: int) -> bytes | None:
        """None: the next text shares no rows worth keeping."""
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """Never called: no part has a name."""

    def accept(self, chunk: InputChunk) -> None:
        """Keep the text. Raises `InvalidArgument`."""
        if chunk.edge != self.edge:
            raise InvalidArgument(f"the stage has no input edge {chunk.edge!r}", edge=chunk.edge)
        if chunk.tensors and self._tensors:
            raise InvalidArgument("messages: they come in one chunk", field="messages")
        if (messages := chunk.tensors.get("messages")) is not None:
            self._check_size(messages.nbytes)
        self._tensors = chunk.tensors or self._tensors
        self._finished = chunk.segment_finished

    def begin(self, key: SegmentKey, preparations: Preparations[Made]) -> Future[Made] | None:
        """Start making the prompt if all of the text has come. It is kept here no longer, and
        neither is what `make` holds."""
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
        """The prompt was made."""
        self._held = prompt


Spoken = TypeVar("Spoken", bound=SpokenText[Any])


@dataclass(slots=True)
class SpokenTextSegment(FrameSegment[Spoken]):
    """`preparation` is the prompt while it is being made."""

    preparation: Future[Any] | None = None

    def has_row(self, step: int) -> bool:
        """Always: a row lacks nothing that comes later."""
        return True

    @property
    def missing_edge(self) -> str:
        """Only the prompt has to be waited for."""
        return self.prompt.edge

    @property
    def in_flight(self) -> bool:
        """Whether the prompt is being made, or a draw was launched and not handed on."""
        return self.preparation is not None or self.launched > self.handed_on

    @abstractmethod
    def next_draw(self) -> FrameDraw[Any]:
        """The next row and draw, which are made now; the segment can."""

    def end(self) -> None:
        """No more comes of it."""
        self.ended = True
