"""The parts of OpenAI's messages for `/v1/audio/speech` that this gateway reads or writes.

Extensions are the sampling fields, `options`, `delivery`, `chunk_policy`, and a field for each
additional sampling stage, named after the stage's role. They are followed by fields that other
servers use.
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
    """A request. `input` is the text to speak, and `instructions` describes how to speak it."""

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
    # Fields of vllm-omni and other servers. Each is a model option under a different name.
    language: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    non_streaming_mode: bool | None = None
    # This field has no effect, because a file is always sent as it is generated.
    stream: bool | None = None
    user: Label | None = None


class SpeechUsage(msgspec.Struct, frozen=True):
    """The usage, in text tokens and codec frames."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    """A piece of audio in base64."""

    audio: str


class SpeechDone(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    """The end of the audio."""

    usage: SpeechUsage
