"""The events of a segment, independent of the client's protocol.

A segment yields `SegmentStarted`, then its deltas in order, and finally `SegmentFinished`.
"""

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
    """All stages have opened the session, and the first output is available.

    `sample_rate_hz` is 0 if no audio was requested. `input_audio_s` is the total length of the
    input recordings in seconds. `drawn_seed` is the seed of the stages for which the request gives
    none.
    """

    session_id: str
    model: str
    sample_rate_hz: int
    input_audio_s: float = 0.0
    drawn_seed: int = 0


@dataclass(frozen=True, slots=True)
class TextProduced:
    """A piece of text, which contains only complete characters, and its token IDs (int32).

    If log probabilities were requested, `logprobs` has an entry for each token whose text begins in
    this piece.
    """

    text: str
    ids: Tensor
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class AudioProduced:
    """A piece of audio, as mono float32 samples. If they were requested, `frames` contains its
    codec frames, with the shape [frames, groups].

    `first_sample` is the index of the first sample within the answer.
    """

    samples: Tensor
    frames: Tensor
    first_sample: int


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file that a stage has generated."""

    file: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ImageProduced:
    """One or more complete images."""

    images: tuple[ImageFile, ...]


@dataclass(frozen=True, slots=True)
class StepsAdvanced:
    """The progress of a stage, which has completed `done` of `due` steps. If several reports are
    waiting, only the latest is delivered.
    """

    stage: str
    done: int
    due: int


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """The next part of a function call. `index` is the position of the call in the answer, starting
    at 0.

    `call` is set in the last part, and contains the whole call. If the call turns out to be
    invalid, the answer fails.
    """

    index: int
    id: str
    name: str
    arguments: str
    begins: bool
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class ToolCallsProduced:
    """Parts of one or more function calls, in order."""

    pieces: tuple[ToolCallPiece, ...]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are completed by these parts."""
        return tuple(each.call for each in self.pieces if each.call is not None)


@dataclass(frozen=True, slots=True)
class SegmentUsage(Usage):
    """The resources that a segment used."""

    def with_choice(self, other: SegmentUsage) -> SegmentUsage:
        """Return the combined usage of two answers to the same prompt. The prompt is counted
        once.
        """
        return replace(
            self,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            completion_audio_frames=self.completion_audio_frames + other.completion_audio_frames,
            completion_image_tokens=self.completion_image_tokens + other.completion_image_tokens,
        )


@dataclass(frozen=True, slots=True)
class SegmentFinished:
    """The last event. `reports` contains the report of each stage that has sent one, by role."""

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
