"""All conversations of the gateway, whatever their protocol: how many, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ResourceExhausted
from gateway.calls.calls import Calls
from gateway.calls.tools import KIND as TOOLS
from gateway.conversations.conversation import LiveConversation
from gateway.conversations.kept_bytes import KeptBytes
from gateway.conversations.responses import Logged
from gateway.conversations.saved import SavedConversation, restore
from gateway.conversations.seal import Seal
from gateway.conversations.settings import ConversationSettings
from gateway.conversations.telling import SendEvents
from gateway.fleet.served import served_model
from gateway.outputs import AUDIO
from gateway.voice_activity.listener import VoiceListener


class Conversations:
    """Opens conversations, at most `max_conversations` at a time. `close` it at the end."""

    def __init__(self, calls: Calls, config: GatewayConfig) -> None:
        self._calls = calls
        self._config = config
        self._listener = VoiceListener()
        self._seal = Seal(
            config.resume_key_file, holds_s=config.resume_within_s, reload_s=config.keys_reload_s
        )
        self.kept = KeptBytes(config.max_conversation_bytes)
        self.open = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def admit(self, model: str) -> Iterator[ConversationSettings]:
        """Count a conversation in for as long as the context lasts; what holds in it at first.

        Raises `AntiphonError` when there can be none.
        """
        self._calls.check_open()
        self._calls.check_model(model)
        if self.open >= self._config.max_conversations:
            raise ResourceExhausted(
                f"{self.open} conversations are open, which is the most "
                "(gateway.max_conversations)",
                retry_after_s=1.0,
            )
        settings = self._first_settings()
        self.open += 1
        self._none.clear()
        try:
            yield settings
        finally:
            self.open -= 1
            if not self.open:
                self._none.set()

    async def wait_none(self, timeout_s: float) -> None:
        """Return when no conversation is open, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none.wait()

    def begin(
        self,
        settings: ConversationSettings,
        send: SendEvents,
        logged: Logged,
        logged_transcript: Logged,
        *,
        owner: str = "",
        resumable: bool = False,
        resumed: SavedConversation | None = None,
    ) -> LiveConversation:
        """A conversation that was admitted; to be entered. Raises what its settings would raise
        as a command. One that is `resumable` tells what another gateway needs to go on, for the
        API key of that name."""
        return LiveConversation(
            self._calls,
            self._config,
            self._listener,
            settings,
            send,
            logged,
            logged_transcript,
            self.kept,
            seal=(lambda content: self._seal.close(content, owner)) if resumable else None,
            resumed=resumed,
        )

    def resume(self, token: bytes, owner: str, first: ConversationSettings) -> SavedConversation:
        """What was saved of a conversation. Raises `InvalidArgument` and `FailedPrecondition`."""
        return restore(self._seal.open(token, owner, self._config.resume_bytes), first)

    def close(self) -> None:
        """Hear nobody any more."""
        self._listener.close()

    def _first_settings(self) -> ConversationSettings:
        served = served_model(self._calls.fleet)
        return ConversationSettings(
            model=served.name,
            voices=served.voices,
            output_rate_hz=served.sample_rate_hz,
            spoken=AUDIO in served.outputs,
            voice=served.voices[0] if served.voices else "",
            hears=AUDIO in served.input_kinds,
            takes_tools=TOOLS in served.input_kinds,
        )
