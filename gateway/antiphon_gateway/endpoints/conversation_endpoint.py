"""What an endpoint of conversations has, whatever its protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.conversations.conversations import AdmittedConversation, Conversations
from antiphon_gateway.conversations.event_sender import SendEvents
from antiphon_gateway.conversations.saved import SavedConversation
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.access_log import AccessLog
from antiphon_gateway.endpoints.conversation_metrics import ConversationMetrics
from antiphon_gateway.endpoints.ending import request
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ConversationEndpoint:
    """`api` is its name in metrics and in the access log."""

    api: str
    conversations: Conversations
    config: GatewayConfig
    access_log: AccessLog
    metrics: Metrics

    def watch(self) -> ConversationMetrics:
        """Counts what one conversation tells."""
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
        logged, logged_transcript = (
            partial(request, self.access_log, self.api, name, key=key)
            for name in ("response", "transcript")
        )
        return self.conversations.begin(
            admitted,
            settings,
            send,
            logged,
            logged_transcript,
            resumable=resumable,
            resumed=resumed,
        )
