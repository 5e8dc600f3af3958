"""One choice in a chat answer, either complete or as streamed chunks."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.values.conversation import ToolCall
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon_gateway.endpoints.http.server_sent import server_sent
from antiphon_gateway.endpoints.openai.audio import AnswerEvent, AudioEncoded
from antiphon_gateway.endpoints.openai.chat.answer_schema import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    AudioAnswer,
    Choice,
    ChunkExtension,
    Completion,
    ContentLogprob,
    DataUrl,
    Delta,
    FunctionDelta,
    ImageAnswer,
    Logprobs,
    StepsAnswer,
    ToolCallDelta,
    TopLogprob,
    UsageAnswer,
)
from antiphon_gateway.endpoints.openai.logprobs import finite
from antiphon_gateway.endpoints.openai.spoken import SpokenAnswers
from antiphon_gateway.media.audio_out import Base64Stream, to_base64
from antiphon_gateway.media.encoding import AudioEncoding
from antiphon_gateway.sessions.events import (
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    StepsAdvanced,
    TextProduced,
    ToolCallPiece,
    ToolCallsProduced,
)

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
}


def _reason(finished: SegmentFinished, *, called: bool) -> str:
    """Return the finish reason. If the answer ended normally and calls functions, the reason tells
    the client to send their results.
    """
    called = called and finished.finish_reason is FinishReason.STOP
    return "tool_calls" if called else _REASONS[finished.finish_reason]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Data that is the same in all parts of an answer. `created` is a Unix time in seconds.

    If no audio was requested, `audio_id` is empty. Each choice has its own ID. The transcript is
    stored in `spoken`, which determines when it expires.
    """

    id: str
    created: int
    audio_id: str
    encoding: AudioEncoding | None
    include_usage: bool
    logprobs: bool
    spoken: SpokenAnswers
    choices: int = 1

    def audio_id_of(self, choice: int) -> str:
        """Return the audio ID of a choice."""
        return f"{self.audio_id}_{choice}" if self.audio_id and choice else self.audio_id

    def chunk(
        self,
        model: str,
        choices: tuple[Choice, ...],
        usage: UsageAnswer | None = None,
        antiphon: ChunkExtension | UnsetType = UNSET,
    ) -> bytes:
        """Return one chunk of a stream."""
        chunk = Completion(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=model,
            choices=choices,
            usage=usage if self.include_usage else UNSET,
            antiphon=antiphon,
        )
        return server_sent(msgspec.json.encode(chunk))


class WholeChoice:
    """Collects the events of a segment."""

    def __init__(self, head: AnswerHead, index: int) -> None:
        self._head = head
        self._audio_id = head.audio_id_of(index)
        self._text: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self._audio: list[bytes] = []
        self._images: list[ImageAnswer] = []
        self._calls: list[AnswerToolCall] = []
        self.choice = Choice(index=index)

    def add(self, event: AnswerEvent) -> bytes:
        """Add an event. Nothing is sent yet."""
        match event:
            case TextProduced():
                self._text.append(event.text)
                # Encode log probabilities as they arrive. Encoding all of them at the end would
                # block the event loop.
                for each in map(_content_logprob, event.logprobs):
                    self._logprobs.append(msgspec.Raw(msgspec.json.encode(each)))
            case AudioEncoded():
                self._audio.append(event.data)
            case ImageProduced():
                self._images += _images(event)
            case ToolCallsProduced():
                self._calls += map(_tool_call, event.calls)
            case SegmentFinished():
                self.choice = Choice(
                    index=self.choice.index,
                    message=self._message(),
                    logprobs=Logprobs(self._logprobs) if self._head.logprobs else None,
                    finish_reason=_reason(event, called=bool(self._calls)),
                )
        return b""

    def _message(self) -> AnswerMessage:
        text = "".join(self._text)
        images, calls = self._images or UNSET, self._calls or UNSET
        if self._calls and not text:
            return AnswerMessage(content=None, images=images, tool_calls=calls)
        if not self._audio_id:
            return AnswerMessage(content=text, images=images, tool_calls=calls)
        answer = AudioAnswer(
            id=self._audio_id,
            data=to_base64(b"".join(self._audio)),
            expires_at=self._head.spoken.keep(self._audio_id, text),
            transcript=text,
        )
        return AnswerMessage(content=None, audio=answer, images=images, tool_calls=calls)


class StreamedChoice:
    """Converts each event to server-sent events."""

    def __init__(self, head: AnswerHead, index: int) -> None:
        self._head = head
        self._audio_id = head.audio_id_of(index)
        self._index = index
        self._model = ""
        self._base64 = Base64Stream()
        self._transcript: list[str] = []
        self._called = False

    def add(self, event: AnswerEvent) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        match event:
            case SegmentStarted():
                self._model = event.model
                return self._opening()
            case TextProduced():
                return self._text(event)
            case AudioEncoded():
                return self._audio(self._base64.add(event.data))
            case ImageProduced():
                return self._delta(Delta(images=_images(event)))
            case ToolCallsProduced():
                self._called = True
                pieces = [_call_piece(p) for p in event.pieces if p.begins or p.arguments]
                return self._delta(Delta(tool_calls=pieces)) if pieces else b""
            case StepsAdvanced(stage, done, due):
                # The delta is empty, but it is sent because clients expect every chunk to contain a
                # choice, and may access it.
                steps = ChunkExtension(StepsAnswer(stage, done, due))
                empty = Choice(index=self._index, delta=Delta())
                return self._head.chunk(self._model, (empty,), antiphon=steps)
            case SegmentFinished():
                return self._closing(event)
        return b""

    def _opening(self) -> bytes:
        if not self._audio_id:
            return self._delta(Delta(role="assistant", content=""))
        audio = AudioAnswer(id=self._audio_id, transcript="")
        return self._delta(Delta(role="assistant", audio=audio))

    def _text(self, event: TextProduced) -> bytes:
        """Return the text, with the log probabilities of the tokens that begin in it. Log
        probabilities are never sent on their own.
        """
        if not event.text:
            return b""
        delta = Delta(content=event.text)
        if self._audio_id:
            self._transcript.append(event.text)
            delta = Delta(audio=AudioAnswer(transcript=event.text))
        if not event.logprobs:
            return self._delta(delta)
        return self._delta(delta, logprobs=Logprobs([*map(_content_logprob, event.logprobs)]))

    def _audio(self, data: str) -> bytes:
        return self._delta(Delta(audio=AudioAnswer(data=data))) if data else b""

    def _closing(self, finished: SegmentFinished) -> bytes:
        """Return the remaining audio, the finish reason, and the expiry time of the audio."""
        parts = [self._audio(self._base64.flush())]
        parts.append(self._delta(Delta(), _reason(finished, called=self._called)))
        if self._audio_id:
            said = "".join(self._transcript)
            expires_at = self._head.spoken.keep(self._audio_id, said)
            parts.append(self._delta(Delta(audio=AudioAnswer(expires_at=expires_at))))
        return b"".join(parts)

    def _delta(
        self, delta: Delta, finish_reason: str | None = None, logprobs: Logprobs | None = None
    ) -> bytes:
        choice = Choice(
            index=self._index, delta=delta, logprobs=logprobs, finish_reason=finish_reason
        )
        return self._head.chunk(self._model, (choice,))


def _content_logprob(token: TokenLogprob) -> ContentLogprob:
    own = _top_logprob(token)
    top = tuple(map(_top_logprob, token.top))
    return ContentLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)


def _top_logprob(token: TokenLogprob) -> TopLogprob:
    return TopLogprob(
        token=token.token,
        logprob=finite(token.logprob),
        bytes=tuple(token.token_bytes) or None,
    )


def _tool_call(call: ToolCall) -> AnswerToolCall:
    return AnswerToolCall(id=call.id, function=AnswerFunction(call.name, call.arguments))


def _call_piece(piece: ToolCallPiece) -> ToolCallDelta:
    if not piece.begins:
        return ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.arguments))
    function = FunctionDelta(name=piece.name, arguments=piece.arguments)
    return ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)


def _images(event: ImageProduced) -> list[ImageAnswer]:
    urls = (f"data:{each.media_type};base64,{to_base64(each.file)}" for each in event.images)
    return [ImageAnswer(image_url=DataUrl(url)) for url in urls]
