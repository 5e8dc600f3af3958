"""The engine of a stage that converts the image tokens of each segment to a PNG file.

An image is generated after all of its tokens have arrived. Each step generates one image, starting
with the one that has waited the longest. Images are computed separately, so an error affects only
its own segment. On a CPU, an image of 512 x 512 pixels may take longer than the default
`step_timeout_s`, so increase this setting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.images import image_parts
from antiphon_services.magvit.image_decoder import ImageDecoder
from antiphon_services.magvit.image_sizes import IMAGE_ENTRIES
from antiphon_services.stage.isolation import alone
from antiphon_services.vocoder.received_codes import ReceivedCodes


@dataclass(frozen=True, slots=True)
class DrawingTerms:
    """The names that a model family uses for the stage's role, its token edge and its image
    edge.
    """

    role: str
    tokens: str
    image: str


@dataclass(slots=True)
class Drawing:
    """An admitted segment.

    `wanted` is true if the image edge has a destination.
    """

    tokens: ReceivedCodes
    wanted: bool
    drawn: int = 0
    ended: bool = False

    @property
    def can_step(self) -> bool:
        """Whether all tokens have arrived and the image has not been generated yet."""
        return not self.ended and self.tokens.finish_reason is not None

    def fail(self) -> None:
        """Mark the segment as ended."""
        self.ended = True


class DrawingEngine:
    """An implementation of `antiphon.runtime.engine.Engine` that receives tokens and emits images.

    `context_limit` is the maximum number of tokens in a segment. `slots` is the maximum number of
    segments.
    """

    def __init__(
        self, decoder: ImageDecoder, terms: DrawingTerms, *, context_limit: int, slots: int
    ) -> None:
        self._decoder, self._terms = decoder, terms
        self._context_limit, self._slots = context_limit, slots
        self._drawings: dict[SegmentKey, Drawing] = {}
        # The segments that can step, ordered by how long they have waited.
        self._ready: dict[SegmentKey, None] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use."""
        terms = self._terms
        if len(self._drawings) == self._slots:
            raise ResourceExhausted(f"{terms.role}: all {self._slots} slots are in use")
        tokens = ReceivedCodes(terms.tokens, None, IMAGE_ENTRIES, self._context_limit, "id")
        self._drawings[key] = Drawing(tokens, terms.image in settings.outputs)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Validate and store tokens. Raises `DataLoss` or `InvalidArgument`."""
        drawing = self._drawings[key]
        drawing.tokens.accept(chunk)
        if drawing.can_step:
            self._ready[key] = None

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the token edge, or None if all tokens have arrived."""
        return None if self._drawings[key].can_step else self._terms.tokens

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of the segment up to this point."""
        drawing = self._drawings[key]
        return Completed(key, FinishReason.CANCELLED, drawing.tokens.count, drawing.drawn)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment."""
        del self._drawings[key]
        self._ready.pop(key, None)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Generate the image of the segment that has waited the longest."""
        events: list[EngineEvent] = []
        key = next((key for key in self._ready if key not in held), None)
        if key is not None:
            del self._ready[key]
            drawing = self._drawings[key]
            with alone(key, events, drawing.fail):
                events += self._draw(key, drawing)
        return events

    def _draw(self, key: SegmentKey, drawing: Drawing) -> list[EngineEvent]:
        tokens, edge = drawing.tokens, self._terms.image
        assert tokens.finish_reason is not None
        events: list[EngineEvent] = []
        if drawing.wanted and tokens.count:
            data, row = image_parts(self._file(tokens), tokens.count)
            drawing.drawn = 1
            events = [
                Emitted(key, edge, 0, data),
                Emitted(key, edge, 0, row, tokens.finish_reason),
            ]
        elif drawing.wanted:
            events = [Emitted(key, edge, 0, finish_reason=tokens.finish_reason)]
        drawing.ended = True
        return [*events, Completed(key, tokens.finish_reason, tokens.count, drawing.drawn)]

    def _file(self, tokens: ReceivedCodes) -> bytes:
        """Return the image as a PNG file. If the number of tokens is invalid, the error names the
        edge.
        """
        # Imported here so that the stage can report a missing Pillow when it loads.
        from antiphon_services.magvit.square_pixels import png_file

        try:
            return png_file(self._decoder.pixels(tokens.codes))
        except InvalidArgument as error:
            message = f"{tokens.edge}: {error}"
            raise InvalidArgument(message, field=tokens.edge, edge=tokens.edge) from None
