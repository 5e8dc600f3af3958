"""The engine of a stage that speaks units: speech of many segments.

A segment is spoken once all its units have come. A step computes the latents of a segment, or
decodes windows of segments that have their latents; those that were served least go first. Every
segment is computed by itself, so its samples do not depend on what else is served. A fault fails
its segment and no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.emova.synthesizer import SpeechLatents, UnitSynthesizer
from antiphon_services.emova.unit_decoder_sizes import UNIT_ENTRIES
from antiphon_services.stage.isolation import alone
from antiphon_services.vocoder.audio_segment import AudioSegment, VocoderEdges
from antiphon_services.vocoder.whole_ids import WholeIds

WINDOW_FRAMES = 256
"""Latents that are decoded at a time: three seconds."""
FRAMES_A_STEP = 2 * WINDOW_FRAMES


@dataclass(frozen=True, slots=True)
class UnitStyles:
    """Numbers of the styles by name; `option` is the request's, `default` the one without it."""

    numbers: Mapping[str, int]
    option: str
    default: str

    def number(self, settings: SegmentSettings) -> int:
        """Return the number of a request's style, whose name has any case.

        Raises `InvalidArgument` for a name that the checkpoint lacks.
        """
        asked = str(settings.options.get(self.option, self.default))
        for name, number in self.numbers.items():
            if name.casefold() == asked.casefold():
                return number
        raise InvalidArgument(
            f"options.{self.option}: must be one of {', '.join(self.numbers)}",
            field=f"options.{self.option}",
        )


@dataclass(slots=True)
class UnitSegment(AudioSegment):
    """An admitted segment that speaks `units` in `style` with noise of `seed`.

    Samples of the first `sent` of its latents have left. `served` latents were computed or decoded
    for it.
    """

    units: WholeIds = field(kw_only=True)
    style: int = field(kw_only=True)
    seed: int = field(kw_only=True)
    latents: SpeechLatents | None = None
    sent: int = 0
    served: int = 0

    def accept(self, chunk: InputChunk) -> None:
        """Take units. Raises `DataLoss` or `InvalidArgument`."""
        self.units.accept(chunk)
        self.come, self.finish_reason = self.units.count, self.units.finish_reason

    @property
    def can_step(self) -> bool:
        """Whether all units have come, and speech or the end have not left."""
        return not self.ended and self.finish_reason is not None

    @property
    def complete(self) -> bool:
        """Whether all has left but the end."""
        spoken = self.latents is not None and self.sent == self.latents.frames
        return self.can_step and (spoken or not self.come or not self.wanted)


class UnitEngine:
    """Implements `antiphon.runtime.engine.Engine`: units in, samples out.

    `context_limit` is the most units of a segment, `slots` the most segments. `role` names the
    stage in errors.
    """

    def __init__(
        self,
        synthesizer: UnitSynthesizer,
        styles: UnitStyles,
        edges: VocoderEdges,
        role: str,
        *,
        context_limit: int,
        slots: int,
    ) -> None:
        self._synthesizer, self._styles = synthesizer, styles
        self._edges, self._role = edges, role
        self._context_limit, self._slots = context_limit, slots
        self._segments: dict[SegmentKey, UnitSegment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `ResourceExhausted` when all slots are taken, `InvalidArgument` for a style."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{self._role} has {self._slots} slots, and all are taken")
        self._segments[key] = UnitSegment(
            key,
            self._edges.audio,
            self._edges.audio in settings.outputs,
            units=WholeIds(self._edges.frames, UNIT_ENTRIES, self._context_limit),
            style=self._styles.number(settings),
            seed=settings.sampling.seed,
        )

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue units. Raises `DataLoss` or `InvalidArgument`."""
        self._segments[key].accept(chunk)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """The edge of units, or None once all have come."""
        return None if self._segments[key].can_step else self._edges.frames

    def so_far(self, key: SegmentKey) -> Completed:
        """What the segment has cost until now."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Forget the segment."""
        del self._segments[key]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Speak for the segments that are not `held`."""
        events: list[EngineEvent] = []
        free = [each for key, each in self._segments.items() if key not in held]
        left = FRAMES_A_STEP
        while left > 0:
            ready = [each for each in free if each.can_step and not each.complete]
            if not ready:
                break
            segment = min(ready, key=lambda each: each.served)
            with alone(segment.key, events, segment.fail):
                left -= self._advance(segment, events)
        for segment in free:
            if segment.complete:
                events += segment.end()
        return events

    def _advance(self, segment: UnitSegment, events: list[EngineEvent]) -> int:
        """Compute the segment's latents or decode a window. Returns the number of latents."""
        if segment.latents is None:
            segment.latents = self._latents(segment)
            segment.served += segment.latents.frames
            return segment.latents.frames
        stop = min(segment.sent + WINDOW_FRAMES, segment.latents.frames)
        samples = self._synthesizer.samples(segment.latents, segment.sent, stop)
        events.append(Emitted(segment.key, segment.audio, segment.samples, {"samples": samples}))
        count = stop - segment.sent
        segment.samples += len(samples)
        segment.sent = stop
        segment.served += count
        return count

    def _latents(self, segment: UnitSegment) -> SpeechLatents:
        """Compute them. An error about their length names the edge."""
        edge = self._edges.frames
        try:
            return self._synthesizer.latents(segment.units.ids, segment.style, segment.seed)
        except InvalidArgument as error:
            raise InvalidArgument(f"{edge}: {error}", field=edge, edge=edge) from None
