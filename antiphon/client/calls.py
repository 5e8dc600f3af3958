"""Protocols for network calls, which allow both clients to share one implementation.

Requests, retries and decoding are written only once, as coroutines that use these protocols. In the
asyncio client, the calls suspend as usual (`asyncio_channel.py`). In the blocking client, they
block the thread instead of suspending (`blocking_channel.py`), so `now` can run such a coroutine to
completion in a single step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from antiphon.client.connection import Contact
from antiphon.errors import AntiphonError, Cancelled, DeadlineExceeded, FailedPrecondition

T = TypeVar("T")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
ResponseOut = TypeVar("ResponseOut", covariant=True)

MOST_WAITING = 32
"""The maximum number of messages waiting for gRPC to send them. While the queue is full, writers
have to wait.
"""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A service method, given by a path such as "/package.Service/Name" and a deserializer for its
    responses.
    """

    path: str
    request: type[Request]
    read: Callable[[bytes], Response]


class ReadCall(Protocol[ResponseOut]):
    """A running call whose responses can be read. `idle_s` is the maximum number of seconds to wait
    for each response.

    All responses that the server has sent before it ended the call are read first, in their order.
    After that, the server's end is read. Further reads end in the same way.
    """

    idle_s: float | None

    async def read(self) -> ResponseOut | None:
        """Return the next response, or None at the end of the stream. Raises a typed error if the
        call failed. Raises `FailedPrecondition` if another task or thread is reading.
        """
        ...

    def cancel(self) -> None:
        """Cancel the call. Reading from it afterwards raises `Cancelled`, unless its end has been
        read before.
        """
        ...

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Cancel the call because of an error in what was received. Reading and writing afterwards
        raise this error, unless the end of the call has already been read. Returns the error that
        they raise, or this one if the call was completed.
        """
        ...


class TwoWayCall(ReadCall[ResponseOut], Protocol[RequestIn, ResponseOut]):
    """A running call that supports both reading and writing."""

    async def write(self, request: RequestIn) -> None:
        """Queue a message for sending, waiting if the queue is full. Raises the call's error if the
        call has ended.
        """
        ...

    def finish(self) -> None:
        """Close the client's side of the call."""
        ...


class Pauser(Protocol):
    """Waits for a given time. The wait can be interrupted."""

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
        """Interrupt the current wait and all future ones."""
        ...


class Channel(Protocol):
    """A connection to a server. Calls on a closed channel raise `FailedPrecondition`."""

    @property
    def contact(self) -> Contact:
        """Records whether the server has ever responded."""
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
        """Start a server-streaming call. The timeouts have the same meaning as in `exchange`."""
        ...

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> TwoWayCall[Request, Response]:
        """Start a bidirectional call.

        `timeout_s` limits the duration of the entire call, and `idle_s` limits each wait for a
        response.
        """
        ...

    def pauser(self) -> Pauser:
        """Return a pauser for the waits between calls. Closing the channel interrupts these
        waits.
        """
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
    """Return the error that is raised when reading from a cancelled call."""
    return Cancelled("the answer was canceled while it was being read")


def client_closed() -> FailedPrecondition:
    """Return the error that is raised when a closed client is used."""
    return FailedPrecondition("the client is closed")


def silent(idle_s: float) -> DeadlineExceeded:
    """Return the error for a call whose idle timeout expired."""
    return DeadlineExceeded(f"the server has not sent anything for {idle_s:g} s (idle_timeout_s)")


def writing_ended() -> FailedPrecondition:
    """Return the error that is raised when writing to a call that is over."""
    return FailedPrecondition("nothing more can be sent, because the call has ended")
