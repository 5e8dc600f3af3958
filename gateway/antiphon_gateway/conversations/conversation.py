"""A conversation. It consists of settings, items, input audio and current responses.

Commands are executed one after another, while responses run concurrently with them
(`responses.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Cancelled, InvalidArgument, NotFound
from antiphon.values.live_conversation import (
    AppendAudio,
    AudioAccepted,
    AudioDropped,
    CancelResponse,
    ChangeSettings,
    ClearAudio,
    Command,
    CommandFailed,
    CommitAudio,
    ConversationOpened,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Item,
    ItemCreated,
    ItemCut,
    ItemFetched,
    ItemRemoved,
    RetrieveItem,
    ServerStopping,
    SettingsUpdated,
    SpeechBegan,
    SpokenPart,
    TruncateItem,
)
from antiphon_gateway.admission.reservation import shutting_down
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.client import ConversationClient
from antiphon_gateway.conversations.errors import ItemUse, NoSuchItem
from antiphon_gateway.conversations.event_sender import EventSender
from antiphon_gateway.conversations.forced_end import ForcedEnd
from antiphon_gateway.conversations.idle_timer import IdleTimer
from antiphon_gateway.conversations.items import (
    RECORDED_BYTES,
    HeardPart,
    ItemList,
    item_as_heard,
    item_bytes,
    new_id,
)
from antiphon_gateway.conversations.responses import Responses
from antiphon_gateway.conversations.saved import SavedConversation, lost_responses
from antiphon_gateway.conversations.saving import Saving, SealToken
from antiphon_gateway.conversations.settings import ConversationSettings, own_settings
from antiphon_gateway.conversations.shares import ConversationShare, never_busy
from antiphon_gateway.conversations.transcripts import Transcripts
from antiphon_gateway.conversations.turn_detector import TurnDetector, TurnHeard
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.orders.tools import check_offered
from antiphon_gateway.voice_activity.listener import VoiceListener

STALLED_S = 1.0
"""The number of seconds for which the audio may pause in the middle of a turn. The silence that
ends a turn is added to this.

Some clients send audio only while someone is speaking.
"""
LEAST_SLICE_S = 0.5
"""The minimum duration of a timed turn in seconds. There is no point in answering more often than
this.
"""


class Action(NamedTuple):
    """A function that executes a command and the maximum number of bytes by which the command can
    make the conversation grow.
    """

    do: Callable[[Any, Any], Awaitable[None]]
    more_bytes: Callable[[Any], int] = lambda _: 0


class LiveConversation:
    """A conversation. Enter its context, and then call `do` for each command.

    When the context is left, all responses and transcripts that are still running are cancelled.
    """

    def __init__(
        self,
        calls: Calls,
        config: GatewayConfig,
        listener: VoiceListener,
        settings: ConversationSettings,
        client: ConversationClient,
        share: ConversationShare,
        forced_end: ForcedEnd,
        *,
        seal: SealToken | None = None,
        resumed: SavedConversation | None = None,
    ) -> None:
        self._calls = calls
        self._config = config
        self._settings = self._checked(settings)
        self._items = ItemList(
            max_items=config.limits.max_parts, max_bytes=config.limits.max_body_bytes
        )
        self._resumed = resumed
        for item in resumed.items if resumed is not None else ():
            self._items.insert(item)
        self._saving = (
            None if seal is None else Saving(client, self._state, seal, config.resume.bytes)
        )
        self._telling = EventSender((self._saving or client).send)
        self._hearing = TurnDetector(listener, None, max_s=config.limits.max_recording_s)
        self._hearing.detect(settings.voice_turns, settings.answer_every_s)
        self._idle = IdleTimer(self._answer_silence)
        self._stalled = IdleTimer(self._hear_silence)
        self._responses = Responses(
            calls, config, self._items, self._telling, client, self._answered
        )
        self._transcripts = Transcripts(calls, config, self._items, self._telling, client)
        self.forced_end = forced_end
        self._share = share
        self._share.is_busy = lambda: self._responses.busy
        self._share.check(self._size_bytes)
        self._doing = asyncio.Lock()
        self._silence_asks = True

    async def __aenter__(self) -> LiveConversation:
        self._share.resize(self._size_bytes)
        lost = () if self._resumed is None else lost_responses(self._resumed)
        self._resumed = None
        await self._telling.tell(_opened(self._settings), *lost)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Close all of these even if one of them fails, for example because the call is cancelled.
        async with AsyncExitStack() as closing:
            closing.callback(self._share.resize, 0)
            closing.callback(setattr, self._share, "is_busy", never_busy)
            closing.push_async_callback(self._transcripts.close)
            closing.push_async_callback(self._responses.close)
            closing.push_async_callback(self._stalled.close)
            await self._idle.close()

    @property
    def settings(self) -> ConversationSettings:
        """The current settings."""
        return self._settings

    @property
    def _size_bytes(self) -> int:
        held = self._items.size_bytes + self._hearing.size_bytes
        return held + self._settings.options_bytes

    def command(self) -> AbstractAsyncContextManager[None] | None:
        """Return a context manager that covers a message from the client, from the time it is read
        until it has been processed. Returns None if nothing has to be done at its end.
        """
        self._share.active()
        return None if self._saving is None else self._saved_by(self._saving, counted=True)

    def joined_bytes(self, rate_hz: int) -> int:
        """Return the size up to which appending audio with one command has the same effect as
        appending it in pieces. The result can be negative.
        """
        if self._saving is not None:
            # The client is told how many of its commands have been executed.
            return 0
        return min(self._hearing.joined_bytes(rate_hz), self._share.free_bytes)

    async def do(self, command: Command) -> None:
        """Execute a command and send its events. If the command starts a response, only the events
        at its start are sent.

        Raises `AntiphonError` if the command is invalid, in which case it has no effect. Raises
        `Cancelled` if the client has disconnected.
        """
        if isinstance(command, AppendAudio) and self._append_now(command.pcm16, command.rate_hz):
            return
        async with self._doing:
            action = self.actions[type(command)]
            self._share.check(action.more_bytes(command))
            try:
                await action.do(self, command)
            finally:
                self._share.resize(self._size_bytes)
            if self._saving is not None and not isinstance(command, AppendAudio):
                self._saving.change()

    async def refuse(self, error: AntiphonError, reference: str) -> None:
        """Send an error event. Endpoints use this if they can't parse a message."""
        await self._telling.tell(CommandFailed(error, reference))

    async def settled(self) -> None:
        """Wait until all requested work is complete and its events have been sent. No commands may
        be sent after this.
        """
        self._silence_asks = False
        self._idle.stop()
        self._stalled.stop()
        async with self._doing:
            # This includes a response that the idle timer is about to request.
            pass
        await self._responses.settled()
        while not self._calls.closing:
            async with self._doing, self._saved():
                if not await self._answer_slice():
                    break
            await self._responses.settled()
        await self._transcripts.settled()

    def check_complete(self) -> None:
        """Raise `Unavailable` if slices of timed audio are left that aren't answered, because the
        gateway is shutting down. Call this after `settled`.
        """
        if self._hearing.has_slice:
            raise shutting_down()

    async def stopped(self) -> None:
        """Wait until the gateway is shutting down and no response is running.

        The client is notified when the shutdown begins, so that it can move to another gateway.
        """
        await self._calls.wait_closing()
        await self._telling.tell(ServerStopping(self._config.drain_s))
        await self.settled()

    def _state(self) -> tuple[ConversationSettings, Iterable[Item]]:
        return self._settings, self._items

    def _saved(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager for changes to the conversation. When it ends, the saved state
        includes the changes.
        """
        if self._saving is None:
            return contextlib.nullcontext()
        return self._saved_by(self._saving, counted=False)

    @asynccontextmanager
    async def _saved_by(self, saving: Saving, *, counted: bool) -> AsyncIterator[None]:
        with saving.command(counted=counted):
            yield
        await self._telling.tell_if(lambda: saving.due, saving.saved)

    async def _change_settings(self, command: ChangeSettings) -> None:
        settings = self._settings = self._checked(own_settings(command.settings))
        self._hearing.detect(settings.voice_turns, settings.answer_every_s)
        self._idle.stop()
        self._expect_audio()
        await self._telling.tell(SettingsUpdated(settings))

    async def _append_audio(self, command: AppendAudio) -> None:
        self._stalled.stop()
        for heard in await self._hearing.append(command.pcm16, command.rate_hz):
            await self._handle_vad(heard)
        self._expect_audio()
        await self._answer_slice()
        so_far = self._hearing.so_far
        await self._responses.hear(so_far, self._hearing.of_turn, self._settings)

    def _append_now(self, pcm16: bytes, rate_hz: int) -> bool:
        """Append audio if this doesn't require waiting. Returns False otherwise.

        Most audio only has to be added to the buffer. It arrives in so many small messages that the
        cost of any additional work would be noticeable.
        """
        hearing = self._hearing
        if not hearing.waits_for_client or self._saving is not None or self._doing.locked():
            return False
        samples = (hearing.size_bytes + len(pcm16)) // SAMPLE_BYTES
        if samples >= self._responses.hears_from(hearing.number, rate_hz):
            return False
        self._share.check(len(pcm16))
        hearing.buffer(pcm16, rate_hz)
        self._share.resize(self._size_bytes)
        return True

    async def _commit_audio(self, _: CommitAudio) -> None:
        if size_bytes := self._hearing.size_bytes:
            # If there is no room for it, the audio stays in the buffer.
            self._items.check_room(1, RECORDED_BYTES + size_bytes)
        await self._commit(*self._hearing.commit())

    async def _clear_audio(self, _: ClearAudio) -> None:
        self._hearing.clear()
        self._responses.forget_turn()
        await self._telling.tell(AudioDropped())

    async def _create_item(self, command: CreateItem) -> None:
        item = command.item if command.item.id else replace(command.item, id=new_id("item"))
        before = self._items.insert(item, command.after) or ""
        await self._telling.tell(ItemCreated(item, before))

    async def _delete_item(self, command: DeleteItem) -> None:
        with _asked_to("delete"):
            self._items.remove(command.item_id)
        await self._telling.tell(ItemRemoved(command.item_id))

    async def _retrieve_item(self, command: RetrieveItem) -> None:
        with _asked_to("retrieve"):
            item = self._items.get(command.item_id)
        await self._telling.tell(ItemFetched(item))

    async def _truncate_item(self, command: TruncateItem) -> None:
        with _asked_to("truncate"):
            item = self._items.get(command.item_id)
        if command.part or not item.parts:
            raise InvalidArgument(
                "content_index: the item only has one content part, with index 0",
                field="content_index",
            )
        if not isinstance(item.parts[0], SpokenPart) or item.role != "assistant":
            raise InvalidArgument("item_id: the item has no audio", field="item_id")
        # While an item is being generated, its final form isn't in the list.
        if not self._responses.cut(item.id, command.heard_s):
            self._items.replace(item_as_heard(item, command.heard_s))
        await self._telling.tell(ItemCut(item.id, command.heard_s))

    async def _create_response(self, command: CreateResponse) -> None:
        await self._responses.create(command, own_settings(command.settings or self._settings))
        if not command.out_of_band:
            self._idle.stop()

    async def _cancel_response(self, command: CancelResponse) -> None:
        self._responses.cancel(command.response_id, "client_cancelled")

    actions: ClassVar[Mapping[type[Command], Action]] = {
        ChangeSettings: Action(
            _change_settings, lambda command: own_settings(command.settings).options_bytes
        ),
        AppendAudio: Action(_append_audio, lambda command: len(command.pcm16)),
        CommitAudio: Action(_commit_audio),
        ClearAudio: Action(_clear_audio),
        CreateItem: Action(_create_item, lambda command: item_bytes(command.item)),
        DeleteItem: Action(_delete_item),
        RetrieveItem: Action(_retrieve_item),
        TruncateItem: Action(_truncate_item),
        CreateResponse: Action(_create_response),
        CancelResponse: Action(_cancel_response),
    }
    """Maps each type of command to the function that executes it."""

    def _checked(self, settings: ConversationSettings) -> ConversationSettings:
        check_offered(settings.tools, self._config, takes=settings.takes_tools)
        every_s, most_s = settings.answer_every_s, self._config.limits.max_recording_s
        if every_s is not None:
            settings.check_hears("answer_every_s")
        # The condition is written in such a way that NaN is rejected.
        if every_s is not None and not LEAST_SLICE_S <= every_s <= most_s:
            raise InvalidArgument(
                f"answer_every_s: {every_s:g} is out of range; set it to a value from "
                f"{LEAST_SLICE_S:g} to {most_s:g} seconds",
                field="answer_every_s",
            )
        self._calls.check_options(settings.order_options)
        return settings

    async def _commit(self, item_id: str, recording: PcmRecording) -> None:
        """Add a recording to the conversation as a user message."""
        item = Item("user", (HeardPart.of(recording),), item_id)
        before = self._items.insert(item) or ""
        await self._telling.tell(AudioAccepted(item.id, before), ItemCreated(item, before))
        if self._settings.transcripts is not None:
            await self._transcripts.begin(item, self._settings.transcripts)

    # -- turns -------------------------------------------------------------------------

    async def _handle_vad(self, heard: SpeechBegan | TurnHeard) -> None:
        """Handle the start or the end of a turn as specified by the settings."""
        turns = self._settings.voice_turns
        assert turns is not None
        self._idle.stop()
        if isinstance(heard, SpeechBegan):
            if turns.interrupts_response:
                self._responses.interrupt()
            await self._telling.tell(heard)
            return
        await self._telling.tell(heard.stopped)
        await self._take_turn(
            heard.stopped.item_id, heard.recording, respond=turns.creates_response
        )

    async def _answer_slice(self) -> bool:
        """With timed turns, add the next slice of audio and answer it, unless the previous slice is
        still being answered.

        Returns whether there was a slice.
        """
        if self._responses.answering or (slice_ := self._hearing.next_slice()) is None:
            return False
        await self._take_turn(*slice_, respond=True)
        return True

    async def _take_turn(self, item_id: str, recording: PcmRecording, *, respond: bool) -> None:
        """Add a turn and answer it. Errors are sent to the client as events, because there is no
        command that could report them.
        """
        try:
            await self._commit(item_id, recording)
            if respond:
                await self._create_response(CreateResponse())
        except Cancelled:
            raise
        except AntiphonError as error:
            await self._telling.tell(CommandFailed(error))

    def _answered(self, playing_s: float) -> None:
        """Record that an answer has completed and that its audio will keep playing for another
        `playing_s` seconds.
        """
        if self._settings.answer_every_s is not None and self._silence_asks:
            self._idle.start(0.0)
            return
        turns = self._settings.voice_turns
        if turns is None or turns.idle_timeout_s is None or self._hearing.speaking:
            return
        if self._silence_asks:
            self._idle.start(playing_s + turns.idle_timeout_s)

    def _expect_audio(self) -> None:
        """Start the timer that ends the current turn if no more audio arrives."""
        turns = self._settings.voice_turns
        if turns is not None and self._hearing.speaking and not self._calls.closing:
            self._stalled.start(turns.silence_s + STALLED_S)
        else:
            self._stalled.stop()

    async def _hear_silence(self) -> None:
        """Treat the rest of the turn as silence, because no more audio is arriving."""
        async with self._doing, self._saved():
            turns = self._settings.voice_turns
            if not (self._stalled.due and self._hearing.speaking) or turns is None:
                return
            try:
                for heard in await self._hearing.append_silence(turns.silence_s + STALLED_S):
                    await self._handle_vad(heard)
            except Cancelled:
                # The client has disconnected.
                return
            finally:
                self._share.resize(self._size_bytes)
            self._expect_audio()

    async def _answer_silence(self) -> None:
        """Ask the model to continue after a period of silence. With timed turns, answer the slice
        of audio that has been waiting instead.
        """
        async with self._doing, self._saved():
            if self._idle.due and self._settings.answer_every_s is not None:
                with contextlib.suppress(Cancelled):
                    await self._answer_slice()
                return
            if not self._idle.due or (silence := self._hearing.time_out()) is None:
                return
            timed_out, recording = silence
            try:
                await self._telling.tell(timed_out)
                await self._take_turn(timed_out.item_id, recording, respond=True)
            except Cancelled:
                # The client has disconnected.
                return


@contextlib.contextmanager
def _asked_to(use: ItemUse) -> Iterator[None]:
    """Convert a missing item to `NoSuchItem`."""
    try:
        yield
    except NotFound as error:
        raise NoSuchItem(use, error) from None


def _opened(settings: ConversationSettings) -> ConversationOpened:
    rate_hz = settings.output_rate_hz
    return ConversationOpened(settings.model, rate_hz, settings.voices, settings)
