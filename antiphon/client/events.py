"""What a client receives, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from antiphon.client.tools import call_from_proto
from antiphon.errors import DataLoss
from antiphon.v1 import session_pb2, speech_pb2, stage_pb2, usage_pb2
from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.brief import brief
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon.wire.convert import finish_reason_from_proto

OptionType = Literal["text", "number", "audio", ""]

_OPTION_TYPES: Mapping[int, OptionType] = {
    stage_pb2.OPTION_KIND_TEXT: "text",
    stage_pb2.OPTION_KIND_NUMBER: "number",
    stage_pb2.OPTION_KIND_AUDIO: "audio",
}


@dataclass(frozen=True, slots=True)
class ModelOption:
    """What a model takes besides messages, under a name in `generate(options=...)`.

    `kind` is "text", "number" or "audio" (a recording); empty for one that this version does not
    know. Text is one of `choices`, in any case, or, where there are none, any of at most
    `max_bytes` of UTF-8; a number is from `least` to `most`; a recording has at most `max_s`
    seconds. The one that `instructs` says in words how to speak.
    """

    name: str
    kind: OptionType
    description: str = ""
    choices: tuple[str, ...] = ()
    max_bytes: int = 0
    least: float = 0.0
    most: float = 0.0
    max_s: float = 0.0
    instructs: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model of a server. `sample_rate_hz` is that of produced audio.

    `sampling_stages` are the keys that `generate(sampling=...)` may have.
    """

    name: str
    voices: tuple[str, ...]
    sample_rate_hz: int
    input_kinds: tuple[str, ...]
    output_kinds: tuple[str, ...]
    context_limit: int
    options: tuple[ModelOption, ...] = ()
    sampling_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server serves; `features` names its optional abilities."""

    version: str
    models: tuple[ModelInfo, ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text, whole characters only. `token_ids` only with `include_ids`.

    With `top_logprobs` also `logprobs`, of each token whose text begins here. So it may
    lag behind `token_ids`: text that may begin a stop string waits, and so do its tokens.
    The stop id, other ids without text, and what a stop string cut off have no entry.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """More audio: 16-bit little-endian mono samples, from index `first_sample` on.

    With `include_ids` also `float32` (little-endian samples as decoded) and
    `codes` (uint16 little-endian codec frames, frame major), for example
    `numpy.frombuffer(delta.codes, "<u2").reshape(-1, 16)`. A model whose frames are floats has
    `latents` (float32 little-endian, frame major) instead.
    """

    pcm16: bytes
    first_sample: int
    float32: bytes = b""
    codes: bytes = b""
    latents: bytes = b""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class MadeImage:
    """An image that the model has made: a PNG, JPEG or WebP file, as `media_type` says."""

    file: bytes
    media_type: str

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """Whole images."""

    images: tuple[MadeImage, ...]


@dataclass(frozen=True, slots=True)
class FunctionCallPiece:
    """More of a call's `arguments`, as they are written; it is number `index` of the answer, from
    0, and `id` and `name` are the same in each piece of it."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionCallDelta:
    """More of the functions that the answer calls.

    `pieces` is what was written since the last such event, and `calls` are those that have ended
    with it, whole. Only these are calls: the answer fails if what has begun proves to be none. The
    first of the pieces, and of the calls if there are any, is number `first` of the answer, from 0.
    """

    first: int
    calls: tuple[FunctionCall, ...]
    pieces: tuple[FunctionCallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a request cost on one stage.

    Times are seconds since the stage opened the segment; 0 when the thing did
    not happen. `busy_s` is the engine's time on it.
    """

    input_positions: int
    output_positions: int
    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `reports` has one entry per stage that took part, by role."""

    finish_reason: FinishReason
    usage: Usage
    reports: Mapping[str, StageReport]


Event = TextDelta | AudioDelta | ImageDelta | FunctionCallDelta | Finished


def server_info_from_proto(proto: speech_pb2.GetServerInfoResponse) -> ServerInfo:
    """The value of a `GetServerInfo` answer."""
    models = tuple(
        ModelInfo(
            name=model.name,
            voices=tuple(model.voices),
            sample_rate_hz=model.sample_rate_hz,
            input_kinds=tuple(model.input_kinds),
            output_kinds=tuple(model.output_kinds),
            context_limit=model.context_limit,
            options=tuple(map(_option_from_proto, model.options)),
            sampling_stages=tuple(model.sampling_stages),
        )
        for model in proto.models
    )
    return ServerInfo(proto.version, models, tuple(proto.features))


def _option_from_proto(proto: stage_pb2.OptionDescription) -> ModelOption:
    return ModelOption(
        name=proto.name,
        kind=_OPTION_TYPES.get(proto.kind, ""),
        description=proto.description,
        choices=tuple(proto.choices),
        max_bytes=proto.max_bytes,
        least=proto.least,
        most=proto.most,
        max_s=proto.max_s,
        instructs=proto.instructs,
    )


def text_from_proto(proto: speech_pb2.TextDelta) -> TextDelta:
    """The value of a text event."""
    logprobs = tuple(map(_logprob_from_proto, proto.logprobs))
    return TextDelta(proto.text, tuple(proto.token_ids), logprobs)


def _logprob_from_proto(proto: speech_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple(map(_logprob_from_proto, proto.top))
    return TokenLogprob(proto.token_id, proto.token, proto.logprob, top)


def audio_from_proto(proto: speech_pb2.AudioDelta) -> AudioDelta:
    """The value of an audio event."""
    return AudioDelta(proto.pcm16, proto.first_sample, proto.float32, proto.codes, proto.latents)


def image_from_proto(proto: speech_pb2.ImageDelta) -> ImageDelta:
    """The value of an image event."""
    return ImageDelta(tuple(MadeImage(each.file, each.media_type) for each in proto.images))


def calls_from_proto(proto: speech_pb2.FunctionCallDelta) -> FunctionCallDelta:
    """The value of an event with calls."""
    pieces = (FunctionCallPiece(p.index, p.id, p.name, p.arguments) for p in proto.pieces)
    return FunctionCallDelta(proto.first, tuple(map(call_from_proto, proto.calls)), tuple(pieces))


def finished_from_proto(proto: speech_pb2.GenerateFinished) -> Finished:
    """The value of the last event. Raises `DataLoss` for a reason that this version lacks."""
    reason = finish_reason_from_proto(proto.finish_reason)
    if reason is None:
        raise DataLoss(f"the server ended for an unknown reason ({proto.finish_reason})")
    return Finished(
        finish_reason=reason,
        usage=usage_from_proto(proto.usage),
        reports={role: _report_from_proto(report) for role, report in proto.reports.items()},
    )


def usage_from_proto(usage: usage_pb2.Usage) -> Usage:
    """The value of what an answer cost."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        prompt_audio_tokens=usage.prompt_audio_tokens,
        prompt_image_tokens=usage.prompt_image_tokens,
        prompt_cached_tokens=usage.prompt_cached_tokens,
        completion_tokens=usage.completion_tokens,
        completion_audio_frames=usage.completion_audio_frames,
        completion_image_tokens=usage.completion_image_tokens,
    )


def _report_from_proto(proto: session_pb2.SegmentReport) -> StageReport:
    return StageReport(
        input_positions=proto.input_positions,
        output_positions=proto.output_positions,
        first_input_s=proto.first_input_s,
        first_output_s=proto.first_output_s,
        last_output_s=proto.last_output_s,
        busy_s=proto.busy_s,
    )
