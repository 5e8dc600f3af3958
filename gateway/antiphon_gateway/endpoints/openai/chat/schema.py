"""The parts of OpenAI's chat completion request that this gateway reads.

A request may contain any field that OpenAI or vLLM defines. request.py determines which values are
supported, and fields.py determines how other fields are treated. The extensions are `options`,
`delivery`, `chunk_policy`, and a field for each additional sampling stage, named after the stage's
role.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon.values.template import TemplateValue
from antiphon_gateway.endpoints.http.voice import VoiceId
from antiphon_gateway.endpoints.openai.chunk_policy import ChunkPolicyOptions
from antiphon_gateway.endpoints.openai.label import Label

# The type of fields that are accepted but have no effect. A text of limited length. The limit is at
# least as high as OpenAI's.
MetadataKey = Annotated[str, Meta(max_length=64)]
Metadata = Annotated[dict[MetadataKey, Label], Meta(max_length=16)]


class ChatTextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A piece of text, which may be empty."""

    text: str | None


class InputAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording, given in base64, as a data URL, or as a URL. If `format` is missing, the format
    is determined from the content.
    """

    data: str
    format: str | None = None


class ChatAudioPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="input_audio"):
    """A recording."""

    input_audio: InputAudio


class ImageUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The location of an image. OpenAI's `detail` has no effect, because images are always used at
    their actual size.
    """

    url: str
    detail: Literal["auto", "high", "low", "original"] | None = None


class ChatImagePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image_url"):
    """An image."""

    image_url: ImageUrl


class VideoUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The location of a video."""

    url: str


class ChatVideoPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="video_url"):
    """A video. This extension of OpenAI's API is supported by other servers as well."""

    video_url: VideoUrl


class AudioUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The location of a recording."""

    url: str


class ChatAudioUrlPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="audio_url"):
    """A recording. This extension of OpenAI's API is supported by other servers as well."""

    audio_url: AudioUrl


class FilePart(msgspec.Struct, frozen=True, tag="file"):
    """A known part that is not supported yet."""


class RefusalPart(msgspec.Struct, frozen=True, tag="refusal"):
    """A known part that is not supported yet."""


Part = (
    ChatTextPart
    | ChatAudioPart
    | ChatImagePart
    | ChatVideoPart
    | ChatAudioUrlPart
    | FilePart
    | RefusalPart
)


class AssistantAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A spoken answer that the client sends back. `data` and `expires_at` have no effect."""

    id: str | None = None
    transcript: str | None = None
    expires_at: int | None = None
    data: str | None = None


class AssistantImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A generated image that the client sends back. It has no effect, because it is not passed to
    the model.
    """

    image_url: ImageUrl
    type: Literal["image_url"] = "image_url"
    index: int | None = None


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that was called. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ChatToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function call from an earlier answer. `index`, which is part of streams, has no effect."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message. `name` and `annotations` have no effect."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[Part, ...] | None = None
    name: Label | None = None
    audio: AssistantAudio | None = None
    images: tuple[AssistantImage, ...] | None = None
    refusal: Any = None
    annotations: tuple[Any, ...] | None = None
    tool_calls: tuple[ChatToolCall, ...] | None = None
    tool_call_id: str | None = None
    function_call: Any = None


class ChatTool(msgspec.Struct, frozen=True):
    """A function that the model may call. Its JSON is kept unchanged."""

    function: dict[str, Any]
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function, identified by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that must be called."""

    function: NamedFunction
    type: Literal["function"]


class AudioOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The format of the audio that the client requests."""

    format: str
    voice: str | VoiceId = ""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options for a stream. `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These options have no effect, because each stage decides which prefixes to cache."""

    mode: Label | None = None
    ttl: Label | None = None


class TextForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Any text."""


class ObjectForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_object"):
    """A JSON object."""


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A JSON schema. If it is missing, any object is valid. The text always conforms to the schema,
    so `strict` has no effect. `name` and `description` have no effect, either.
    """

    name: Label
    schema: dict[str, msgspec.Raw] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    """A value that conforms to a JSON schema."""

    json_schema: NamedSchema


ResponseForm = TextForm | ObjectForm | SchemaForm


class ChatRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: tuple[ChatMessage, ...]
    modalities: tuple[str, ...] | None = None
    audio: AudioOutput | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | tuple[str, ...] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseForm | None = None
    # These fields extend OpenAI's API. The first three are vLLM's.
    top_k: int | None = None
    repetition_penalty: float | None = None
    chat_template_kwargs: dict[str, TemplateValue] | None = None
    options: dict[str, msgspec.Raw] = {}
    delivery: Literal["stream", "whole"] | None = None
    chunk_policy: ChunkPolicyOptions | None = None
    tools: tuple[ChatTool, ...] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    # Only values without effect are accepted (see request.UNSUPPORTED).
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    functions: Any = None
    function_call: Any = None
    prediction: Any = None
    web_search_options: Any = None
    moderation: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    service_tier: Any = None
    store: Any = None
    use_audio_in_video: Any = None
    mm_processor_kwargs: Any = None
    # These fields are accepted but have no effect. The README lists them.
    user: Label | None = None
    metadata: Metadata | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Label | None = None
    safety_identifier: Label | None = None
