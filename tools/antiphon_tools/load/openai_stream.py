"""Parses the events of a streamed chat completion."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from antiphon.errors import (
    ERROR_BY_CODE,
    AntiphonError,
    DataLoss,
    ErrorCode,
    Internal,
    Unauthenticated,
)

DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """The content of an event: new text, bytes of 16-bit audio, a number of images, or the end."""

    text: str = ""
    pcm16_bytes: int = 0
    images: int = 0
    done: bool = False


class _Audio(msgspec.Struct, frozen=True):
    data: str = ""
    transcript: str = ""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    audio: _Audio = _Audio()
    images: tuple[msgspec.Raw, ...] = ()


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None
    param: str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Event)


def read_event(data: bytes) -> ChatPiece | AntiphonError:
    """Parse a server-sent event. Raises `DataLoss` if it is not valid."""
    if data == DONE:
        return ChatPiece(done=True)
    try:
        event = _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DataLoss(f"received an invalid event: {error}") from error
    if event.error is not None:
        return _typed(event.error)
    deltas = [choice.delta for choice in event.choices]
    return ChatPiece(
        text="".join((delta.content or "") + delta.audio.transcript for delta in deltas),
        pcm16_bytes=sum(_decoded_bytes(delta.audio.data) for delta in deltas),
        images=sum(len(delta.images) for delta in deltas),
    )


def error_of(status: int, body: bytes) -> AntiphonError:
    """Return the typed error of a response whose status is not 200."""
    try:
        event = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        event = _Event()
    if event.error is None:
        return Internal(f"HTTP status {status}")
    if status == HTTPStatus.UNAUTHORIZED:
        # The code is one of OpenAI's.
        return Unauthenticated(f"{event.error.message}; set --api-key")
    return _typed(event.error)


def _typed(error: _Error) -> AntiphonError:
    known = {code.value: kind for code, kind in ERROR_BY_CODE.items()}
    kind = known.get(error.code or ErrorCode.INTERNAL.value, Internal)
    return kind(error.message, field=error.param or "")


def _decoded_bytes(base64: str) -> int:
    """Return the number of bytes that a base64 text encodes."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")
