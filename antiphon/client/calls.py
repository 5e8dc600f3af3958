"""What both clients share: calls as coroutines, which the blocking client runs at once.

What is asked, tried again and understood is written once, as coroutines over the protocols
below. The asyncio client's calls wait as coroutines do (`asyncio_channel.py`). Those of the
blocking client block instead and never suspend (`blocking_channel.py`), so that one step runs a
coroutine over them to its end (`now`).
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
"""Messages that one call holds until gRPC takes them; a sender waits for room."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A method of a service: "/package.Service/Name", and how its answers are read."""

    path: str
    request: type[Request]
    read: Callable[[bytes], Response]


class ReadCall(Protocol[ResponseOut]):
    """A running call whose answers are read. `idle_s` bounds each wait of its reader."""

    idle_s: float | None

    async def read(self) -> ResponseOut | None:
        """The next answer, None at the end. Raises the typed error of a call that fails."""
        ...

    def cancel(self) -> None:
        """End the call; reading it further raises `Cancelled`."""
        ...


class TwoWayCall(ReadCall[ResponseOut], Protocol[RequestIn, ResponseOut]):
    """A running call that is also written to."""

    async def write(self, request: RequestIn) -> None:
        """Send a message; waits for room. Raises what ended the call, if that is over."""
        ...

    def finish(self) -> None:
        """No message follows."""
        ...


class Pauser(Protocol):
    """Waits that can be ended from outside."""

    async def pause(self, seconds: float) -> None:
        """Wait. Raises `Cancelled` when `wake` was or is called."""
        ...

    @property
    def woken(self) -> bool:
        """Whether `wake` was called."""
        ...

    def wake(self) -> None:
        """End every pause, now and later."""
        ...


class Channel(Protocol):
    """A connection to a server. Calls of one that is closed raise `FailedPrecondition`."""

    @property
    def contact(self) -> Contact:
        """Whether the server has ever answered."""
        ...

    async def ask(
        self, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """One answer. Raises the typed error of a call that fails."""
        ...

    def stream(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        idle_s: float | None,
    ) -> ReadCall[Response]:
        """Start a call that is answered with many. See `exchange`."""
        ...

    def exchange(
        self, method: Method[Request, Response], timeout_s: float, idle_s: float | None
    ) -> TwoWayCall[Request, Response]:
        """Start a call with messages both ways.

        `timeout_s` is for the whole call, `idle_s` for each wait of a reader.
        """
        ...

    def pauser(self) -> Pauser:
        """For waits between calls; closing the channel ends them."""
        ...

    def check_open(self) -> None:
        """Raise `FailedPrecondition` if the channel was closed."""
        ...


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over blocking calls, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over blocking calls has suspended")


def closed_by_caller() -> Cancelled:
    """What reading a cancelled call raises."""
    return Cancelled("the answer was cancelled by its reader")


def client_closed() -> FailedPrecondition:
    """What the calls of a closed client raise."""
    return FailedPrecondition("the client is closed")


def silent(idle_s: float) -> DeadlineExceeded:
    """What a call is ended with that brings nothing for too long."""
    return DeadlineExceeded(f"the server has sent nothing for {idle_s:g} s (idle_timeout_s)")


def writing_ended() -> FailedPrecondition:
    """What writing to a call raises that is over, or was told that nothing follows."""
    return FailedPrecondition("nothing can be sent any more: the call is over")
