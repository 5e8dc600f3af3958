"""The blocking implementation of the protocols in `calls.py`. It uses gRPC's own threads.

The coroutines in this module never suspend, so each of them completes in a single step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol
from weakref import WeakSet

import grpc

from antiphon.client.calls import (
    MOST_WAITING,
    Method,
    Request,
    Response,
    client_closed,
    closed_by_caller,
    silent,
    writing_ended,
)
from antiphon.client.connection import Contact, ServerTarget
from antiphon.client.endings import Ending, OneReader, decode
from antiphon.client.failures import call_error
from antiphon.client.idle_watch import NEVER, IdleWatch
from antiphon.errors import AntiphonError


class _ActiveCall(Protocol):
    """The parts of a gRPC call that this module uses. It returns encoded messages."""

    def __next__(self) -> bytes: ...

    def cancel(self) -> object: ...

    def is_active(self) -> bool: ...

    def code(self) -> grpc.StatusCode: ...

    def add_callback(self, callback: Callable[[], None]) -> bool: ...


class BlockingReadCall(Generic[Request, Response]):
    """Implements `calls.ReadCall`. It can be cancelled from any thread."""

    def __init__(
        self,
        call: _ActiveCall,
        method: Method[Request, Response],
        target: ServerTarget,
        idle_s: float | None,
        watch: IdleWatch,
    ) -> None:
        self._call = call
        self._method = method
        self._target = target
        self._ending = Ending()
        self._one_reader = OneReader()
        self._idle_s: float | None = None
        self.due_at = NEVER
        self._watch = watch
        self.idle_s = idle_s

    @property
    def idle_s(self) -> float | None:
        """The timeout in seconds for each wait for a message. Set it only while no thread is
        reading.
        """
        return self._idle_s

    @idle_s.setter
    def idle_s(self, idle_s: float | None) -> None:
        if idle_s == self._idle_s:
            return
        self._idle_s = idle_s
        if idle_s is not None:
            # The watch that was started for the previous value might check too late.
            self._watch.add(self, idle_s)

    async def read(self) -> Response | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call failed. Raises `FailedPrecondition` if another thread is reading.
        """
        with self._one_reader:
            if not self._ending.is_set:
                try:
                    message = self._read()
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
        if isinstance(self._call, grpc.RpcError):
            error.__cause__ = self._call
        self.fail(error)

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Cancel the call because of an error in what was received. Reading and writing afterwards
        raise this error, unless the end of the call has already been read. Returns the error that
        they raise, or this one if the call was completed.
        """
        ended = self._ending.fail(error)
        self._call.cancel()
        return ended

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        return not self._call.is_active()

    def give_up(self) -> None:
        """End the call because its idle timeout has expired."""
        if self._idle_s is not None:
            self.fail(silent(self._idle_s))

    def _read(self) -> Response | None:
        if self.idle_s is not None:
            self.due_at = self._watch.clock() + self.idle_s
        try:
            data = next(self._call, None)
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        finally:
            self.due_at = NEVER
        self._target.contact.made = True
        return None if data is None else decode(self._method, data)


class _Requests(Iterator[Request]):
    """The queue of outgoing messages. One of gRPC's threads consumes it."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._finished = self.closed = False

    def put(self, request: Request) -> bool:
        """Add a message to the queue, waiting if the queue is full.

        Returns False if `finish` or `close` has been called.
        """
        with self._changed:
            while len(self._waiting) >= MOST_WAITING and not (self.closed or self._finished):
                self._changed.wait()
            if self.closed or self._finished:
                return False
            self._waiting.append(request)
            self._changed.notify_all()
            return True

    def finish(self) -> None:
        """Stop accepting messages. Messages that are already queued are still sent."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """Discard all queued messages and stop accepting new ones."""
        with self._changed:
            self.closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def __next__(self) -> Request:
        with self._changed:
            while not (self._waiting or self.closed or self._finished):
                self._changed.wait()
            if not self._waiting:
                raise StopIteration
            self._changed.notify_all()
            return self._waiting.popleft()


class BlockingTwoWayCall(BlockingReadCall[Request, Response]):
    """Implements `calls.TwoWayCall`. One thread may write while another thread reads."""

    def __init__(
        self,
        call: _ActiveCall,
        requests: _Requests[Request],
        method: Method[Request, Response],
        target: ServerTarget,
        idle_s: float | None,
        watch: IdleWatch,
    ) -> None:
        super().__init__(call, method, target, idle_s, watch)
        self._requests = requests
        if not call.add_callback(requests.close):
            requests.close()

    async def write(self, request: Request) -> None:
        """Queue a message for sending, waiting if the queue is full. Raises the call's error if the
        call has ended.
        """
        if not self._ending.is_set and self._requests.put(request):
            return
        if self._ending.is_set:
            self._ending.check()
            raise writing_ended()
        ended = self._requests.closed and self._call.code() is not grpc.StatusCode.OK
        if ended and isinstance(self._call, grpc.RpcError):
            raise call_error(self._call, self._target) from self._call
        raise writing_ended()

    def finish(self) -> None:
        """Close the client's side of the call."""
        self._requests.finish()

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Cancel the call because of an error in what was received. Reading and writing afterwards
        raise this error, unless the end of the call has already been read. Returns the error that
        they raise, or this one if the call was completed.
        """
        ended = super().fail(error)
        self._requests.close()
        return ended


class BlockingPauser:
    """Implements `calls.Pauser`."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    async def pause(self, seconds: float) -> None:
        """Wait for the given time. Raises `Cancelled` if `wake` has been called or is called during
        the wait.
        """
        if self._woken.wait(seconds):
            raise closed_by_caller()

    @property
    def woken(self) -> bool:
        """Whether `wake` has been called."""
        return self._woken.is_set()

    def wake(self) -> None:
        """Interrupt the current wait and all future ones."""
        self._woken.set()


class BlockingChannel:
    """Implements `calls.Channel`. It is thread-safe."""

    def __init__(self, target: ServerTarget) -> None:
        self._target = target
        self._channel = (
            grpc.insecure_channel(target.address, target.options)
            if target.credentials is None
            else grpc.secure_channel(target.address, target.credentials, target.options)
        )
        self._watch = IdleWatch()
        self._closed = False
        self._pausers: WeakSet[BlockingPauser] = WeakSet()

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
        call: grpc.UnaryUnaryMultiCallable[Request, bytes] = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
        )
        try:
            with self._starting():
                data = call(request, timeout=timeout_s, metadata=self._target.metadata)
        except grpc.RpcError as failure:
            raise call_error(failure, self._target) from failure
        self._target.contact.made = True
        return decode(method, data)

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> BlockingReadCall[Request, Response]:
        """Start a server-streaming call."""
        self.check_open()
        call: grpc.UnaryStreamMultiCallable[Request, bytes] = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
        )
        with self._starting():
            started = call(request, timeout=timeout_s, metadata=self._target.metadata)
        return BlockingReadCall(started, method, self._target, idle_s, self._watch)

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> BlockingTwoWayCall[Request, Response]:
        """Start a bidirectional call."""
        self.check_open()
        requests: _Requests[Request] = _Requests()
        call: grpc.StreamStreamMultiCallable[Request, bytes] = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
        )
        with self._starting():
            started = call(requests, timeout=timeout_s, metadata=self._target.metadata)
        return BlockingTwoWayCall(started, requests, method, self._target, idle_s, self._watch)

    def pauser(self) -> BlockingPauser:
        """Return a pauser for the waits between calls. Closing the channel interrupts these
        waits.
        """
        pauser = BlockingPauser()
        self._pausers.add(pauser)
        return pauser

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._closed = True
        for pauser in list(self._pausers):
            pauser.wake()
        self._watch.close()
        self._channel.close()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Start a call within this context. Raises `FailedPrecondition` instead of gRPC's
        `ValueError` if another thread has closed the channel since `check_open`.
        """
        try:
            yield
        except ValueError:
            self.check_open()
            raise
