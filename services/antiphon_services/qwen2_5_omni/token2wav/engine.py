"""Token2wav's engine: audio of many segments, whose codes share calls.

A call takes all segments of which blocks can become final, from noise to samples, some work in
each step of the engine: see `Decoding`. What comes meanwhile waits for the next call. A segment of
which much has come at once, as with `whole` delivery, has a call of its own, beside the one that
others share: so these wait for half of each step at most. A segment that becomes held while it is
in a call stays there, and its samples wait; one that is released leaves its samples to nobody.
A fault in a call fails its segments and no others.
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
"""With more than these and the held-back ones a segment is no stream, or far behind."""


@dataclass(frozen=True, slots=True)
class DecodingCall:
    """A call that has begun, and for whom."""

    decoding: Decoding
    segments: Sequence[DecodedSegment]
    long: bool


class Token2WavEngine:
    """Implements `antiphon.runtime.engine.Engine`: edge `codes` in, edge `audio` out.

    `context_limit` is the most codes of a segment, `slots` the most segments. The seed of a
    segment's sampling keys its noise. `to_host` brings samples beside the engine's work.
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
        """Raises `InvalidArgument` for an unknown voice (empty: the first), and
        `ResourceExhausted` when all slots are taken."""
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
        """`codes`, or None."""
        segment = self._segments[key]
        going = segment.in_flight or segment.ready or segment.can_hand_on or segment.ended
        return None if going else CODES

    def so_far(self, key: SegmentKey) -> Completed:
        """What the segment has cost until now."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Forget the segment; a call that was for nobody else ends."""
        del self._segments[key]
        self._calls = [
            each
            for each in self._calls
            if any(segment.key in self._segments for segment in each.segments)
        ]

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Hand on what is made, and go on with the calls."""
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
        """Slices of one copy on the host, which may still be under way: see `ToHost`."""
        ends = list(itertools.accumulate(map(len, samples)))
        return np.split(self._to_host.copy(torch.cat(list(samples))), ends[:-1])

    def _end(self, call: DecodingCall) -> None:
        self._calls = [each for each in self._calls if each is not call]

    def _fail(self, call: DecodingCall) -> None:
        """The call cannot go on, and holds codes of its segments."""
        self._end(call)
        for segment in call.segments:
            segment.ended = True

    def _begin(self, ready: Sequence[DecodedSegment]) -> None:
        """A call for the short ones, and one for the first of the long, unless there is one."""
        for long in (False, True):
            fit = [each for each in ready if (each.behind > self._long_codes) is long]
            segments = fit[:1] if long else fit
            if segments and not any(each.long is long for each in self._calls):
                decoding = self._model.begin([each.launch() for each in segments])
                self._calls.append(DecodingCall(decoding, segments, long))


def _hand_on(segments: Collection[DecodedSegment]) -> list[EngineEvent]:
    return [event for each in segments if each.can_hand_on for event in each.hand_on()]
