"""Token2wav's engine: computes the audio of many segments in shared calls.

A call decodes all segments with blocks that can become final, from noise to samples. Each step of
the engine computes a part of it; see `Decoding`. Codes that arrive during a call wait for the next
call. A segment that receives many codes at once, as with `whole` delivery, has a separate call that
alternates with the shared call. The shared call therefore waits for at most half of each step.

A segment that becomes held during a call stays in the call, and its samples wait. The samples of a
released segment are dropped. An error in a call fails only its segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from antiphon.errors import ResourceExhausted
from antiphon.pipelines.qwen2_5_omni import AUDIO, BLOCK_CODES, CODES, TOKEN2WAV
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.transport.device_edge import ToHost
from antiphon.values.chunk import Tensor as Array
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen2_5_omni.token2wav.decoded_segment import DecodedSegment
from antiphon_services.qwen2_5_omni.token2wav.decoder import Decoding, Token2Wav
from antiphon_services.stage.isolation import apart
from antiphon_services.stage.voices import choose_voice

LONG_BLOCKS = 16
"""A segment with more blocks than these and the held-back ones has a separate call."""


@dataclass(frozen=True, slots=True)
class DecodingCall:
    """A running call and its segments."""

    decoding: Decoding
    segments: Sequence[DecodedSegment]
    long: bool


class Token2WavEngine:
    """Implements `antiphon.runtime.engine.Engine`: input `codes`, output `audio`.

    `context_limit` is the maximum number of codes of a segment, and `slots` the maximum number of
    segments. The seed of a segment's sampling determines its noise. `to_host` copies samples to the
    host asynchronously.
    """

    def __init__(
        self,
        model: Token2Wav,
        *,
        context_limit: int,
        slots: int,
        held_blocks: int,
        to_host: ToHost | None = None,
    ) -> None:
        self._to_host = to_host or ToHost.direct()
        self._model = model
        self._context_limit = min(context_limit, model.most_codes)
        self._slots = slots
        self._held_blocks = held_blocks
        self._segments: dict[SegmentKey, DecodedSegment] = {}
        self._long_codes = (held_blocks + LONG_BLOCKS) * BLOCK_CODES
        self._calls: list[DecodingCall] = []

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. An empty voice means the first.

        Raises `InvalidArgument` for an unknown voice, and `ResourceExhausted` if all slots are in
        use.
        """
        voice = choose_voice(settings.voice, self._model.voices)
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{TOKEN2WAV} has {self._slots} slots, and all are taken")
        self._segments[key] = DecodedSegment(
            key,
            self._model.open(voice, seed=settings.sampling.seed, held_blocks=self._held_blocks),
            wanted=AUDIO in settings.outputs,
            samples_per_code=self._model.samples_per_code,
        )

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Check and queue codes; see `DecodedSegment.accept`."""
        self._segments[key].accept(
            chunk, entries=self._model.code_entries, limit=self._context_limit
        )

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge that the segment waits for: `codes`, or None."""
        segment = self._segments[key]
        going = segment.in_flight or segment.ready or segment.can_hand_on or segment.ended
        return None if going else CODES

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the cost of the segment so far."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment. A call without other segments ends."""
        del self._segments[key]
        self._calls = [
            each
            for each in self._calls
            if any(segment.key in self._segments for segment in each.segments)
        ]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Emit samples, and continue the calls."""
        free = [each for key, each in self._segments.items() if key not in held]
        events = _hand_on(free)
        self._begin([each for each in free if each.ready])
        for call in tuple(self._calls):
            keys = [each.key for each in call.segments if each.key in self._segments]
            with apart(keys, events, partial(self._fail, call)):
                samples = call.decoding.advance()
                if samples is not None:
                    self._end(call)
                    for segment, each in zip(call.segments, self._copied(samples), strict=True):
                        segment.collect(each)
        return events + _hand_on(free)

    def _copied(self, samples: Sequence[Tensor]) -> Sequence[Array]:
        """Return slices of one copy on the host, which may still be in progress: see `ToHost`."""
        ends = list(itertools.accumulate(map(len, samples)))
        return np.split(self._to_host.copy(torch.cat(list(samples))), ends[:-1])

    def _end(self, call: DecodingCall) -> None:
        self._calls = [each for each in self._calls if each is not call]

    def _fail(self, call: DecodingCall) -> None:
        """End a call that cannot continue, and its segments, whose codes it has consumed."""
        self._end(call)
        for segment in call.segments:
            segment.ended = True

    def _begin(self, ready: Sequence[DecodedSegment]) -> None:
        """Start a call for the short segments, and one for the first long segment, unless they are
        running."""
        for long in (False, True):
            fit = [each for each in ready if (each.behind > self._long_codes) is long]
            segments = fit[:1] if long else fit
            if segments and not any(each.long is long for each in self._calls):
                decoding = self._model.begin([each.launch() for each in segments])
                self._calls.append(DecodingCall(decoding, segments, long))


def _hand_on(segments: Collection[DecodedSegment]) -> list[EngineEvent]:
    return [event for each in segments if each.can_hand_on for event in each.hand_on()]
