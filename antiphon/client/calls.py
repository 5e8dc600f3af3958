"""Calls as coroutines, shared by both clients.

Requests, retries and decoding are written once, as coroutines over the protocols below. The asyncio
client's calls suspend as usual (`asyncio_channel.py`). The blocking client's calls block instead
and never suspend (`blocking_channel.py`), so one step runs such a coroutine to its end (`now`).
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
"""Messages queued per call until gRPC sends them. Writers wait when the queue is full."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A service method: its path "/package.Service/Name" and the deserializer of its responses."""

    path: str
    request: type[Request]
    read: Callable[[bytes], Response]


class ReadCall(Protocol[ResponseOut]):
    """A running call with responses to read. `idle_s` bounds each wait of its reader."""

    idle_s: float | None

    async def read(self) -> ResponseOut | None:
        """Return the next response; None at the end. Raises the typed error of a failed call."""
        ...

    def cancel(self) -> None:
        """Cancel the call. Reading it further raises `Cancelled`."""
        ...


class TwoWayCall(ReadCall[ResponseOut], Protocol[RequestIn, ResponseOut]):
    """A running call that can also be written to."""

    async def write(self, request: RequestIn) -> None:
        """Send a message, waiting while the queue is full. Raises the error of an ended call."""
        ...

    def finish(self) -> None:
        """End the client's side of the call."""
        ...


class Pauser(Protocol):
    """Interruptible waits."""

    async def pause(self, seconds: float) -> None:
        """Wait. Raises `Cancelled` if `wake` was or is called."""
        ...

    @property
    def woken(self) -> bool:
        """Whether `wake` was called."""
        ...

    def wake(self) -> None:
        """End every pause, current and future."""
        ...


class Channel(Protocol):
    """A connection to a server. Calls on a closed one raise `FailedPrecondition`."""

    @property
    def contact(self) -> Contact:
        """Whether the server has ever answered."""
        ...

    async def ask(
        self, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Make a unary call. Raises the typed error of a failed call."""
        ...

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> ReadCall[Response]:
        """Start a call with streamed responses. See `exchange`."""
        ...

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> TwoWayCall[Request, Response]:
        """Start a bidirectional call.

        `timeout_s` bounds the whole call, `idle_s` each wait of a reader.
        """
        ...

    def pauser(self) -> Pauser:
        """Return a pauser for waits between calls. Closing the channel ends its waits."""
        ...

    def check_open(self) -> None:
        """Raise `FailedPrecondition` if the channel was closed."""
        ...


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine over blocking calls, which never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over blocking calls has suspended")


def closed_by_caller() -> Cancelled:
    """Return the error of reading a cancelled call."""
    return Cancelled("the answer was cancelled by its reader")


def client_closed() -> FailedPrecondition:
    """Return the error of calls on a closed client."""
    return FailedPrecondition("the client is closed")


def silent(idle_s: float) -> DeadlineExceeded:
    """Return the error of a call whose idle timeout expired."""
    return DeadlineExceeded(f"the server has sent nothing for {idle_s:g} s (idle_timeout_s)")


def writing_ended() -> FailedPrecondition:
    """Return the error of writing to a call that is over or finished."""
    return FailedPrecondition("nothing can be sent any more: the call is over")
