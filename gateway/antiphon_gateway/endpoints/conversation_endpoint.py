"""What an endpoint of conversations has, whatever its protocol."""

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
    """A `ConversationClient` with an API key, which takes events by `take`."""

    api: str
    access_log: AccessLog
    key: KeyUse
    take: SendEvents

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        """Return when the client has taken the events."""
        await self.take(events)

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        """One line of the access log."""
        return request(self.access_log, self.api, made, refuse, key=self.key)


@dataclass(frozen=True, slots=True)
class ConversationEndpoint:
    """`api` is its name in metrics and in the access log."""

    api: str
    conversations: Conversations
    config: GatewayConfig
    access_log: AccessLog
    metrics: Metrics

    def watch(self) -> ConversationMetrics:
        """Count the events of one conversation."""
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
        """A conversation that was admitted, for the key; to be entered."""
        client = LoggedClient(self.api, self.access_log, key, send)
        return self.conversations.begin(
            admitted, settings, client, resumable=resumable, resumed=resumed
        )
