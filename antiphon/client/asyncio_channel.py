"""The asyncio implementation of the protocols in `calls.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Generic, NoReturn, Protocol
from weakref import WeakSet

import grpc

from antiphon.client.calls import (
    MOST_WAITING,
    Method,
    Request,
    Response,
    client_closed,
    closed_by_caller,
    now,
    silent,
    writing_ended,
)
from antiphon.client.connection import Contact, ServerTarget
from antiphon.client.endings import Ending, OneReader, decode
from antiphon.client.failures import call_error
from antiphon.errors import AntiphonError
from antiphon.wire.status import ended_while_sending

_OWN_OPERATION = "execute_batch"
"""A part of the debug string of a status that grpc.aio has set because an operation failed."""


_FREED_WITHIN_S = 1.0


class _Readable(Protocol):
    """A call that returns encoded messages, and `grpc.aio.EOF` after the last one."""

    async def read(self) -> bytes | object: ...

    def cancel(self) -> bool: ...


class AsyncioReadCall(Generic[Request, Response]):
    """Implements `calls.ReadCall`. Cancelling a task while it reads also cancels the call."""

    def __init__(
        self,
        call: _Readable,
        method: Method[Request, Response],
        target: ServerTarget,
        idle_s: float | None,
    ) -> None:
        self._call = call
        self._method = method
        self._target = target
        self._ending = Ending()
        self._one_reader = OneReader()
        self.idle_s = idle_s

    async def read(self) -> Response | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call has failed. Raises `FailedPrecondition` if another task is reading.
        """
        with self._one_reader:
            if not self._ending.is_set:
                try:
                    message = await self._read()
                except AntiphonError as error:
                    self.fail(error)
                else:
                    if message is not None:
                        return message
                    self._ending.set(None)
        self._ending.check()
        return None

    def cancel(self) -> None:
        """Cancel the call. Reading from it afterwards raises `Cancelled`, unless its end has been
        read before.
        """
        error = closed_by_caller()
        # As if a reader had been waiting: this is what grpc raises for it.
        error.__cause__ = asyncio.CancelledError()
        self.fail(error)

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Cancel the call because of an error in what was received. Reading and writing afterwards
        raise this error, unless the end of the call has already been read. Returns the error that
        they raise, or this one if the call was completed.
        """
        ended = self._ending.fail(error)
        self._call.cancel()
        return ended

    async def freed(self) -> None:
        """Wait until nothing of a call that was cancelled is running any more."""

    async def _read(self) -> Response | None:
        idle_s = self.idle_s
        try:
            if idle_s is None:
                data = await self._call.read()
            else:
                data = await self._read_in_time(idle_s)
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        except asyncio.CancelledError as cancelled:
            # grpc raises this error both when the call is cancelled and when the task is cancelled.
            if _task_is_cancelled():
                self.cancel()
                raise
            raise closed_by_caller() from cancelled
        self._target.contact.made = True
        return decode(self._method, data) if isinstance(data, bytes) else None

    async def _read_in_time(self, idle_s: float) -> bytes | object:
        try:
            async with asyncio.timeout(idle_s):
                return await self._call.read()
        except TimeoutError:
            raise silent(idle_s) from None


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _ServersEnd:
    """Reads a bidirectional call to the end that the server has given it.

    If a message can't be sent because the server has ended the call, grpc.aio sets a status of its
    own. `call.read` then raises that status and skips the messages that have already arrived,
    although the last of them may contain the reason. The call's iterator doesn't skip any. Once
    they have been read, grpc.aio sets the status that the server has sent.

    `sending_failed` is called in the first case, and `ended` when the server's status is known.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, bytes],
        sending_failed: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._call = call
        self._messages = aiter(call)
        self._reading: asyncio.Task[bytes | None] | None = None
        self._sending_failed = sending_failed
        self._ended = ended
        self._status: asyncio.Future[grpc.aio.AioRpcError] = (
            asyncio.get_running_loop().create_future()
        )
        call.add_done_callback(self._status_set)

    async def read(self) -> bytes | object:
        """Return the next message, or `grpc.aio.EOF` after the last one. Raises the status that the
        server has sent, and `CancelledError` if the call has been cancelled.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_message())
        # A generator that is cancelled ends, but `discard` may have to read on.
        message = await asyncio.shield(self._reading)
        self._reading = None
        if message is not None:
            return message
        status = await self.status()
        if status.code() is not grpc.StatusCode.OK:
            raise status
        return grpc.aio.EOF

    def cancel(self) -> bool:
        """Cancel the call."""
        return self._call.cancel()

    @property
    def is_known(self) -> bool:
        """Whether the server's status is known."""
        return self._status.done()

    async def status(self) -> grpc.aio.AioRpcError:
        """Wait for the status that the server has sent, which can also be OK. It follows after the
        last message has been read.
        """
        return await asyncio.shield(self._status)

    async def discard(self) -> None:
        """Read and discard what has arrived. grpc.aio doesn't cancel a call for which it has set a
        status of its own, so this is the only way to free it.
        """
        with suppress(grpc.RpcError):
            while await self.read() is not grpc.aio.EOF:
                pass

    async def stop_reading(self) -> None:
        """Cancel a read that its caller has left. Nothing can be read afterwards."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_message(self) -> bytes | None:
        try:
            return await anext(self._messages, None)
        except grpc.aio.AioRpcError:
            return None

    def _status_set(self, call: grpc.aio.StreamStreamCall[Any, bytes]) -> None:
        # gRPC calls this each time it sets a status, so none of these coroutines has to wait.
        status = grpc.aio.AioRpcError(
            now(call.code()),
            now(call.initial_metadata()),
            now(call.trailing_metadata()),
            details=now(call.details()),
        )
        # A server can send the same status as grpc.aio sets, but not with the name of an operation.
        is_own = _OWN_OPERATION in (now(call.debug_error_string()) or "")  # type: ignore[attr-defined]
        if is_own and ended_while_sending(status):
            self._sending_failed()
        elif not self._status.done():
            self._status.set_result(status)
            self._ended()


class AsyncioTwoWayCall(AsyncioReadCall[Request, Response]):
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
        start: grpc.aio.StreamStreamMultiCallable[Request, bytes] = channel.stream_stream(
            method.path, request_serializer=method.request.SerializeToString
        )
        call = start(self._requests(), timeout=timeout_s, metadata=target.metadata)
        self._servers_end = _ServersEnd(call, self._discard, self._close)
        self._loop = asyncio.get_running_loop()
        self._discarding: asyncio.Task[None] | None = None
        super().__init__(self._servers_end, method, target, idle_s)

    async def read(self) -> Response | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call has failed. Raises `FailedPrecondition` if another task is reading.
        """
        try:
            return await super().read()
        finally:
            self._free()

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
            await self._raise_end()
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

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Cancel the call because of an error in what was received. Reading and writing afterwards
        raise this error, unless the end of the call has already been read. Returns the error that
        they raise, or this one if the call was completed.
        """
        ended = super().fail(error)
        self._close()
        self._free()
        return ended

    async def _requests(self) -> AsyncIterator[Request]:
        # The call may end while gRPC is sending a message, so this is checked again after each.
        while not self._closed:
            if self._waiting:
                request = self._waiting.popleft()
                self._room.set()
                yield request
            elif self._finished:
                return
            else:
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

    def _free(self) -> None:
        """Free a call that the caller has left and that grpc.aio can't cancel."""
        if not self._ending.is_set or self._servers_end.is_known or self._one_reader.is_reading:
            return
        if self._discarding is None and not self._loop.is_closed():
            self._discarding = self._loop.create_task(self._servers_end.discard())

    async def freed(self) -> None:
        """Wait until nothing of a call that was cancelled is running any more."""
        if self._discarding is None:
            return
        # All that is discarded has already arrived.
        _, running = await asyncio.wait([self._discarding], timeout=_FREED_WITHIN_S)
        if running:
            self._discarding.cancel()
            await asyncio.wait(running)
            await self._servers_end.stop_reading()

    async def _raise_end(self) -> NoReturn:
        """Raise the error for a message that can't be sent, because the call has ended."""
        if self._ending.is_set:
            self._ending.check()
            raise writing_ended()
        status = await self._servers_end.status()
        if status.code() is grpc.StatusCode.OK:
            raise writing_ended()
        raise call_error(status, self._target)


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
        self._calls: WeakSet[AsyncioReadCall[Any, Any]] = WeakSet()

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
        call: grpc.aio.UnaryUnaryMultiCallable[Request, bytes] = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
        )
        try:
            data = await call(request, timeout=timeout_s, metadata=self._target.metadata)
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        except asyncio.CancelledError as cancelled:
            if _task_is_cancelled():
                raise
            raise closed_by_caller() from cancelled
        self._target.contact.made = True
        return decode(method, data)

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> AsyncioReadCall[Request, Response]:
        """Start a server-streaming call."""
        self.check_open()
        call: grpc.aio.UnaryStreamMultiCallable[Request, bytes] = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
        )
        started = call(request, timeout=timeout_s, metadata=self._target.metadata)
        reading = AsyncioReadCall(started, method, self._target, idle_s)
        self._calls.add(reading)
        return reading

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> AsyncioTwoWayCall[Request, Response]:
        """Start a bidirectional call."""
        self.check_open()
        call = AsyncioTwoWayCall(self._channel, method, self._target, timeout_s, idle_s)
        self._calls.add(call)
        return call

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
        # grpc.aio doesn't cancel a call for which it has set a status of its own.
        for call in list(self._calls):
            call.cancel()
        await self._channel.close()
        for call in list(self._calls):
            await call.freed()
