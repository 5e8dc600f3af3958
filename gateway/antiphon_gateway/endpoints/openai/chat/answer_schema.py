"""The parts of OpenAI's chat completions and stream chunks that this gateway writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class AudioAnswer(msgspec.Struct, frozen=True):
    """The field `message.audio`, or a piece of it in `delta.audio`."""

    id: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class DataUrl(msgspec.Struct, frozen=True):
    """A complete file."""

    url: str


class ImageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An image, in the form that extensions of OpenAI's chat API commonly use."""

    type: str = "image_url"
    image_url: DataUrl


class AnswerFunction(msgspec.Struct, frozen=True):
    """A function that the answer calls. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function call."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of the arguments. The first piece also contains the name."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a function call. `index` is the position of the call in the answer.

    The first piece contains the ID, the type and the name. The call is only valid if the stream
    ends without an error.
    """

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
    """An alternative token. `bytes` is null if it has no bytes."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ContentLogprob(TopLogprob, frozen=True, kw_only=True):
    """A token in the answer's text and the most likely tokens at its position."""

    top_logprobs: tuple[TopLogprob, ...]


class Logprobs(msgspec.Struct, frozen=True):
    """The log probabilities of the tokens in the same message's text."""

    content: Sequence[ContentLogprob | msgspec.Raw]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of the answer. It contains `message` in a complete response and `delta` in a
    stream.
    """

    index: int = 0
    message: AnswerMessage | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """Details of the prompt tokens."""

    audio_tokens: int
    image_tokens: int
    text_tokens: int
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Details of the completion tokens. A codec frame counts as one audio token."""

    audio_tokens: int
    text_tokens: int
    reasoning_tokens: int = 0
    image_tokens: int | UnsetType = UNSET


class UsageAnswer(msgspec.Struct, frozen=True):
    """The request's usage."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class StepsAnswer(msgspec.Struct, frozen=True):
    """The progress of a stage, which has completed `done` of `due` steps."""

    stage: str
    done: int
    due: int


class ChunkExtension(msgspec.Struct, frozen=True):
    """Fields of a chunk that extend OpenAI's API."""

    progress: StepsAnswer


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response, or one chunk of a stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: UsageAnswer | UnsetType | None = UNSET
    antiphon: ChunkExtension | UnsetType = UNSET
