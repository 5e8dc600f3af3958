"""Calls that are written as coroutines and shared by both clients.

Requests, retries and decoding are implemented once, as coroutines that use the protocols below. The
calls of the asyncio client suspend as usual (`asyncio_channel.py`). The calls of the blocking
client block the thread and never suspend (`blocking_channel.py`), so `now` can run such a coroutine
to completion in a single step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from antiphon.client.connection import Contact
from antiphon.errors import Cancelled, DeadlineExceeded, FailedPrecondition

T = TypeVar("T")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
ResponseOut = TypeVar("ResponseOut", covariant=True)

MOST_WAITING = 32
"""The maximum number of messages that a call queues until gRPC sends them. Writers wait while the
queue is full.
"""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A service method, which consists of its path "/package.Service/Name" and a deserializer for
    its responses.
    """

    path: str
    request: type[Request]
    read: Callable[[bytes], Response]


class ReadCall(Protocol[ResponseOut]):
    """A running call whose responses can be read. `idle_s` limits each wait for a response, in
    seconds.
    """

    idle_s: float | None

    async def read(self) -> ResponseOut | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call failed.
        """
        ...

    def cancel(self) -> None:
        """Cancel the call. Reading from it afterwards raises `Cancelled`."""
        ...


class TwoWayCall(ReadCall[ResponseOut], Protocol[RequestIn, ResponseOut]):
    """A running call that can be both read from and written to."""

    async def write(self, request: RequestIn) -> None:
        """Queue a message for sending, and wait while the queue is full. Raises the call's error if
        it has ended.
        """
        ...

    def finish(self) -> None:
        """Close the client's side of the call."""
        ...


class Pauser(Protocol):
    """Waits that can be interrupted."""

    async def pause(self, seconds: float) -> None:
        """Wait for the given time. Raises `Cancelled` if `wake` has been called or is called during
        the wait.
        """
        ...

    @property
    def woken(self) -> bool:
        """Whether `wake` has been called."""
        ...

    def wake(self) -> None:
        """End the current wait and all future ones immediately."""
        ...


class Channel(Protocol):
    """A connection to a server. Calls on a closed channel raise `FailedPrecondition`."""

    @property
    def contact(self) -> Contact:
        """A record of whether the server has ever answered."""
        ...

    async def ask(
        self, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Make a unary call and return the response. Raises a typed error if the call fails."""
        ...

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> ReadCall[Response]:
        """Start a call with a stream of responses. The timeouts are the same as those of
        `exchange`.
        """
        ...

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> TwoWayCall[Request, Response]:
        """Start a bidirectional call.

        `timeout_s` limits the duration of the whole call, and `idle_s` limits each wait for a
        response.
        """
        ...

    def pauser(self) -> Pauser:
        """Return a pauser for waits between calls. Closing the channel also ends these waits."""
        ...

    def check_open(self) -> None:
        """Raise `FailedPrecondition` if the channel is closed."""
        ...


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that uses blocking calls and therefore never suspends. Returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over blocking calls has suspended")


def closed_by_caller() -> Cancelled:
    """Return the error that is raised when a cancelled call is read."""
    return Cancelled("the answer was cancelled by its reader")


def client_closed() -> FailedPrecondition:
    """Return the error that is raised for calls on a closed client."""
    return FailedPrecondition("the client is closed")


def silent(idle_s: float) -> DeadlineExceeded:
    """Return the error of a call whose idle timeout expired."""
    return DeadlineExceeded(f"the server has sent nothing for {idle_s:g} s (idle_timeout_s)")


def writing_ended() -> FailedPrecondition:
    """Return the error that is raised for writes to a call that has ended or has been finished."""
    return FailedPrecondition("nothing can be sent any more: the call is over")
