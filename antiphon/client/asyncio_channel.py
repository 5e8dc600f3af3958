"""The asyncio implementation of the protocols in `calls.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol
from weakref import WeakSet

import grpc

from antiphon.client.calls import (
    MOST_WAITING,
    Method,
    Request,
    Response,
    ResponseOut,
    client_closed,
    closed_by_caller,
    now,
    silent,
    writing_ended,
)
from antiphon.client.connection import Contact, ServerTarget
from antiphon.client.failures import call_error
from antiphon.errors import AntiphonError
from antiphon.wire.status import ended_while_sending


class _Readable(Protocol[ResponseOut]):
    async def read(self) -> ResponseOut | object: ...

    def cancel(self) -> bool: ...


class AsyncioReadCall(Generic[Response]):
    """Implements `calls.ReadCall`. Cancelling a task while it reads also cancels the call."""

    def __init__(
        self, call: _Readable[Response], target: ServerTarget, idle_s: float | None
    ) -> None:
        self._call = call
        self._target = target
        self.idle_s = idle_s

    async def read(self) -> Response | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call has failed.
        """
        idle_s = self.idle_s
        if idle_s is None:
            return await self._read()
        try:
            async with asyncio.timeout(idle_s):
                return await self._read()
        except TimeoutError:
            raise silent(idle_s) from None

    def cancel(self) -> None:
        """Cancel the call. Reading from it afterwards raises `Cancelled`."""
        self._call.cancel()

    async def _read(self) -> Response | None:
        try:
            message = await self._call.read()
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        except asyncio.CancelledError as cancelled:
            # grpc raises this error both when the call is cancelled and when the task is cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise closed_by_caller() from cancelled
        self._target.contact.made = True
        return None if message is grpc.aio.EOF else message  # type: ignore[return-value]


class _ServersEnd(Generic[Request, Response]):
    """Reads a bidirectional call to the end that the server has given it.

    If a message can't be sent because the server has ended the call, grpc.aio sets a status of its
    own. `call.read` then raises that status and skips the messages that have already arrived,
    although the last of them may contain the reason. The call's iterator doesn't skip any. Once
    they have been read, grpc.aio sets the status that the server has sent.

    `sending_failed` is called in the first case, and `ended` when the server's status is known.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Request, Response],
        sending_failed: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._call = call
        self._messages = aiter(call)
        self._sending_failed = sending_failed
        self._ended = ended
        self._cancelled = False
        self._status: asyncio.Future[grpc.aio.AioRpcError] = (
            asyncio.get_running_loop().create_future()
        )
        call.add_done_callback(self._status_set)

    async def read(self) -> Response | object:
        """Return the next message, or `grpc.aio.EOF` after the last one. Raises the status that the
        server has sent, and `CancelledError` if the call has been cancelled.
        """
        if self._cancelled:
            raise asyncio.CancelledError
        try:
            message = await anext(self._messages, None)
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        except grpc.aio.AioRpcError:
            message = None
        if message is not None:
            return message
        status = await self.status()
        if status.code() is not grpc.StatusCode.OK:
            raise status
        return grpc.aio.EOF

    def cancel(self) -> bool:
        """Cancel the call."""
        self._cancelled = True
        return self._call.cancel()

    async def status(self) -> grpc.aio.AioRpcError:
        """Wait for the status that the server has sent, which can also be OK. It follows after the
        last message has been read.
        """
        return await asyncio.shield(self._status)

    def _status_set(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        # gRPC calls this each time it sets a status, so none of these coroutines has to wait.
        status = grpc.aio.AioRpcError(
            now(call.code()),
            now(call.initial_metadata()),
            now(call.trailing_metadata()),
            details=now(call.details()),
        )
        if ended_while_sending(status):
            self._sending_failed()
        elif not self._status.done():
            self._status.set_result(status)
            self._ended()


class AsyncioTwoWayCall(AsyncioReadCall[Response], Generic[Request, Response]):
    """Implements `calls.TwoWayCall`. If a task is cancelled while it is writing, the call isn't
    affected.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        method: Method[Request, Response],
        target: ServerTarget,
        timeout_s: float,
        idle_s: float | None,
    ) -> None:
        self._waiting: deque[Request] = deque()
        self._closed = self._finished = self._unsendable = False
        self._more, self._room = asyncio.Event(), asyncio.Event()
        call = channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.read,
        )(self._requests(), timeout=timeout_s, metadata=target.metadata)
        self._servers_end = _ServersEnd(call, self._discard, self._close)
        super().__init__(self._servers_end, target, idle_s)

    async def write(self, request: Request) -> None:
        """Queue a message for sending, waiting if the queue is full. Raises the call's error if the
        call has ended.

        If the server has ended the call, but its messages have not been read yet, the error is not
        known. In this case, `request` is discarded.
        """
        while len(self._waiting) >= MOST_WAITING and not self._closed and not self._finished:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise await self._why()
        if self._finished:
            raise writing_ended()
        if not self._unsendable:
            self._waiting.append(request)
            self._more.set()

    def finish(self) -> None:
        """Close the client's side of the call."""
        self._finished = True
        self._more.set()
        self._room.set()

    async def _requests(self) -> AsyncIterator[Request]:
        while not self._closed:
            while self._waiting:
                request = self._waiting.popleft()
                self._room.set()
                yield request
            if self._finished:
                return
            self._more.clear()
            await self._more.wait()

    def _discard(self) -> None:
        self._unsendable = True
        self._waiting.clear()
        self._room.set()

    def _close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._more.set()
        self._room.set()

    async def _why(self) -> AntiphonError:
        """Return the error that ended the call."""
        status = await self._servers_end.status()
        if status.code() is grpc.StatusCode.OK:
            return writing_ended()
        return call_error(status, self._target)


class AsyncioPauser:
    """Implements `calls.Pauser`."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Wait for the given time. Raises `Cancelled` if `wake` has been called or is called during
        the wait.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        raise closed_by_caller()

    @property
    def woken(self) -> bool:
        """Whether `wake` has been called."""
        return self._woken.is_set()

    def wake(self) -> None:
        """Interrupt the current wait and all future ones."""
        self._woken.set()


class AsyncioChannel:
    """Implements `calls.Channel`. Create it inside a running event loop."""

    def __init__(self, target: ServerTarget) -> None:
        self._target = target
        self._channel = (
            grpc.aio.insecure_channel(target.address, target.options)
            if target.credentials is None
            else grpc.aio.secure_channel(target.address, target.credentials, target.options)
        )
        self._closed = False
        self._pausers: WeakSet[AsyncioPauser] = WeakSet()

    @property
    def contact(self) -> Contact:
        """Records whether the server has ever responded."""
        return self._target.contact

    def check_open(self) -> None:
        """Raise `FailedPrecondition` if the channel is closed."""
        if self._closed:
            raise client_closed()

    async def ask(
        self, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Make a unary call and return the response. Raises a typed error if the call fails."""
        self.check_open()
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.read,
        )
        try:
            response = await call(request, timeout=timeout_s, metadata=self._target.metadata)
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        self._target.contact.made = True
        return response

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> AsyncioReadCall[Response]:
        """Start a server-streaming call."""
        self.check_open()
        call = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.read,
        )
        started = call(request, timeout=timeout_s, metadata=self._target.metadata)
        return AsyncioReadCall(started, self._target, idle_s)

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> AsyncioTwoWayCall[Request, Response]:
        """Start a bidirectional call."""
        self.check_open()
        return AsyncioTwoWayCall(self._channel, method, self._target, timeout_s, idle_s)

    def pauser(self) -> AsyncioPauser:
        """Return a pauser for the waits between calls. Closing the channel interrupts these
        waits.
        """
        pauser = AsyncioPauser()
        self._pausers.add(pauser)
        return pauser

    async def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._closed = True
        for pauser in list(self._pausers):
            pauser.wake()
        await self._channel.close()
