"""What a segment yields, whatever the protocol: Started, deltas in order, Finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from antiphon.v1 import session_pb2
from antiphon.values.answer import Usage
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import ToolCall
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """All stages hold the session and the first output is there.

    `sample_rate_hz` is 0 when no audio was asked for; `input_audio_s` is how long the recordings
    of the input are together; `drawn_seed` is that of stages that were given none.
    """

    session_id: str
    model: str
    sample_rate_hz: int
    input_audio_s: float = 0.0
    drawn_seed: int = 0


@dataclass(frozen=True, slots=True)
class TextProduced:
    """Whole characters and the ids (int32) that they were made of.

    `logprobs`, if asked for, are of the tokens whose text begins here.
    """

    text: str
    ids: Tensor
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class AudioProduced:
    """Mono float32 samples, and their codec frames [frames, groups] if they are included.

    `first_sample` is the index of the first sample within the answer.
    """

    samples: Tensor
    frames: Tensor
    first_sample: int


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file that a stage has made."""

    file: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ImageProduced:
    """Whole images."""

    images: tuple[ImageFile, ...]


@dataclass(frozen=True, slots=True)
class StepsAdvanced:
    """Steps of a stage's generation: `done` of `due`. Coalesced: only the newest counts."""

    stage: str
    done: int
    due: int


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """More of call number `index` of the answer, from 0, which may be the first or the last of it.

    `call` is the whole call, once it has ended and is known to be one; the answer fails if it
    proves to be none.
    """

    index: int
    id: str
    name: str
    arguments: str
    begins: bool
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class ToolCallsProduced:
    """More of one or several calls of functions, in order."""

    pieces: tuple[ToolCallPiece, ...]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Those that have ended with it."""
        return tuple(each.call for each in self.pieces if each.call is not None)


@dataclass(frozen=True, slots=True)
class SegmentUsage(Usage):
    """What a segment cost."""

    def with_choice(self, other: SegmentUsage) -> SegmentUsage:
        """Of both answers to one prompt, which counts once."""
        return replace(
            self,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            completion_audio_frames=self.completion_audio_frames + other.completion_audio_frames,
            completion_image_tokens=self.completion_image_tokens + other.completion_image_tokens,
        )


@dataclass(frozen=True, slots=True)
class SegmentFinished:
    """The last event. `reports` has one entry per stage that sent one, by role."""

    finish_reason: FinishReason
    usage: SegmentUsage
    reports: Mapping[str, session_pb2.SegmentReport]


Event = (
    SegmentStarted
    | TextProduced
    | AudioProduced
    | ImageProduced
    | ToolCallsProduced
    | StepsAdvanced
    | SegmentFinished
)
