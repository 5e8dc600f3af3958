"""Conducts a conversation with a gateway from beginning to end. Both clients share this module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from antiphon.client import conversation_commands as commands
from antiphon.client.calls import Channel, Method, Pauser, TwoWayCall
from antiphon.client.conversation_position import ConversationPosition
from antiphon.client.endings import OneReader
from antiphon.client.retrying import Attempts, Retry, server_is_away
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    Unavailable,
)
from antiphon.v1 import converse_pb2
from antiphon.values.live_conversation import (
    ConversationOpened,
    ConversationSaved,
    ResponseItemStarted,
    ResponseStarted,
    TalkEvent,
)
from antiphon.wire.conversation import event_from_proto

CONVERSE = Method(
    "/antiphon.v1.SpeechService/Converse",
    converse_pb2.ConverseRequest,
    converse_pb2.ConverseResponse.FromString,
)
DEFAULT_CONVERSATION_S = 3600.0
OPEN_TIMEOUT_S = 30.0
"""The timeout for the first event in seconds. The server sends this event without involving the
model.
"""

Call = TwoWayCall[converse_pb2.ConverseRequest, converse_pb2.ConverseResponse]


class Talk:
    """A single conversation.

    Until the first event arrives, opening the conversation is retried. If the server is lost later,
    the conversation continues on another server, and all commands that haven't been processed are
    sent again.
    """

    def __init__(
        self,
        start: Callable[[float], Call],
        opening: converse_pb2.ConverseRequest,
        idle_s: float | None,
        attempts: Attempts,
        pauser: Pauser,
    ) -> None:
        self._start = start
        self._opening = opening
        self._idle_s = idle_s
        self._attempts = attempts
        self._pauser = pauser
        self._call: Call | None = None
        # The call that is currently being opened. If there is none, this is the current call.
        self._latest: Call | None = None
        self._opened: ConversationOpened | None = None
        self._position = ConversationPosition()
        self._one_reader = OneReader()
        # Held while a command is recorded or the call is replaced, because one thread may be
        # sending while another is reading.
        self._changing = threading.Lock()
        self._finished = False
        self._ended: AntiphonError | None = None
        # The IDs of the response to the conversation and of its item.
        self._response_id = self._item_id = ""

    @property
    def opened(self) -> ConversationOpened:
        """The server's first event. Raises `FailedPrecondition` if the conversation has not been
        opened yet.
        """
        if self._opened is None:
            raise _not_open()
        return self._opened

    async def open(self) -> None:
        """Open the conversation. If the server refuses it, raises the server's error."""
        while self._opened is None:
            try:
                call, first = await self._begin(self._opening)
            except AntiphonError as error:
                failure = error
            else:
                self._position.note(first)
                self._opened = _opened(first)
                self._call = call
                return
            await self._attempts.pause(failure, self._pauser)

    async def send(self, requests: Iterable[converse_pb2.ConverseRequest]) -> None:
        """Send commands, waiting if the queue is full.

        If the server is lost in the meantime, the reader sends the commands again to the next
        server.
        """
        self._open_call()
        for request in requests:
            with self._changing:
                if self._ended is not None:
                    raise self._ended
                call = self._open_call()
                if not self._finished:
                    self._position.sent(request)
            try:
                await call.write(request)
            except AntiphonError as error:
                replaced = call is not self._call
                if self._finished or not (replaced or self._goes_on_after(error)):
                    raise

    async def interrupt(self, heard_s: float, reference: str) -> None:
        """Cancel the current answer and shorten it to the part that the user has heard.

        The command that shortens the item is sent first, so the item has already been shortened by
        the time the answer ends.
        """
        cut = [commands.truncate_item(self._item_id, heard_s, reference)] if self._item_id else []
        await self.send([*cut, commands.cancel_response("", reference)])

    async def next_event(self) -> TalkEvent | None:
        """Return the next event, or None at the end. If the conversation has failed, raises its
        error. Raises `FailedPrecondition` if another task or thread is reading.
        """
        with self._one_reader:
            return await self._next_event()

    def finish(self) -> None:
        """Stop sending commands."""
        with self._changing:
            self._finished = True
            self._open_call().finish()

    def cancel(self) -> None:
        """End the conversation."""
        self._pauser.wake()
        for call in (self._call, self._latest):
            if call is not None:
                call.cancel()

    async def _next_event(self) -> TalkEvent | None:
        while (message := await self._next_message()) is not None:
            try:
                event = event_from_proto(message)
            except AntiphonError as error:
                # Another thread may have cancelled the call first.
                ended = self._open_call().fail(error)
                try:
                    raise ended from ended.__cause__
                finally:
                    # Otherwise, the error would keep this frame, which would keep the error.
                    del ended
            repeated = self._position.is_repeated(message)
            self._position.note(message)
            if event is not None and not (repeated or isinstance(event, ConversationSaved)):
                if not isinstance(event, ConversationOpened):
                    self._attempts.succeeded()
                self._note(event)
                return event
        return None

    async def _next_message(self) -> converse_pb2.ConverseResponse | None:
        if self._ended is not None:
            raise self._ended
        try:
            return await self._open_call().read()
        except AntiphonError as error:
            if not self._goes_on_after(error):
                raise
            try:
                return await self._resume(error)
            except AntiphonError as ended:
                # Threads that send commands raise this error as well.
                self._ended = ended
                raise

    def _goes_on_after(self, error: AntiphonError) -> bool:
        """Return whether the error means that the server was lost and another one can take over."""
        return server_is_away(error) and self._position.resumable

    async def _resume(self, lost: AntiphonError) -> converse_pb2.ConverseResponse:
        """Continue on another server and return its first message. If no server can take over,
        raises `lost`.
        """
        error = lost
        while (pause_s := self._attempts.pause_after(error)) is not None:
            await self._pauser.pause(pause_s)
            opening = self._opening
            if (resumed := self._position.resumed) is not None:
                opening = converse_pb2.ConverseRequest(
                    open=converse_pb2.OpenConversation(
                        model=self._opening.open.model, resumable=True, resumed=resumed
                    )
                )
            try:
                call, first = await self._begin(opening)
                await self._send_again(call)
            except Cancelled:
                raise
            except AntiphonError as refused:
                error = refused
            else:
                return first
        if server_is_away(error):
            raise self._attempts.ended(lost, error) from error
        raise lost from error

    async def _begin(
        self, opening: converse_pb2.ConverseRequest
    ) -> tuple[Call, converse_pb2.ConverseResponse]:
        self._latest = call = self._start(self._attempts.left_s)
        if self._pauser.woken:
            call.cancel()
        await call.write(opening)
        first = await call.read()
        if first is None:
            raise Unavailable("the server has ended the call without starting the conversation")
        if not first.HasField("begun"):
            call.cancel()
            raise DataLoss("the conversation doesn't start with `begun`")
        call.idle_s = self._idle_s
        return call, first

    async def _send_again(self, call: Call) -> None:
        """Send all unprocessed commands on `call` and then make it the current call."""
        with self._changing:
            self._position.begin_again()
        sent = 0
        while True:
            with self._changing:
                sent, held = self._position.held(sent)
                if not held:
                    self._call = call
                    if self._finished:
                        call.finish()
                    break
            for request in held:
                await call.write(request)
        if self._pauser.woken:
            call.cancel()

    def _open_call(self) -> Call:
        if self._call is None or self._opened is None:
            raise _not_open()
        return self._call

    def _note(self, event: TalkEvent) -> None:
        match event:
            case ConversationOpened():
                self._opened = event
            case ResponseStarted(response) if not response.out_of_band:
                self._response_id = response.id
            case ResponseItemStarted(response_id, item_id) if response_id == self._response_id:
                self._item_id = item_id


def _opened(first: converse_pb2.ConverseResponse) -> ConversationOpened:
    event = event_from_proto(first)
    assert isinstance(event, ConversationOpened)
    return event


def _not_open() -> FailedPrecondition:
    return FailedPrecondition("the conversation is not open; use it as a context manager first")


def talk(
    channel: Channel,
    opening: converse_pb2.ConverseRequest,
    timeout_s: float,
    idle_s: float | None,
    retry: Retry,
) -> Talk:
    """Return a conversation that has not been opened yet."""
    opening.open.resumable = retry.attempts > 1

    def start(seconds: float) -> Call:
        return channel.exchange(CONVERSE, seconds, OPEN_TIMEOUT_S)

    attempts = Attempts(retry, timeout_s, channel.contact)
    return Talk(start, opening, idle_s, attempts, channel.pauser())
