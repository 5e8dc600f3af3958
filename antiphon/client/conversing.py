"""A conversation with a gateway, from its opening to its end, whichever client has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.client import conversation_commands as commands
from antiphon.client.calls import Channel, Method, Pauser, TwoWayCall
from antiphon.client.conversation_events import (
    ConversationOpened,
    ResponseItemStarted,
    ResponseStarted,
    TalkEvent,
)
from antiphon.client.conversation_messages import conversation_event
from antiphon.client.retrying import Attempts, Retry
from antiphon.errors import AntiphonError, DataLoss, FailedPrecondition
from antiphon.v1 import converse_pb2

CONVERSE = Method(
    "/antiphon.v1.SpeechService/Converse",
    converse_pb2.ConverseRequest,
    converse_pb2.ConverseResponse.FromString,
)
DEFAULT_CONVERSATION_S = 3600.0
OPEN_TIMEOUT_S = 30.0
"""The longest wait for the first event, which comes before anything is asked of a model."""

Call = TwoWayCall[converse_pb2.ConverseRequest, converse_pb2.ConverseResponse]


class Talk:
    """One conversation. It is opened again while nothing has come of it."""

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
        self._opened: ConversationOpened | None = None
        # Of the response that answers the conversation: its id, and its item's.
        self._response_id = self._item_id = ""

    @property
    def opened(self) -> ConversationOpened:
        """What the server has told first. Raises `FailedPrecondition` before that."""
        if self._opened is None:
            raise _not_open()
        return self._opened

    async def open(self) -> None:
        """Begin. Raises what the server refuses it with."""
        while self._opened is None:
            self._call = call = self._start(self._attempts.left_s)
            if self._pauser.woken:
                call.cancel()
            try:
                await call.write(self._opening)
                message = await call.read()
            except AntiphonError as error:
                pause_s = self._attempts.pause_after(error)
                if pause_s is None:
                    raise
            else:
                first = None if message is None else conversation_event(message)
                if not isinstance(first, ConversationOpened):
                    call.cancel()
                    raise DataLoss("the server has not begun the conversation")
                self._opened = first
                call.idle_s = self._idle_s
                return
            await self._pauser.pause(pause_s)

    async def send(self, requests: Iterable[converse_pb2.ConverseRequest]) -> None:
        """Say something; waits for room."""
        call = self._open_call()
        for request in requests:
            await call.write(request)

    async def interrupt(self, heard_s: float, reference: str) -> None:
        """End the answer that is being made, and keep what was heard of the last one."""
        cut = [commands.truncate_item(self._item_id, heard_s, reference)] if self._item_id else []
        await self.send([commands.cancel_response("", reference), *cut])

    async def next_event(self) -> TalkEvent | None:
        """The next event; None at the end. Raises what ended the conversation."""
        call = self._open_call()
        while (message := await call.read()) is not None:
            try:
                event = conversation_event(message)
            except AntiphonError:
                call.cancel()
                raise
            if event is not None:
                self._note(event)
                return event
        return None

    def finish(self) -> None:
        """Nothing more will be said."""
        self._open_call().finish()

    def cancel(self) -> None:
        """End it."""
        self._pauser.wake()
        if self._call is not None:
            self._call.cancel()

    def _open_call(self) -> Call:
        if self._call is None or self._opened is None:
            raise _not_open()
        return self._call

    def _note(self, event: TalkEvent) -> None:
        match event:
            case ResponseStarted(response) if not response.out_of_band:
                self._response_id = response.id
            case ResponseItemStarted(response_id, item_id) if response_id == self._response_id:
                self._item_id = item_id


def _not_open() -> FailedPrecondition:
    return FailedPrecondition("the conversation is not open: enter its context first")


def talk(
    channel: Channel,
    opening: converse_pb2.ConverseRequest,
    timeout_s: float,
    idle_s: float | None,
    retry: Retry,
) -> Talk:
    """A conversation, which begins when it is opened."""

    def start(seconds: float) -> Call:
        return channel.exchange(CONVERSE, seconds, OPEN_TIMEOUT_S)

    return Talk(start, opening, idle_s, Attempts(retry, timeout_s), channel.pauser())
