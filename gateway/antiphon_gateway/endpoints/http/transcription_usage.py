"""The usage of a transcript in OpenAI's format."""

from __future__ import annotations

import msgspec

from antiphon.values.answer import Usage


class InputTokenDetails(msgspec.Struct, frozen=True):
    """Details of the input tokens."""

    audio_tokens: int
    text_tokens: int


def _kind(name: str) -> str:
    return name.removesuffix("Usage").lower()


class TokensUsage(msgspec.Struct, frozen=True, tag_field="type", tag=_kind):
    """The usage in tokens."""

    input_tokens: int
    input_token_details: InputTokenDetails
    output_tokens: int
    total_tokens: int


class DurationUsage(msgspec.Struct, frozen=True, tag_field="type", tag=_kind):
    """The usage as the length of the recording in seconds."""

    seconds: float


def transcription_usage(usage: Usage) -> TokensUsage:
    """Return the numbers of input and output tokens."""
    read, heard = usage.prompt_tokens, usage.prompt_audio_tokens
    return TokensUsage(
        input_tokens=read,
        input_token_details=InputTokenDetails(audio_tokens=heard, text_tokens=read - heard),
        output_tokens=usage.completion_tokens,
        total_tokens=read + usage.completion_tokens,
    )
