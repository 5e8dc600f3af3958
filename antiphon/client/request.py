"""Defines the messages and options of the SDK's requests and converts them to proto messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal, TypedDict

from antiphon.client.checks import file_bytes, listed, named, of_type, unicode_text, wrong_type
from antiphon.client.tools import (
    Function,
    FunctionChoice,
    call_to_proto,
    choice_to_proto,
    functions_to_proto,
)
from antiphon.v1 import options_pb2, session_pb2, speech_pb2
from antiphon.values.answer import FunctionCall
from antiphon.values.brief import brief
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon.values.template import FIELD, TemplateValue, check_template_variables
from antiphon.wire.convert import (
    checked_policy,
    delivery_to_proto,
    policy_to_proto,
    sampling_to_proto,
)

OptionInput = str | float | bytes | PathLike[str]
Role = Literal["system", "user", "assistant", "tool"]
Modality = Literal["text", "image", "audio"]

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message. It is a PNG, JPEG or WebP file, given as bytes or as a path."""

    file: bytes | str | PathLike[str]

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, slots=True)
class Video:
    """A video in a message. It is an MP4 file, given as bytes or as a path."""

    file: bytes | str | PathLike[str]

    def __repr__(self) -> str:
        return brief(self)


Part = str | bytes | PathLike[str] | Image | Video
"""A part of a message. A `str` is text. `bytes` and `Path` objects are WAV files."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a conversation, with a role and a sequence of parts.

    >>> Message.user("What is said here?", Path("question.wav"))
    >>> Message.user(Image("cat.jpg"), "What is this?")
    """

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[FunctionCall, ...] = ()
    call_id: str = ""

    def __repr__(self) -> str:
        return brief(self)

    @classmethod
    def system(cls, *parts: Part) -> Message:
        """Return a system message, which contains instructions for the model."""
        return cls("system", parts)

    @classmethod
    def user(cls, *parts: Part) -> Message:
        """Return a user message."""
        return cls("user", parts)

    @classmethod
    def assistant(cls, *parts: Part, calls: Sequence[FunctionCall] = ()) -> Message:
        """Return an earlier answer of the model, including the function calls that it made."""
        return cls("assistant", parts, tuple(calls))

    @classmethod
    def tool(cls, call: FunctionCall, *parts: Part) -> Message:
        """Return a message with the result of a function call."""
        return cls("tool", parts, (), call.id)


class GenerateOptions(TypedDict, total=False):
    """The options of `generate`. If you omit an option, the server's default applies.

    `model` is only required if the server offers several models. `modalities` selects the outputs
    and defaults to all outputs that the model supports. `temperature`, `top_p`, `max_tokens`,
    `stop` and `seed` apply to the stage that receives the messages. Set the temperature to 0 for
    greedy decoding. `sampling` configures the other stages, which are listed in
    `ModelInfo.sampling_stages`. A stage without a seed of its own uses `seed`. Stages draw
    independently even if they have the same seed. The key `""` contains additional settings for the
    stage that receives the messages.

    `options` sets model options, which are listed in `ModelInfo.options`. A value can be text, a
    number, or a recording. A recording is given as the file's `bytes` or as a `Path`. `delivery`
    and `chunk_policy` determine how the output is split into chunks. Set `include_ids` to add token
    IDs, codec frames and float samples to the events. Set `top_logprobs` to a number between 0 and
    20 to receive the log probability of each text token, together with the log probabilities of
    that many of the most likely alternatives.

    `functions` lists the functions that the model may call. This requires a model whose
    `ModelInfo.input_kinds` contains "tools". `function_choice` determines whether the model calls a
    function and defaults to "auto". If `parallel_calls` is false, the answer ends after its first
    call. `chat_template_kwargs` sets variables for the model's chat template, if it has one.
    """

    model: str
    modalities: Sequence[Modality]
    voice: str
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: Sequence[str]
    seed: int | None
    top_logprobs: int | None
    sampling: Mapping[str, SamplingRequest] | None
    options: Mapping[str, OptionInput] | None
    delivery: Delivery | None
    chunk_policy: ChunkPolicy | None
    include_ids: bool
    functions: Sequence[Function]
    function_choice: FunctionChoice
    parallel_calls: bool
    chat_template_kwargs: Mapping[str, TemplateValue] | None


def generate_request(
    messages: str | Sequence[Message],
    *,
    model: str = "",
    modalities: Sequence[Modality] = (),
    voice: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    top_logprobs: int | None = None,
    sampling: Mapping[str, SamplingRequest] | None = None,
    options: Mapping[str, OptionInput] | None = None,
    delivery: Delivery | None = None,
    chunk_policy: ChunkPolicy | None = None,
    include_ids: bool = False,
    functions: Sequence[Function] = (),
    function_choice: FunctionChoice = "auto",
    parallel_calls: bool = True,
    chat_template_kwargs: Mapping[str, TemplateValue] | None = None,
) -> speech_pb2.GenerateRequest:
    """Return the message for a `Generate` call. If `messages` is a `str`, it becomes a single user
    message.

    Raises `InvalidArgument` if a value is invalid or a file cannot be read.
    """
    stop_strings = (stop,) if isinstance(stop, str) else listed("stop", stop, str)
    own = SamplingRequest(
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=stop_strings,
        seed=seed,
        top_logprobs=top_logprobs,
    )
    how = None if delivery is None else of_type("delivery", delivery, Delivery)
    return speech_pb2.GenerateRequest(
        model=unicode_text("model", model),
        messages=_messages_to_proto(messages),
        modalities=[
            unicode_text("modalities", each) for each in listed("modalities", modalities, str)
        ],
        voice=unicode_text("voice", voice),
        sampling=_sampling_to_proto(own, sampling),
        options={
            name: option_to_proto(f"options.{name}", value)
            for name, value in named("options", options).items()
        },
        delivery=session_pb2.DELIVERY_UNSPECIFIED if how is None else delivery_to_proto(how),
        chunk_policy=None if chunk_policy is None else _policy_to_proto(chunk_policy),
        include_ids=of_type("include_ids", include_ids, bool),
        functions=functions_to_proto(functions),
        function_choice=choice_to_proto(function_choice, parallel=parallel_calls),
        chat_template_kwargs=_template_to_json(chat_template_kwargs),
    )


def _template_to_json(given: Mapping[str, TemplateValue] | None) -> str:
    """Return the variables as JSON, or an empty string if there are none."""
    variables: dict[str, TemplateValue] = {}
    for name, value in named(FIELD, given).items():
        field = f"{FIELD}.{name}"
        if isinstance(value, str):
            variables[name] = unicode_text(field, value)
        elif value is None or isinstance(value, bool | int | float):
            variables[name] = value
        else:
            raise wrong_type(field, "text, a number, a bool or None", value)
    check_template_variables(variables)
    return json.dumps(variables, ensure_ascii=False) if variables else ""


def _sampling_to_proto(
    own: SamplingRequest, given: Mapping[str, SamplingRequest] | None
) -> dict[str, session_pb2.Sampling]:
    """Return the sampling settings that are not empty. Fields of the request take precedence over
    the mapping.
    """
    by_stage = {
        stage: of_type(f"sampling.{stage}".rstrip("."), request, SamplingRequest)
        for stage, request in named("sampling", given).items()
    }
    reading = by_stage.get(INPUT_STAGE, SamplingRequest())
    by_stage[INPUT_STAGE] = replace(reading, **own.given())
    return {
        stage: sampling_to_proto(request)
        for stage, request in by_stage.items()
        if request != SamplingRequest()
    }


def option_to_proto(field: str, value: object) -> options_pb2.OptionInput:
    """Return the message for an option's value. Raises `InvalidArgument` if the type of the value
    isn't supported.
    """
    match value:
        case str():
            return options_pb2.OptionInput(text=unicode_text(field, value))
        case bytes() | PathLike():
            recording = options_pb2.AudioPart(wav=file_bytes(field, value))
            return options_pb2.OptionInput(audio=recording)
        case int() | float() if not isinstance(value, bool):
            with suppress(OverflowError):
                return options_pb2.OptionInput(number=float(value))
    raise wrong_type(field, "text, a number, or the bytes or the Path of a recording", value)


def _policy_to_proto(policy: ChunkPolicy) -> session_pb2.ChunkPolicy:
    ramp = listed("chunk_policy", of_type("chunk_policy", policy, ChunkPolicy).ramp, int)
    return policy_to_proto(checked_policy(replace(policy, ramp=ramp)))


def _messages_to_proto(messages: str | Sequence[Message]) -> list[speech_pb2.Message]:
    if isinstance(messages, str):
        conversation: tuple[Message, ...] = (Message.user(messages),)
    else:
        conversation = listed("messages", messages, Message)
    return [_message_to_proto(index, each) for index, each in enumerate(conversation)]


def _message_to_proto(index: int, message: Message) -> speech_pb2.Message:
    path = f"messages[{index}]"
    if not isinstance(message.parts, tuple | list):
        raise wrong_type(f"{path}.parts", "a tuple of parts", message.parts)
    parts = [
        _part_to_proto(f"{path}.parts[{number}]", part) for number, part in enumerate(message.parts)
    ]
    called = listed(f"{path}.calls", message.calls, FunctionCall)
    calls = [call_to_proto(f"{path}.calls[{number}]", each) for number, each in enumerate(called)]
    return speech_pb2.Message(
        role=unicode_text(f"{path}.role", message.role),
        parts=parts,
        calls=calls,
        call_id=unicode_text(f"{path}.call_id", message.call_id),
    )


def _part_to_proto(field: str, part: Part) -> speech_pb2.Part:
    match part:
        case str():
            return speech_pb2.Part(text=unicode_text(field, part))
        case bytes() | PathLike():
            return speech_pb2.Part(audio=options_pb2.AudioPart(wav=file_bytes(field, part)))
        case Image(file):
            return speech_pb2.Part(image=speech_pb2.ImagePart(file=file_bytes(field, file)))
        case Video(file):
            return speech_pb2.Part(video=speech_pb2.VideoPart(file=file_bytes(field, file)))
        case _:
            wanted = "text, the bytes or the Path of a recording, an Image or a Video"
            raise wrong_type(field, wanted, part)
