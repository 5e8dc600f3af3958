"""One segment of the talker: its text, and the prompt that is made of it. See `lm/frames.py`."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from antiphon.chunk import Tensors
from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import InputChunk
from antiphon.segment import SegmentKey
from services.lm.frames import FrameDraw, FrameSegment
from services.lm.kept_parts import NO_CUTS
from services.preparation import Preparations
from services.qwen3_tts.talker.front_end import SpeechFrontEnd
from services.qwen3_tts.talker.manner import SpeechManner
from services.qwen3_tts.talker.prompt import Prompt

INPUT = "input"

# Encoding a recording takes far longer than features do: from 11 s on it waits with its likes.
ENCODING_WEIGHT = 4


class SpokenText:
    """The `input` of a segment, spoken in a `manner`; then the prompt that was made of it."""

    def __init__(self, front_end: SpeechFrontEnd, manner: SpeechManner) -> None:
        self._front_end = front_end
        self._manner = manner
        self._tensors: Tensors = {}
        self._finished = False
        self._prompt: Prompt | None = None

    @property
    def held(self) -> Prompt:
        """The prompt, which must be there."""
        assert self._prompt is not None
        return self._prompt

    @property
    def prompt_rows(self) -> int | None:
        """Length of the prompt, with the first draw's row; None until it is made."""
        return None if self._prompt is None else len(self._prompt.text)

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
        """None: what was read aloud is not in what is read next."""
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """Never asked for."""

    def accept(self, chunk: InputChunk) -> None:
        """Keep the message, which comes in one chunk. Raises `InvalidArgument`."""
        if chunk.edge != INPUT:
            raise InvalidArgument(f"the talker has no input edge {chunk.edge!r}", edge=chunk.edge)
        if chunk.tensors and self._tensors:
            raise InvalidArgument("messages: they come in one chunk", field="messages")
        if (messages := chunk.tensors.get("messages")) is not None:
            self._front_end.check_size(messages.nbytes)
        self._tensors = chunk.tensors or self._tensors
        self._finished = chunk.segment_finished

    def begin(self, key: SegmentKey, preparations: Preparations[Prompt]) -> Future[Prompt] | None:
        """Let the prompt be made, if all of the input has come; it is kept here no longer."""
        if not self._finished or self._prompt is not None:
            return None
        tensors, self._tensors = self._tensors, {}
        manner, self._manner = self._manner, SpeechManner()
        reference = manner.reference
        return preparations.begin(
            key,
            partial(self._front_end.prepare, tensors, manner),
            text_bytes=sum(tensor.nbytes for tensor in tensors.values()),
            media_bytes=0 if reference is None else ENCODING_WEIGHT * reference.nbytes,
        )

    def hold(self, prompt: Prompt) -> None:
        """The prompt was made."""
        self._prompt = prompt


@dataclass(slots=True)
class TtsSegment(FrameSegment[SpokenText]):
    """`preparation` is the prompt while it is being made."""

    preparation: Future[Prompt] | None = None

    def has_row(self, step: int) -> bool:
        """Always: behind its text comes padding."""
        return True

    def take_text(self, step: int) -> int | None:
        """The text id of that row; None for padding."""
        return self.prompt.held.beside(step)

    @property
    def missing_edge(self) -> str:
        """Only the prompt has to be waited for."""
        return INPUT

    @property
    def in_flight(self) -> bool:
        """Whether the prompt is being made, or a draw was launched and not handed on."""
        return self.preparation is not None or self.launched > self.handed_on

    def next_draw(self) -> FrameDraw[int | None]:
        """The next row and draw, which are made now; the segment can."""
        return self.launch(self.take_text(self.launched))

    def end(self) -> None:
        """No more comes of it."""
        self.ended = True
