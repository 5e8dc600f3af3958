"""A segment as code2wav sees it: the frames that have come, and what has left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.mimo_audio import AUDIO, CODEBOOKS, CODES
from antiphon.runtime.engine import Emitted, EngineEvent, InputChunk
from antiphon.values.chunk import Tensor
from antiphon_services.mimo_audio.code2wav.windows import DecodeWindow, WindowPlan
from antiphon_services.vocoder.audio_segment import (
    AudioSegment,
    VocoderEdges,
    VocoderSegment,
    invalid_codes,
    read_codes,
)

EDGES = VocoderEdges(CODES, AUDIO)


@dataclass(slots=True)
class WindowSegment(AudioSegment):
    """An admitted segment, whose windows are those of `plan`.

    Samples of the first `sent` of its frames have left. `served` frames have gone through the
    decoder for it.
    """

    plan: WindowPlan = field(kw_only=True)
    parts: list[Tensor] = field(default_factory=list)
    sent: int = 0
    served: int = 0

    def accept(self, chunk: InputChunk, limit: int) -> None:
        """Take frames, `limit` of them in all. Raises `DataLoss` or `InvalidArgument`."""
        order = VocoderSegment(self.key, EDGES, self.wanted, frames=self.come)
        order.finish_reason = self.finish_reason
        order.check_order(chunk)
        codes = checked_codes(chunk)
        if self.come + len(codes) > limit:
            raise invalid_codes(CODES, f"more than {limit} frames in a segment")
        self.come += len(codes)
        self.finish_reason = chunk.finish_reason
        if len(codes) and self.wanted:
            self.parts.append(codes)

    @property
    def next_window(self) -> DecodeWindow | None:
        """What can be decoded next; None: nothing yet, or no more."""
        if self.ended or not self.wanted:
            return None
        finished = self.finish_reason is not None
        return self.plan.following(self.sent, self.come, finished=finished)

    @property
    def complete(self) -> bool:
        """Whether all has left but the end."""
        done = not self.wanted or self.sent == self.come
        return not self.ended and self.finish_reason is not None and done

    def codes(self, window: DecodeWindow) -> Tensor:
        """uint16 [n, channels]: the frames of a window."""
        self.parts = [np.concatenate(self.parts)]
        return self.parts[0][window.left : window.right]

    def decoded(self, window: DecodeWindow, samples: Tensor) -> EngineEvent:
        """What leaves: the samples of the window's own frames, float32 [m]."""
        frames = self.parts[0][window.first : window.stop]
        position, self.samples = self.samples, self.samples + len(samples)
        self.sent = window.stop
        return Emitted(self.key, AUDIO, position, {"samples": samples, CODES: frames})


def checked_codes(chunk: InputChunk) -> Tensor:
    """The chunk's frames, uint16 [n, channels]. Raises `InvalidArgument`."""
    codes = read_codes(chunk, len(CODEBOOKS), max(CODEBOOKS))
    if (codes >= np.array(CODEBOOKS)).any():
        raise InvalidArgument(
            f"{CODES}: codes must be below {list(CODEBOOKS)}", field=CODES, edge=CODES
        )
    return codes
