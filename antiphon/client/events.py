"""The events and values that a client receives."""

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
    """A model option, which is set by name in `generate(options=...)`.

    `kind` is "text", "number" or "audio". It is empty if this version of the client does not
    recognize the kind. If a text option has `choices`, its value must be one of them, ignoring
    case. Otherwise, it can be any text of up to `max_bytes` bytes in UTF-8. A number must be
    between `least` and `most`. An audio option accepts a recording of up to `max_s` seconds. If
    `instructs` is true, the option describes how the model should speak.
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
    """A model that the server offers. `sample_rate_hz` is the sample rate of its output audio.

    `sampling_stages` lists the valid keys for `generate(sampling=...)`.
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
    """The models that a server offers. `features` lists the optional features that the server
    supports.
    """

    version: str
    models: tuple[ModelInfo, ...]
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of text. A piece never ends in the middle of a character. `token_ids` is empty
    unless `include_ids` is set.

    `logprobs` is empty unless `top_logprobs` is set. It contains an entry for each token whose text
    begins in this piece. It can lag behind `token_ids`, because text that may be the beginning of a
    stop string is held back along with its tokens. Stop tokens, other tokens without text, and
    tokens that are removed by a stop string have no entry.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """The next piece of audio, as 16-bit little-endian mono samples. `first_sample` is the index of
    the first sample.

    If `include_ids` is set, two more fields are filled. `float32` contains the samples as they were
    decoded, in little-endian order. `codes` contains the codec frames as consecutive little-endian
    uint16 values. You can read them with `numpy.frombuffer(delta.codes, "<u2").reshape(-1, 16)`,
    for example. If the model's frames consist of floats, `latents` is filled instead of `codes`. It
    contains little-endian float32 values.
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
    """A generated image. It is a PNG, JPEG or WebP file, as `media_type` indicates."""

    file: bytes
    media_type: str

    def __repr__(self) -> str:
        return brief(self)

    def save(self, path: str | Path) -> Path:
        """Write the image to a file and return its path. Raises `OSError` if the file cannot be
        written.
        """
        Path(path).write_bytes(self.file)
        return Path(path)


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """One or more complete images."""

    images: tuple[MadeImage, ...]


@dataclass(frozen=True, slots=True)
class FunctionCallPiece:
    """The next part of a function call's `arguments`.

    `index` is the position of the call in the answer, starting at 0. Every part repeats the call's
    `id` and `name`.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionCallDelta:
    """Progress on the function calls of an answer.

    `pieces` contains the arguments that were generated since the previous event of this type.
    `calls` contains the calls that are now complete. Do not act on incomplete calls, because the
    answer fails if a call turns out to be invalid. `first` is the index of the call that the first
    piece belongs to, starting at 0. If `calls` is not empty, it is also the index of its first
    element.
    """

    first: int
    calls: tuple[FunctionCall, ...]
    pieces: tuple[FunctionCallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReport:
    """The resources that a request used on one stage.

    Times are in seconds since the stage opened the segment. A time of 0 means that the event did
    not occur. `busy_s` is the engine time that the request used.
    """

    input_positions: int
    output_positions: int
    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer. `reports` contains an entry for each stage that took part, keyed
    by role.
    """

    finish_reason: FinishReason
    usage: Usage
    reports: Mapping[str, StageReport]


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of a stage, which has completed `done` of `due` steps. Only some models report
    progress.

    One event may cover several steps, so the count can skip numbers. It can also start over if the
    server replaces a lost stage.
    """

    stage: str
    done: int
    due: int


Event = TextDelta | AudioDelta | ImageDelta | FunctionCallDelta | StepProgress | Finished


def server_info_from_proto(proto: speech_pb2.GetServerInfoResponse) -> ServerInfo:
    """Convert the response of a `GetServerInfo` call."""
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
    """Convert a text event."""
    logprobs = tuple(map(_logprob_from_proto, proto.logprobs))
    return TextDelta(proto.text, tuple(proto.token_ids), logprobs)


def _logprob_from_proto(proto: speech_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple(map(_logprob_from_proto, proto.top))
    return TokenLogprob(proto.token_id, proto.token, proto.logprob, top)


def audio_from_proto(proto: speech_pb2.AudioDelta) -> AudioDelta:
    """Convert an audio event."""
    return AudioDelta(proto.pcm16, proto.first_sample, proto.float32, proto.codes, proto.latents)


def image_from_proto(proto: speech_pb2.ImageDelta) -> ImageDelta:
    """Convert an image event."""
    return ImageDelta(tuple(MadeImage(each.file, each.media_type) for each in proto.images))


def progress_from_proto(proto: speech_pb2.StepProgress) -> StepProgress:
    """Convert a progress event."""
    return StepProgress(proto.stage, proto.done, proto.due)


def calls_from_proto(proto: speech_pb2.FunctionCallDelta) -> FunctionCallDelta:
    """Convert a function call event."""
    pieces = (FunctionCallPiece(p.index, p.id, p.name, p.arguments) for p in proto.pieces)
    return FunctionCallDelta(proto.first, tuple(map(call_from_proto, proto.calls)), tuple(pieces))


def finished_from_proto(proto: speech_pb2.GenerateFinished) -> Finished:
    """Convert the last event. Raises `DataLoss` if the finish reason is unknown."""
    reason = finish_reason_from_proto(proto.finish_reason)
    if reason is None:
        raise DataLoss(f"the server sent an unknown finish reason ({proto.finish_reason})")
    return Finished(
        finish_reason=reason,
        usage=usage_from_proto(proto.usage),
        reports={role: _report_from_proto(report) for role, report in proto.reports.items()},
    )


def usage_from_proto(usage: usage_pb2.Usage) -> Usage:
    """Convert a usage message."""
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
