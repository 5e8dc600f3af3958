"""The token2wav engine, which computes the audio of many segments in shared calls.

A call starts from noise and computes the samples of all segments that have blocks which can become
final. Each engine step computes a part of the call (see `Decoding`). Codes that arrive during a
call wait for the next one. If a segment receives many codes at once, as with `whole` delivery, it
gets its own call, which alternates with the shared call. The shared call then never waits for more
than half of a step.

If a segment is put on hold during a call, it stays in the call, and its samples wait. If a segment
is released, its samples are dropped. An error in a call only affects the segments in this call.
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
from antiphon_services.vocoder.received_codes import CheckedCodes

LONG_BLOCKS = 16
"""If a segment has more blocks than this, not counting held blocks, it gets its own call."""


@dataclass(frozen=True, slots=True)
class DecodingCall:
    """A running call and its segments."""

    decoding: Decoding
    segments: Sequence[DecodedSegment]
    long: bool


class Token2WavEngine:
    """Implements `antiphon.runtime.engine.Engine`. The input edge is `codes`, and the output edge
    is `audio`.

    `context_limit` is the maximum number of codes in a segment, and `slots` is the maximum number
    of segments. A segment's sampling seed determines its noise. `to_host` copies samples to the
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
        """Add a segment. If no voice is specified, the first voice is used.

        Raises `InvalidArgument` if the voice is unknown, and `ResourceExhausted` if all slots are
        in use.
        """
        voice = choose_voice(settings.voice, self._model.voices)
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{TOKEN2WAV}: all {self._slots} slots are in use")
        self._segments[key] = DecodedSegment(
            key,
            self._model.open(voice, seed=settings.sampling.seed, held_blocks=self._held_blocks),
            wanted=AUDIO in settings.outputs,
            samples_per_code=self._model.samples_per_code,
            received=CheckedCodes(CODES, 1, self._model.code_entries, self._context_limit),
        )

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Validate and queue codes. Raises `DataLoss` or `InvalidArgument` if they are invalid."""
        self._segments[key].accept(chunk)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `codes` if the segment is waiting for input, or None otherwise."""
        segment = self._segments[key]
        going = segment.in_flight or segment.ready or segment.can_hand_on or segment.ended
        return None if going else CODES

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment. If it was the only one in a call, the call ends."""
        del self._segments[key]
        self._calls = [
            each
            for each in self._calls
            if any(segment.key in self._segments for segment in each.segments)
        ]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Emit samples and continue the calls."""
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
        """Copy samples to the host and return a slice of the copy for each segment. The copy may
        still be in progress. See `ToHost`.
        """
        ends = list(itertools.accumulate(map(len, samples)))
        return np.split(self._to_host.copy(torch.cat(list(samples))), ends[:-1])

    def _end(self, call: DecodingCall) -> None:
        self._calls = [each for each in self._calls if each is not call]

    def _fail(self, call: DecodingCall) -> None:
        """End a call that can't continue. Its segments end as well, because the call has consumed
        their codes.
        """
        self._end(call)
        for segment in call.segments:
            segment.ended = True

    def _begin(self, ready: Sequence[DecodedSegment]) -> None:
        """Start a call for the short segments and another one for the first long segment, unless
        they are already running.
        """
        for long in (False, True):
            fit = [each for each in ready if (each.behind > self._long_codes) is long]
            segments = fit[:1] if long else fit
            if segments and not any(each.long is long for each in self._calls):
                decoding = self._model.begin([each.launch() for each in segments])
                self._calls.append(DecodingCall(decoding, segments, long))


def _hand_on(segments: Collection[DecodedSegment]) -> list[EngineEvent]:
    return [event for each in segments if each.can_hand_on for event in each.hand_on()]
