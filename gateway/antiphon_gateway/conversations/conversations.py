"""All of the gateway's conversations, regardless of their protocol. This module limits their number
and holds their shared state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from antiphon.deployment.schema import GatewayConfig
from antiphon.values.live_conversation import VoiceTurns
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.client import ConversationClient
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.conversations.forced_end import ForcedEnd
from antiphon_gateway.conversations.saved import SavedConversation, restore
from antiphon_gateway.conversations.seal import Seal
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.conversations.shares import ConversationShare, ConversationShares
from antiphon_gateway.fleet.served import served_model
from antiphon_gateway.orders.tools import KIND as TOOLS
from antiphon_gateway.outputs import AUDIO
from antiphon_gateway.voice_activity.listener import VoiceListener


@dataclass(frozen=True, slots=True)
class AdmittedConversation:
    """A conversation that has been admitted, along with its initial settings, its share of the
    resources, and an event that can force it to end.
    """

    settings: ConversationSettings
    share: ConversationShare
    forced_end: ForcedEnd


class Conversations:
    """Opens conversations. Up to `max_conversations` can be open at a time. Call `close` when it is
    no longer needed.
    """

    def __init__(self, calls: Calls, config: GatewayConfig) -> None:
        self._calls = calls
        self._config = config
        self._listener = VoiceListener()
        self._seal = Seal(
            config.resume.key_file, holds_s=config.resume.within_s, reload_s=config.keys_reload_s
        )
        self.shares = ConversationShares(config.conversations.max_conversations, calls.memory)
        self._running = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def admit(
        self, model: str, owner: str = "", forced_end: ForcedEnd | None = None
    ) -> Iterator[AdmittedConversation]:
        """Admit a conversation for the API key `owner`. It counts towards the limits for the
        duration of the context.

        This may end a conversation that belongs to another key. Raises `AntiphonError` if the
        conversation can't be admitted.
        """
        self._calls.check_open()
        self._calls.check_model(model)
        settings = self._first_settings()
        ending = forced_end or ForcedEnd()
        share = self.shares.take(owner, ending.end)
        self._running += 1
        self._none.clear()
        try:
            yield AdmittedConversation(settings, share, ending)
        finally:
            share.close()
            self._running -= 1
            if not self._running:
                self._none.set()

    async def wait_none(self, timeout_s: float) -> None:
        """Wait until no conversation is open or until the time has elapsed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none.wait()

    def begin(
        self,
        admitted: AdmittedConversation,
        settings: ConversationSettings,
        client: ConversationClient,
        *,
        resumable: bool = False,
        resumed: SavedConversation | None = None,
    ) -> LiveConversation:
        """Return a conversation that has been admitted. The caller must enter its context. If the
        settings are invalid, an error is raised.

        If it is `resumable`, its client receives tokens that allow it to continue on another
        gateway with the same API key.
        """
        owner = admitted.share.owner
        return LiveConversation(
            self._calls,
            self._config,
            self._listener,
            settings,
            client,
            admitted.share,
            admitted.forced_end,
            seal=(lambda content: self._seal.close(content, owner)) if resumable else None,
            resumed=resumed,
        )

    def resume(self, token: bytes, owner: str, first: ConversationSettings) -> SavedConversation:
        """Return the conversation saved in a token. Raises `InvalidArgument` or
        `FailedPrecondition` if the token can't be used.
        """
        return restore(self._seal.open(token, owner, self._config.resume.bytes), first)

    def close(self) -> None:
        """Stop voice activity detection."""
        self._listener.close()

    def _first_settings(self) -> ConversationSettings:
        served = served_model(self._calls.fleet)
        hears = AUDIO in served.input_kinds
        return ConversationSettings(
            model=served.name,
            voices=served.voices,
            output_rate_hz=served.sample_rate_hz,
            spoken=AUDIO in served.outputs,
            voice=served.voices[0] if served.voices and not served.reads_aloud else "",
            voice_aliases=served.voice_aliases,
            turns=VoiceTurns() if hears else None,
            hears=hears,
            takes_tools=TOOLS in served.input_kinds,
            reads_aloud=served.reads_aloud,
            voice_instructions=any(each.instructs for each in served.options),
        )
