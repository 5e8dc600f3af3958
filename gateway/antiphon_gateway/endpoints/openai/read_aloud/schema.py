"""OpenAI's messages of `/v1/audio/speech`, as far as they are read or written here.

The sampling fields, those of further stages under their roles, `options`, `delivery` and
`chunk_policy` are additions; so are the fields after them, which other servers have.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon_gateway.endpoints.http.stage_sampling import StageSampling
from antiphon_gateway.endpoints.http.voice import VoiceId
from antiphon_gateway.endpoints.openai.chunk_policy import ChunkPolicyOptions
from antiphon_gateway.endpoints.openai.label import Label

DEFAULT_FORMAT = "mp3"


class SpeechBody(StageSampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `input` is what is spoken, `instructions` say how."""

    model: str
    input: str
    voice: str | VoiceId = ""
    instructions: str | None = None
    response_format: str = DEFAULT_FORMAT
    stream_format: Literal["audio", "sse"] = "audio"
    speed: float = 1.0
    options: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    delivery: Literal["stream", "whole"] | None = None
    chunk_policy: ChunkPolicyOptions | None = None
    # Of vllm-omni and others, each an option of the model under another name.
    language: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    non_streaming_mode: bool | None = None
    # Without effect: a file is sent as it is made, whatever `stream` says.
    stream: bool | None = None
    user: Label | None = None


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
