"""OpenAI's messages of `/v1/audio/speech`, as far as they are read or written here.

The sampling fields, those of further stages under their roles, `options`, `delivery` and
`chunk_policy` are additions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.doors.http.chunk_policy import ChunkPolicyOptions
from gateway.doors.http.stage_sampling import StageSampling
from gateway.doors.http.voice import VoiceId


class SpeechBody(StageSampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `input` is what is spoken, `instructions` say how."""

    model: str
    input: str
    voice: str | VoiceId = ""
    instructions: str | None = None
    response_format: str = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    speed: float = 1.0
    options: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    delivery: Literal["stream", "whole"] | None = None
    chunk_policy: ChunkPolicyOptions | None = None


class SpeechUsage(msgspec.Struct, frozen=True):
    """What it cost: tokens of the text, and codec frames."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    """A piece of audio as base64."""

    audio: str


class SpeechDone(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    """The end."""

    usage: SpeechUsage
