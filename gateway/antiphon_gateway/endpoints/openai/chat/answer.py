"""Converts the events of an order's segments to OpenAI's chat response, either complete or
streamed.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from antiphon.errors import AntiphonError
from antiphon_gateway.endpoints.http.errors import error_json
from antiphon_gateway.endpoints.http.server_sent import CONTENT_TYPE as SERVER_SENT
from antiphon_gateway.endpoints.http.server_sent import server_sent
from antiphon_gateway.endpoints.openai.audio import AnswerEvent
from antiphon_gateway.endpoints.openai.chat.answer_schema import (
    Completion,
    CompletionDetails,
    PromptDetails,
    UsageAnswer,
)
from antiphon_gateway.endpoints.openai.chat.choice import AnswerHead, StreamedChoice, WholeChoice
from antiphon_gateway.sessions.events import SegmentFinished, SegmentStarted, SegmentUsage

DONE = b"data: [DONE]\n\n"


class ChatAnswer:
    """An answer with all of its choices. It ends when its last choice has finished."""

    def __init__(self, head: AnswerHead, *, streamed: bool) -> None:
        self.streamed = streamed
        self.encoding = head.encoding
        self.content_type = SERVER_SENT if streamed else "application/json"
        self._head = head
        kind = StreamedChoice if streamed else WholeChoice
        self._choices = [kind(head, index) for index in range(head.choices)]
        self._left = head.choices
        self._model = ""
        self._usage: SegmentUsage | None = None

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        written = self._choices[choice].add(event)
        match event:
            case SegmentStarted():
                self._model = event.model
            case SegmentFinished():
                known = self._usage
                self._usage = known.with_choice(event.usage) if known else event.usage
                self._left -= 1
                if not self._left:
                    return written + self._end(_usage(self._usage))
        return written

    def fail(self, error: AntiphonError) -> bytes:
        """Return the last event of a stream that fails. Other answers never contain errors, because
        they are sent only once they are complete.
        """
        return server_sent(error_json(error))

    def _end(self, usage: UsageAnswer) -> bytes:
        if self.streamed:
            include = self._head.include_usage
            return (self._head.chunk(self._model, (), usage) if include else b"") + DONE
        completion = Completion(
            id=self._head.id,
            object="chat.completion",
            created=self._head.created,
            model=self._model,
            choices=tuple(each.choice for each in self._choices if isinstance(each, WholeChoice)),
            usage=usage,
        )
        return msgspec.json.encode(completion)


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
