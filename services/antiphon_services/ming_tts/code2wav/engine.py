"""The code2wav engine, which computes the audio of many segments.

Each segment has its own stream, which stores the state needed to decode further latents. Latents
are decoded exactly once, in order, as soon as they arrive. However, a latent has to wait for the
next one, and the last rows have to wait for the end of the stream, so samples are completed
slightly later than their frames arrive.

Each step decodes pieces of many segments in a single call, but the streams don't affect each other.
If the call fails, each segment's piece is decoded separately, so that an error only affects its own
segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from antiphon.errors import ResourceExhausted
from antiphon.pipelines.ming_tts import (
    AUDIO,
    CODE2WAV,
    FRAME_WIDTH,
    LATENT_WIDTH,
    LATENTS,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
    TAIL_SILENCE,
)
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.transport.device_edge import host_array, on_device
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.code2wav.decoder import AudioDecoder, LatentPiece, StreamState
from antiphon_services.ming_tts.code2wav.module import AudioDecoderModule
from antiphon_services.ming_tts.code2wav.tail_silence import TailSilence
from antiphon_services.stage.isolation import alone, together
from antiphon_services.vocoder.audio_segment import (
    Pending,
    VocoderEdges,
    VocoderSegment,
)
from antiphon_services.vocoder.pace import DecodePace
from antiphon_services.vocoder.received_codes import invalid_codes

PACE = DecodePace(step=8, least=1, padding=0)
"""Each step decodes up to 2.6 seconds of audio. A frame has a duration of 0.32 seconds."""

_EDGES = VocoderEdges(frames=LATENTS, audio=AUDIO)
_NO_FRAMES = Pending(np.empty((0, FRAME_WIDTH), np.float32), prime=False)


@dataclass(frozen=True, slots=True)
class PieceTurn:
    """The frames of a segment that are decoded in a step.

    There are no frames if only the end of the segment remains to be processed.
    """

    segment: VocoderSegment
    frames: Pending

    @property
    def finished(self) -> bool:
        """Whether these are the last frames of the segment."""
        return self.segment.finish_reason is not None and not self.segment.pending


class LatentDecoderEngine:
    """An engine with the input edge `speech_latents` and the output edge `audio`.

    Implements `antiphon.runtime.engine.Engine`. `context_limit` is the maximum number of frames in
    a segment, and `slots` is the maximum number of segments.
    """

    def __init__(self, module: AudioDecoderModule, *, context_limit: int, slots: int) -> None:
        self._decoder = AudioDecoder(module)
        self._context_limit = context_limit
        self._slots = slots
        self._segments: dict[SegmentKey, VocoderSegment] = {}
        self._streams: dict[SegmentKey, StreamState] = {}
        self._tails: dict[SegmentKey, TailSilence] = {}
        # The segments that can step, ordered by how long they have waited.
        self._ready: dict[SegmentKey, None] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{CODE2WAV}: all {self._slots} slots are in use")
        self._segments[key] = VocoderSegment(key, _EDGES, AUDIO in settings.outputs)
        self._streams[key] = self._decoder.new_stream()
        tail_s = settings.options.get(TAIL_SILENCE)
        if tail_s is not None:
            assert isinstance(tail_s, int | float), "the runtime checks options"
            self._tails[key] = TailSilence(round(tail_s * SAMPLE_RATE_HZ))

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Validate and store frames. Raises `DataLoss` or `InvalidArgument`."""
        segment = self._segments[key]
        segment.check_order(chunk)
        frames = _read_frames(chunk)
        if segment.frames + len(frames) > self._context_limit:
            raise invalid_codes(LATENTS, f"the segment has more than {self._context_limit} frames")
        segment.accept(frames, chunk)
        if segment.can_step:
            self._ready[key] = None

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `speech_latents`, or None if there is input that has not been processed yet."""
        return None if self._segments[key].can_step else LATENTS

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the usage of the segment up to this point."""
        return self._segments[key].cost(FinishReason.CANCELLED)

    def release(self, key: SegmentKey) -> None:
        """Remove the segment and its stream."""
        del self._segments[key], self._streams[key]
        self._tails.pop(key, None)
        self._ready.pop(key, None)

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Decode up to `PACE.step` frames in one call, starting with the frames that have waited
        longest.
        """
        ready = [self._segments[key] for key in self._ready if key not in held]
        shares = PACE.shares([segment.waiting for segment in ready])
        stepped = [
            (segment, share)
            for segment, share in zip(ready, shares, strict=True)
            if share or not segment.pending
        ]
        events: list[EngineEvent] = []
        turns: list[PieceTurn] = []
        for segment, share in stepped:
            frames = segment.take(share) if segment.pending else _NO_FRAMES
            if segment.wanted and segment.frames:
                turns.append(PieceTurn(segment, frames))
            else:
                events += segment.emit({})
        if turns:
            events += self._advance(turns)
        for segment, _ in stepped:
            del self._ready[segment.key]
            if segment.can_step:
                self._ready[segment.key] = None
        return events

    def _advance(self, turns: Sequence[PieceTurn]) -> list[EngineEvent]:
        """Decode the frames in a single call. If it fails, no state is changed."""
        events: list[EngineEvent] = []
        for turn, result in zip(turns, together(self._decode, turns), strict=True):
            segment = turn.segment
            with alone(segment.key, events, segment.end):
                samples, self._streams[segment.key] = result()
                if (tail := self._tails.get(segment.key)) is not None:
                    samples = tail.advance(samples, finished=turn.finished)
                events += segment.decoded(turn.frames, samples)
        return events

    def _decode(self, turns: Sequence[PieceTurn]) -> list[tuple[Tensor, StreamState]]:
        """Return the float32 samples, of shape [m], and the next state of each stream."""
        # Concatenating copies the frames. Otherwise, torch would warn that message arrays are
        # read-only.
        joined = np.concatenate([turn.frames.codes for turn in turns])
        latents = on_device(joined, self._decoder.device).view(-1, LATENT_WIDTH)
        lengths = [len(turn.frames.codes) * STEP_LATENTS for turn in turns]
        pieces = [
            LatentPiece(self._streams[turn.segment.key], part, turn.finished)
            for turn, part in zip(turns, torch.split_with_sizes(latents, lengths), strict=True)
        ]
        made, states = zip(*self._decoder.advance(pieces), strict=True)
        # All samples are copied to the host at once, and each segment sends its slice.
        ends = np.cumsum([len(samples) for samples in made])[:-1]
        return list(zip(np.split(host_array(torch.cat(made)), ends), states, strict=True))


def _read_frames(chunk: InputChunk) -> Tensor:
    """Return the chunk's frames, as a float32 array of shape [n, 256].

    n is 0 if the chunk only signals the end of the segment. Raises `InvalidArgument` if the chunk
    is not valid.
    """
    if not chunk.tensors and chunk.segment_finished:
        return _NO_FRAMES.codes
    if set(chunk.tensors) != {LATENTS}:
        raise invalid_codes(
            LATENTS, f"must be the only tensor of the chunk, got {sorted(chunk.tensors)}"
        )
    frames = chunk.tensors[LATENTS]
    if frames.dtype != np.float32 or frames.ndim != 2 or frames.shape[1] != FRAME_WIDTH:
        raise invalid_codes(
            LATENTS, f"must be float32 [n, {FRAME_WIDTH}], not {frames.dtype} {frames.shape}"
        )
    if not np.isfinite(frames).all():
        raise invalid_codes(LATENTS, "contain values that are not finite")
    return frames
