"""What a client sends: messages, options, and the request made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

from antiphon.errors import InvalidArgument
from antiphon.sampling import SamplingRequest
from antiphon.segment import ChunkPolicy, Delivery
from antiphon.v1 import session_pb2, speech_pb2
from antiphon.wire.convert import delivery_to_proto, policy_to_proto, sampling_to_proto

Role = Literal["system", "user", "assistant"]
Modality = Literal["text", "audio"]

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message: the bytes of a PNG, JPEG or WebP file, or where one lies."""

    file: bytes | Path


@dataclass(frozen=True, slots=True)
class Video:
    """A moving picture in a message: the bytes of an MP4 file, or where one lies."""

    file: bytes | Path


Part = str | bytes | Path | Image | Video
"""A `str` is text; `bytes` are a WAV file; a `Path` is where a WAV file lies."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation: who says it, and its parts in order.

    >>> Message.user("What is said here?", Path("question.wav"))
    >>> Message.user(Image(Path("cat.jpg")), "What is this?")
    """

    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def system(cls, *parts: Part) -> Message:
        """What the model is told about itself."""
        return cls("system", parts)

    @classmethod
    def user(cls, *parts: Part) -> Message:
        """What the user says."""
        return cls("user", parts)

    @classmethod
    def assistant(cls, *parts: Part) -> Message:
        """What the model said before."""
        return cls("assistant", parts)


class GenerateOptions(TypedDict, total=False):
    """The options of `generate`; what is left out takes the server's default.

    `model` may be left out when the server has one. `modalities` is what to
    answer with, both by default. `temperature` (0: greedy), `top_p`,
    `max_tokens`, `stop` and `seed` shape the text; `talker` is the same for
    speech, in codec frames, and takes `seed` when it has none of its own.
    `delivery` and `chunk_policy` say how output is cut. `include_ids` adds token
    ids, codec frames and float samples to the events. `top_logprobs` (0 to 20) adds how
    likely each token of the text was, and so many of the likeliest in its place.
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
    talker: SamplingRequest | None
    delivery: Delivery | None
    chunk_policy: ChunkPolicy | None
    include_ids: bool


def generate_request(
    messages: str | Sequence[Message],
    *,
    model: str = "",
    modalities: Sequence[Modality] = ("text", "audio"),
    voice: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    top_logprobs: int | None = None,
    talker: SamplingRequest | None = None,
    delivery: Delivery | None = None,
    chunk_policy: ChunkPolicy | None = None,
    include_ids: bool = False,
) -> speech_pb2.GenerateRequest:
    """The message of a `Generate` call; a `str` is one user message.

    Raises `InvalidArgument` for a value out of range or a file that cannot be read.
    """
    conversation = [Message.user(messages)] if isinstance(messages, str) else messages
    thinker = SamplingRequest(
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=_stop_strings(stop),
        seed=seed,
        top_logprobs=top_logprobs,
    )
    return speech_pb2.GenerateRequest(
        model=model,
        messages=[_message_to_proto(index, each) for index, each in enumerate(conversation)],
        modalities=modalities,
        voice=voice,
        sampling=_sampling_by_role(thinker, talker or SamplingRequest()),
        delivery=delivery_to_proto(delivery) if delivery else session_pb2.DELIVERY_UNSPECIFIED,
        chunk_policy=policy_to_proto(chunk_policy) if chunk_policy else None,
        include_ids=include_ids,
    )


def _sampling_by_role(
    thinker: SamplingRequest, talker: SamplingRequest
) -> dict[str, session_pb2.Sampling]:
    """The entries that say something; one seed keys both stages unless the talker has its own."""
    if talker.seed is None:
        talker = replace(talker, seed=thinker.seed)
    stages = {"thinker": thinker, "talker": talker}
    return {
        role: sampling_to_proto(request)
        for role, request in stages.items()
        if request != SamplingRequest()
    }


def _stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings; one `str` is one of them, not its letters."""
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _message_to_proto(index: int, message: Message) -> speech_pb2.Message:
    parts = [
        _part_to_proto(f"messages[{index}].parts[{number}]", part)
        for number, part in enumerate(message.parts)
    ]
    return speech_pb2.Message(role=message.role, parts=parts)


def _part_to_proto(field: str, part: Part) -> speech_pb2.Part:
    match part:
        case str():
            return speech_pb2.Part(text=part)
        case bytes():
            return speech_pb2.Part(audio=speech_pb2.AudioPart(wav=part))
        case Path():
            return speech_pb2.Part(audio=speech_pb2.AudioPart(wav=_read(field, part)))
        case Image(file):
            return speech_pb2.Part(image=speech_pb2.ImagePart(file=_read(field, file)))
        case Video(file):
            return speech_pb2.Part(video=speech_pb2.VideoPart(file=_read(field, file)))


def _read(field: str, file: bytes | Path) -> bytes:
    if isinstance(file, bytes):
        return file
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{field}: {file}: {error.strerror}", field=field) from error
