"""OpenAI's chat completions and the chunks of streamed ones, as far as they are written here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class AudioAnswer(msgspec.Struct, frozen=True):
    """`message.audio`, or a piece of it in `delta.audio`."""

    id: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class DataUrl(msgspec.Struct, frozen=True):
    """A whole file."""

    url: str


class ImageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An image, in the form that others who extend OpenAI's chat give it."""

    type: str = "image_url"
    image_url: DataUrl


class AnswerFunction(msgspec.Struct, frozen=True):
    """A function that the answer calls. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the arguments; the name comes with the first of them."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call, which `index` says the number of in the answer. The first has the id, the
    type and the name. It is a call if the stream ends without an error."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    audio: AudioAnswer | UnsetType = UNSET
    images: Sequence[ImageAnswer] | UnsetType = UNSET
    tool_calls: Sequence[AnswerToolCall] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the assistant's message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    audio: AudioAnswer | UnsetType = UNSET
    images: Sequence[ImageAnswer] | UnsetType = UNSET
    tool_calls: Sequence[ToolCallDelta] | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might have come. `bytes` is null for one that has none."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ContentLogprob(TopLogprob, frozen=True, kw_only=True):
    """A token of the answer's text, and the likeliest ones in its place."""

    top_logprobs: tuple[TopLogprob, ...]


class Logprobs(msgspec.Struct, frozen=True):
    """How likely the tokens were of the text that comes with it."""

    content: Sequence[ContentLogprob | msgspec.Raw]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer; `message` in a whole response, `delta` in a stream."""

    index: int = 0
    message: AnswerMessage | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens."""

    audio_tokens: int
    image_tokens: int
    text_tokens: int
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the completion tokens; an audio token is a codec frame."""

    audio_tokens: int
    text_tokens: int
    reasoning_tokens: int = 0
    image_tokens: int | UnsetType = UNSET


class UsageAnswer(msgspec.Struct, frozen=True):
    """What the request cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class StepsAnswer(msgspec.Struct, frozen=True):
    """Steps of a stage's generation: `done` of `due`."""

    stage: str
    done: int
    due: int


class ChunkExtension(msgspec.Struct, frozen=True):
    """What a chunk has beyond OpenAI's fields."""

    progress: StepsAnswer


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response, or one chunk of a stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: UsageAnswer | UnsetType | None = UNSET
    antiphon: ChunkExtension | UnsetType = UNSET
