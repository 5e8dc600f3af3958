"""The calls that scripts play on: those of a channel, and those of the public clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.wrappers_pb2 import BytesValue, Int64Value

import antiphon
from antiphon.client.asyncio_channel import AsyncioChannel
from antiphon.client.blocking_channel import BlockingChannel
from antiphon.client.calls import Method
from antiphon.client.connection import target
from antiphon.v1 import converse_pb2, session_pb2, speech_pb2
from antiphon.wire.convert import error_to_proto
from tests.unit.client.call_scripts import TYPED_ERROR
from tests.unit.client.script_players import settle
from tests.unit.client.scripted_server import Scripted
from tests.unit.client.speech_server import finished, started, text

TIMEOUT_S = 3600.0
"""No call ends by its deadline in a test, so one that is left is seen."""
ONCE = antiphon.Retry(attempts=1)
ECHO: Method[Any, Any] = Method("/scripts/Echo", Int64Value, Int64Value.FromString)
EXCHANGE: Method[Any, Any] = Method("/scripts/Exchange", BytesValue, Int64Value.FromString)


class ChannelSession:
    """A call of a channel: bidirectional, or a stream."""

    def __init__(self, channel: Any, *, exchange: bool) -> None:
        self._channel = channel
        self._exchange = exchange

    async def open(self) -> None:
        if self._exchange:
            self._call = self._channel.exchange(EXCHANGE, TIMEOUT_S, None)
        else:
            self._call = self._channel.stream(EXCHANGE, BytesValue(), TIMEOUT_S, None)

    async def read(self) -> int | None:
        message = await self._call.read()
        return None if message is None else message.value

    async def write(self, padding: int) -> None:
        await self._call.write(BytesValue(value=bytes(padding)))

    def finish(self) -> None:
        self._call.finish()

    def cancel(self) -> None:
        self._call.cancel()

    async def close_client(self) -> None:
        await settle(self._channel.close())

    async def round_trip(self) -> None:
        await self._channel.ask(ECHO, Int64Value(), 60.0)


class PublicSession:
    """A call of a public client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._call: Any = None

    async def open(self) -> None:
        self._call = self.begin()
        enter = getattr(self._call, "__aenter__", None) or self._call.__enter__
        await settle(enter())

    def begin(self) -> Any:
        raise NotImplementedError

    def number(self, event: Any) -> int:
        raise NotImplementedError

    async def read(self) -> int | None:
        try:
            if hasattr(self._call, "__anext__"):
                return self.number(await anext(self._call))
            return self.number(next(self._call))
        except (StopIteration, StopAsyncIteration):
            return None

    async def write(self, padding: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self._call.finish()

    def cancel(self) -> None:
        leave = getattr(self._call, "__aexit__", None) or self._call.__exit__
        left = leave(None, None, None)
        if hasattr(left, "send"):
            # It never suspends.
            try:
                left.send(None)
            except StopIteration:
                return
            raise AssertionError("leaving a call has suspended")

    async def close_client(self) -> None:
        await settle(self._client.close())

    async def round_trip(self) -> None:
        await settle(self._client.server_info())


class Generating(PublicSession):
    """`generate`."""

    def begin(self) -> Any:
        return self._client.generate("Hi", timeout_s=TIMEOUT_S)

    def number(self, event: Any) -> int:
        return event.token_ids[0]

    async def read(self) -> int | None:
        if isinstance(event := await self._event(), antiphon.Finished):
            event = await self._event()
        return None if event is None else self.number(event)

    async def _event(self) -> Any:
        try:
            if hasattr(self._call, "__anext__"):
                return await anext(self._call)
            return next(self._call)
        except (StopIteration, StopAsyncIteration):
            return None


class Conversing(PublicSession):
    """`converse`."""

    def begin(self) -> Any:
        return self._client.converse(timeout_s=TIMEOUT_S)

    def number(self, event: Any) -> int:
        return int(event.item_id)

    async def write(self, padding: int) -> None:
        await settle(self._call.add("x" * (padding + 1)))


class OnStage(PublicSession):
    """A session on a stage."""

    def begin(self) -> Any:
        return self._client.session({"audio": ()}, timeout_s=TIMEOUT_S)

    def number(self, event: Any) -> int:
        return event.segment_opened.segment

    async def write(self, padding: int) -> None:
        opening = session_pb2.SessionOpen(session_id="x" * padding)
        await settle(self._call.send(session_pb2.SessionRequest(open=opening)))

    async def round_trip(self) -> None:
        await settle(self._client.describe())


def _exchange(address: str, *, blocking: bool) -> ChannelSession:
    return ChannelSession(_channel(address, blocking=blocking), exchange=True)


def _stream(address: str, *, blocking: bool) -> ChannelSession:
    return ChannelSession(_channel(address, blocking=blocking), exchange=False)


def _channel(address: str, *, blocking: bool) -> Any:
    where = target(address, False, None, key_in_clear=False)
    return BlockingChannel(where) if blocking else AsyncioChannel(where)


def _speech_client(address: str, *, blocking: bool) -> Any:
    kind = antiphon.Client if blocking else antiphon.AsyncClient
    return kind(address, retry=ONCE)


def _generating(address: str, *, blocking: bool) -> Generating:
    return Generating(_speech_client(address, blocking=blocking))


def _conversing(address: str, *, blocking: bool) -> Conversing:
    return Conversing(_speech_client(address, blocking=blocking))


def _on_stage(address: str, *, blocking: bool) -> OnStage:
    kind = antiphon.StageClient if blocking else antiphon.AsyncStageClient
    return OnStage(kind(address, retry=ONCE))


def _deleted(number: int) -> bytes:
    deleted = converse_pb2.ItemDeleted(item_id=str(number))
    return converse_pb2.ConverseResponse(item_deleted=deleted).SerializeToString()


def _opened(number: int) -> bytes:
    opened = session_pb2.SegmentOpened(segment=number)
    return session_pb2.SessionResponse(segment_opened=opened).SerializeToString()


def _number(number: int) -> bytes:
    return Int64Value(value=number).SerializeToString()


_ERROR = error_to_proto(TYPED_ERROR)
SURFACES: dict[str, tuple[Scripted, Callable[..., Any]]] = {
    "exchange": (Scripted(EXCHANGE.path, True, _number), _exchange),
    "stream": (Scripted(EXCHANGE.path, False, _number), _stream),
    "generate": (
        Scripted(
            "/antiphon.v1.SpeechService/Generate",
            False,
            lambda number: text("", number).SerializeToString(),
            before=started().SerializeToString(),
            after=finished().SerializeToString(),
            last_words=speech_pb2.GenerateResponse(error=_ERROR).SerializeToString(),
        ),
        _generating,
    ),
    "converse": (
        Scripted(
            "/antiphon.v1.SpeechService/Converse",
            True,
            _deleted,
            takes_first=True,
            before=converse_pb2.ConverseResponse(
                begun=converse_pb2.ConversationBegun()
            ).SerializeToString(),
        ),
        _conversing,
    ),
    "stage": (
        Scripted(
            "/antiphon.v1.StageService/RunSession",
            True,
            _opened,
            takes_first=True,
            last_words=session_pb2.SessionResponse(error=_ERROR).SerializeToString(),
        ),
        _on_stage,
    ),
}
"""Each kind of call: what its server sends, and how a client of either kind opens it."""
