"""Events of a segment to OpenAI's chat responses: whole, or as the chunks of a stream."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from antiphon.errors import AntiphonError
from antiphon.logprobs import TokenLogprob
from antiphon.segment import FinishReason
from gateway.calls.events import (
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    SegmentUsage,
    TextProduced,
)
from gateway.doors.chat.schema import (
    AnswerMessage,
    AudioAnswer,
    Choice,
    Completion,
    CompletionDetails,
    ContentLogprob,
    DataUrl,
    Delta,
    ImageAnswer,
    Logprobs,
    PromptDetails,
    TopLogprob,
    UsageAnswer,
)
from gateway.doors.http.audio import AnswerEvent, AudioEncoded
from gateway.doors.http.errors import error_json
from gateway.doors.http.server_sent import server_sent
from gateway.doors.http.spoken import SpokenAnswers
from gateway.media.audio_out import Base64Stream, to_base64
from gateway.media.encoding import AudioEncoding

DONE = b"data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
}


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of an answer share. `created` is a Unix time in seconds.

    `audio_id` is empty when no audio is wanted. What was said is kept in `spoken`, which knows
    when it expires.
    """

    id: str
    created: int
    audio_id: str
    encoding: AudioEncoding | None
    include_usage: bool
    logprobs: bool
    spoken: SpokenAnswers


class WholeAnswer:
    """Collects the events of a segment into one response."""

    streamed = False
    content_type = "application/json"

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self.encoding = head.encoding
        self._text: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self._audio: list[bytes] = []
        self._images: list[ImageAnswer] = []
        self._model = ""
        self._choice = Choice()
        self._usage: UsageAnswer | None = None

    def add(self, event: AnswerEvent) -> bytes:
        """Take an event; the last one makes the response."""
        match event:
            case SegmentStarted():
                self._model = event.model
            case TextProduced():
                self._text.append(event.text)
                # Written at once: all together would keep the event loop from others.
                for each in map(_content_logprob, event.logprobs):
                    self._logprobs.append(msgspec.Raw(msgspec.json.encode(each)))
            case AudioEncoded():
                self._audio.append(event.data)
            case ImageProduced():
                self._images += _images(event)
            case SegmentFinished():
                self._usage = _usage(event.usage)
                self._choice = Choice(
                    message=self._message(),
                    logprobs=Logprobs(self._logprobs) if self._head.logprobs else None,
                    finish_reason=_REASONS[event.finish_reason],
                )
                return self._body()
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """Never asked for: nothing is sent before the whole is there."""
        return error_json(error)

    def _body(self) -> bytes:
        completion = Completion(
            id=self._head.id,
            object="chat.completion",
            created=self._head.created,
            model=self._model,
            choices=(self._choice,),
            usage=self._usage,
        )
        return msgspec.json.encode(completion)

    def _message(self) -> AnswerMessage:
        text = "".join(self._text)
        if not self._head.audio_id:
            return AnswerMessage(content=text, images=self._images or UNSET)
        answer = AudioAnswer(
            id=self._head.audio_id,
            data=to_base64(b"".join(self._audio)),
            expires_at=self._head.spoken.keep(self._head.audio_id, text),
            transcript=text,
        )
        return AnswerMessage(content=None, audio=answer, images=self._images or UNSET)


class StreamAnswer:
    """Turns each event into server-sent events."""

    streamed = True
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self.encoding = head.encoding
        self._model = ""
        self._base64 = Base64Stream()
        self._transcript: list[str] = []

    def add(self, event: AnswerEvent) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
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
            case SegmentFinished():
                return self._closing(event)
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """The last event of an answer that fails."""
        return server_sent(error_json(error))

    def _opening(self) -> bytes:
        if not self._head.audio_id:
            return self._delta(Delta(role="assistant", content=""))
        audio = AudioAnswer(id=self._head.audio_id, transcript="")
        return self._delta(Delta(role="assistant", audio=audio))

    def _text(self, event: TextProduced) -> bytes:
        """The text, with log probabilities if tokens begin in it; those never come alone."""
        if not event.text:
            return b""
        delta = Delta(content=event.text)
        if self._head.audio_id:
            self._transcript.append(event.text)
            delta = Delta(audio=AudioAnswer(transcript=event.text))
        if not event.logprobs:
            return self._delta(delta)
        return self._delta(delta, logprobs=Logprobs([*map(_content_logprob, event.logprobs)]))

    def _audio(self, data: str) -> bytes:
        return self._delta(Delta(audio=AudioAnswer(data=data))) if data else b""

    def _closing(self, finished: SegmentFinished) -> bytes:
        """The rest of the audio, why it ended, when the audio expires, the usage, the end."""
        parts = [self._audio(self._base64.flush())]
        parts.append(self._delta(Delta(), _REASONS[finished.finish_reason]))
        if self._head.audio_id:
            said = "".join(self._transcript)
            expires_at = self._head.spoken.keep(self._head.audio_id, said)
            parts.append(self._delta(Delta(audio=AudioAnswer(expires_at=expires_at))))
        if self._head.include_usage:
            parts.append(self._chunk((), _usage(finished.usage)))
        return b"".join((*parts, DONE))

    def _delta(
        self, delta: Delta, finish_reason: str | None = None, logprobs: Logprobs | None = None
    ) -> bytes:
        choice = Choice(delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return self._chunk((choice,), None)

    def _chunk(self, choices: tuple[Choice, ...], usage: UsageAnswer | None) -> bytes:
        chunk = Completion(
            id=self._head.id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._model,
            choices=choices,
            usage=usage if self._head.include_usage else UNSET,
        )
        return server_sent(msgspec.json.encode(chunk))


def _content_logprob(token: TokenLogprob) -> ContentLogprob:
    own = _top_logprob(token)
    top = tuple(map(_top_logprob, token.top))
    return ContentLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)


def _top_logprob(token: TokenLogprob) -> TopLogprob:
    """JSON has no infinity: what cannot come gets OpenAI's number for it."""
    return TopLogprob(
        token=token.token,
        logprob=max(token.logprob, LEAST_LOGPROB),
        bytes=tuple(token.token_bytes) or None,
    )


def _images(event: ImageProduced) -> list[ImageAnswer]:
    urls = (f"data:{each.media_type};base64,{to_base64(each.file)}" for each in event.images)
    return [ImageAnswer(image_url=DataUrl(url)) for url in urls]


def _usage(usage: SegmentUsage) -> UsageAnswer:
    images = usage.completion_image_tokens
    completion_tokens = usage.completion_tokens + usage.completion_audio_frames + images
    return UsageAnswer(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=usage.prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptDetails(
            audio_tokens=usage.prompt_audio_tokens,
            image_tokens=usage.prompt_image_tokens,
            text_tokens=(
                usage.prompt_tokens - usage.prompt_audio_tokens - usage.prompt_image_tokens
            ),
            cached_tokens=usage.prompt_cached_tokens,
        ),
        completion_tokens_details=CompletionDetails(
            audio_tokens=usage.completion_audio_frames,
            text_tokens=usage.completion_tokens,
            image_tokens=images or UNSET,
        ),
    )
