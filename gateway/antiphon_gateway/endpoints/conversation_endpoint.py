"""The parts of a conversation endpoint that don't depend on the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.conversations.client import LogEntry, Made, RefuseResponse
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.conversations.conversations import AdmittedConversation, Conversations
from antiphon_gateway.conversations.event_sender import SendEvents
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.saved import SavedConversation
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.access_log import AccessLog
from antiphon_gateway.endpoints.conversation_metrics import ConversationMetrics
from antiphon_gateway.endpoints.ending import request
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class LoggedClient:
    """A `ConversationClient` with an API key, which passes events to `take`."""

    api: str
    access_log: AccessLog
    key: KeyUse
    take: SendEvents

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        """Send events and wait until the client has received them."""
        await self.take(events)

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        """Return a context manager that writes a line to the access log when it ends."""
        return request(self.access_log, self.api, made, refuse, key=self.key)


@dataclass(frozen=True, slots=True)
class ConversationEndpoint:
    """An endpoint for conversations. `api` is its name in metrics and in the access log."""

    api: str
    conversations: Conversations
    config: GatewayConfig
    access_log: AccessLog
    metrics: Metrics

    def watch(self) -> ConversationMetrics:
        """Return an object that collects metrics for one conversation."""
        return ConversationMetrics(self.metrics, self.api)

    def begin(
        self,
        admitted: AdmittedConversation,
        settings: ConversationSettings,
        send: SendEvents,
        key: KeyUse,
        *,
        resumable: bool = False,
        resumed: SavedConversation | None = None,
    ) -> LiveConversation:
        """Return a conversation that was admitted for the key. The caller must enter its
        context.
        """
        client = LoggedClient(self.api, self.access_log, key, send)
        return self.conversations.begin(
            admitted, settings, client, resumable=resumable, resumed=resumed
        )
