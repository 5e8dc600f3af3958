"""OpenAI's messages of `/v1/audio/transcriptions`, as far as they are read or written here."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.doors.http.form_body import FormFile

Language = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z][A-Za-z -]*$")]


class TranscriptionForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `language` is that of the recording, `prompt` what else is known of it.

    The fields after `stream` are OpenAI's for what no model says here: they are refused.
    """

    file: FormFile
    model: str
    language: Language | None = None
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool | None = None
    include: tuple[str, ...] = msgspec.field(default=(), name="include[]")
    timestamp_granularities: tuple[str, ...] = msgspec.field(
        default=(), name="timestamp_granularities[]"
    )
    chunking_strategy: str | None = None
    keywords: tuple[str, ...] = msgspec.field(default=(), name="keywords[]")
    languages: tuple[str, ...] = msgspec.field(default=(), name="languages[]")
    known_speaker_names: tuple[str, ...] = msgspec.field(default=(), name="known_speaker_names[]")
    known_speaker_references: tuple[str, ...] = msgspec.field(
        default=(), name="known_speaker_references[]"
    )


class InputTokenDetails(msgspec.Struct, frozen=True):
    """Of the tokens that were read."""

    audio_tokens: int
    text_tokens: int


def _kind(name: str) -> str:
    return name.removesuffix("Usage").lower()


class TokensUsage(msgspec.Struct, frozen=True, tag_field="type", tag=_kind):
    """What it cost, in tokens."""

    input_tokens: int
    input_token_details: InputTokenDetails
    output_tokens: int
    total_tokens: int


class DurationUsage(msgspec.Struct, frozen=True, tag_field="type", tag=_kind):
    """What it cost, as seconds of the recording."""

    seconds: float


class Transcription(msgspec.Struct, frozen=True):
    """The text. What follows it comes with `verbose_json`; `language` is what the client said.

    The model tells no times, so there are neither segments nor words.
    """

    text: str
    usage: TokensUsage | DurationUsage
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET


class TranscriptionDelta(
    msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.delta"
):
    """A piece of the text."""

    delta: str


class TranscriptionDone(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    """The end, with the whole text."""

    text: str
    usage: TokensUsage
