"""Events and values that a client receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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
    """An option of a model, set by its name in `generate(options=...)`.

    `kind` is "text", "number" or "audio" (a recording); empty if this version does not know it.
    Text is one of `choices`, case-insensitive, or, without choices, any text of at most `max_bytes`
    of UTF-8. A number is from `least` to `most`. A recording has at most `max_s` seconds. An option
    that `instructs` describes how to speak.
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
    """One model of a server. `sample_rate_hz` is that of generated audio.

    `sampling_stages` are the keys of `generate(sampling=...)`.
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
    """What a server serves. `features` names its optional features."""

    version: str
    models: tuple[ModelInfo, ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Next text, in whole characters. `token_ids` requires `include_ids`.

    `logprobs` requires `top_logprobs` and has each token whose text begins here. It may lag behind
    `token_ids`: text that may begin a stop string is held back with its tokens. The stop id, other
    ids without text and what a stop string cut off have no entry.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """Next audio: 16-bit little-endian mono samples, starting at index `first_sample`.

    `include_ids` adds `float32` (little-endian samples as decoded) and `codes` (uint16
    little-endian codec frames, frame major), for example `numpy.frombuffer(delta.codes,
    "<u2").reshape(-1, 16)`. A model with float frames has `latents` (float32 little-endian, frame
    major) instead.
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
    """A generated image: a PNG, JPEG or WebP file, according to `media_type`."""

    file: bytes
    media_type: str

    def __repr__(self) -> str:
        return brief(self)

    def save(self, path: str | Path) -> Path:
        """Write the file and return its path. Raises `OSError` if it cannot be written."""
        Path(path).write_bytes(self.file)
        return Path(path)


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """Complete images."""

    images: tuple[MadeImage, ...]


@dataclass(frozen=True, slots=True)
class FunctionCallPiece:
    """Next part of a call's `arguments`.

    `index` is the call's number in the answer, from 0. `id` and `name` are repeated in each piece.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionCallDelta:
    """Progress of the answer's function calls.

    `pieces` were generated since the last such event, `calls` are complete with it. Only complete
    calls are valid; the answer fails if a call proves invalid. `first` is the number in the answer,
    from 0, of the first piece and of the first call.
    """

    first: int
    calls: tuple[FunctionCall, ...]
    pieces: tuple[FunctionCallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReport:
    """Usage of a request on one stage.

    Times are seconds since the stage opened the segment; 0 if the event did not occur. `busy_s` is
    engine time.
    """

    input_positions: int
    output_positions: int
    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `reports` has one entry per participating stage, by role."""

    finish_reason: FinishReason
    usage: Usage
    reports: Mapping[str, StageReport]


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Steps of a stage's generation: `done` of `due`, from a model that reports them.

    Events are coalesced, so steps may be skipped. Counts may restart if the server replaces a lost
    stage.
    """

    stage: str
    done: int
    due: int


Event = TextDelta | AudioDelta | ImageDelta | FunctionCallDelta | StepProgress | Finished


def server_info_from_proto(proto: speech_pb2.GetServerInfoResponse) -> ServerInfo:
    """Return the value of a `GetServerInfo` response."""
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
    """Return the value of a text event."""
    logprobs = tuple(map(_logprob_from_proto, proto.logprobs))
    return TextDelta(proto.text, tuple(proto.token_ids), logprobs)


def _logprob_from_proto(proto: speech_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple(map(_logprob_from_proto, proto.top))
    return TokenLogprob(proto.token_id, proto.token, proto.logprob, top)


def audio_from_proto(proto: speech_pb2.AudioDelta) -> AudioDelta:
    """Return the value of an audio event."""
    return AudioDelta(proto.pcm16, proto.first_sample, proto.float32, proto.codes, proto.latents)


def image_from_proto(proto: speech_pb2.ImageDelta) -> ImageDelta:
    """Return the value of an image event."""
    return ImageDelta(tuple(MadeImage(each.file, each.media_type) for each in proto.images))


def progress_from_proto(proto: speech_pb2.StepProgress) -> StepProgress:
    """Return the value of a progress event."""
    return StepProgress(proto.stage, proto.done, proto.due)


def calls_from_proto(proto: speech_pb2.FunctionCallDelta) -> FunctionCallDelta:
    """Return the value of a function call event."""
    pieces = (FunctionCallPiece(p.index, p.id, p.name, p.arguments) for p in proto.pieces)
    return FunctionCallDelta(proto.first, tuple(map(call_from_proto, proto.calls)), tuple(pieces))


def finished_from_proto(proto: speech_pb2.GenerateFinished) -> Finished:
    """Return the value of the last event. Raises `DataLoss` for an unknown finish reason."""
    reason = finish_reason_from_proto(proto.finish_reason)
    if reason is None:
        raise DataLoss(f"the server ended for an unknown reason ({proto.finish_reason})")
    return Finished(
        finish_reason=reason,
        usage=usage_from_proto(proto.usage),
        reports={role: _report_from_proto(report) for role, report in proto.reports.items()},
    )


def usage_from_proto(usage: usage_pb2.Usage) -> Usage:
    """Return the value of a usage message."""
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
