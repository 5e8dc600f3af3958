"""A response while it is being made, and what the stages are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphon.errors import InvalidArgument
from antiphon.sampling import INPUT_STAGE, SamplingRequest
from gateway.calls.order import Order
from gateway.calls.segment import CallSegment
from gateway.conversations.items import ConversationItem, messages_of
from gateway.doors.realtime.response_events import ResponseEvents
from gateway.doors.realtime.settings import RealtimeSettings


@dataclass(slots=True)
class RunningResponse:
    """A response that is being made. `segment` is None until its session has been asked;
    `heard_s` is where the client says that its listener stopped."""

    events: ResponseEvents
    in_conversation: bool
    segment: CallSegment | None = None
    cancelled: bool = False
    heard_s: float | None = None
    task: asyncio.Task[None] | None = field(default=None)

    def cancel(self) -> None:
        """Stop it: no delta follows."""
        self.cancelled = True
        if self.segment is not None:
            self.segment.cancel()


def order_of(items: Iterable[ConversationItem], settings: RealtimeSettings) -> Order:
    """What the stages are asked for. Raises `InvalidArgument` when nothing was said."""
    messages, attachments = messages_of(items, settings.instructions)
    if not messages:
        raise InvalidArgument(
            "response: the conversation is empty; create an item or commit audio first",
            field="response",
        )
    return Order(
        model=settings.model,
        messages=messages,
        attachments=attachments,
        outputs=settings.outputs,
        voice=settings.voice,
        sampling={INPUT_STAGE: SamplingRequest(max_tokens=settings.max_output_tokens)},
    )
