"""Conversation metrics that don't depend on the protocol."""

from __future__ import annotations

import time
from collections.abc import Callable

from antiphon.values.live_conversation import AudioAccepted, CommandFailed, ResponseDone
from antiphon_gateway.conversations.events import ConversationEvent, ResponseSamples
from antiphon_gateway.metrics import Metrics


class ConversationMetrics:
    """Collects a conversation's metrics from the events that are sent to its client.

    A turn's first audio is the first audio that is sent after the recording of the turn is
    complete.
    """

    def __init__(
        self, metrics: Metrics, api: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._api = api
        self._clock = clock
        self._spoken_at: float | None = None

    def note(self, event: ConversationEvent) -> None:
        """Count an event."""
        metrics, api = self._metrics, self._api
        match event:
            case AudioAccepted():
                metrics.turns.labels(api).inc()
                self._spoken_at = self._clock()
            case ResponseSamples() if self._spoken_at is not None:
                metrics.turn_ttfa.labels(api).observe(self._clock() - self._spoken_at)
                self._spoken_at = None
            case ResponseDone(response):
                metrics.responses.labels(api, response.status).inc()
            case CommandFailed(error):
                metrics.conversation_refusals.labels(api, error.code.value).inc()
