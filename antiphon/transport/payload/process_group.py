"""A process group of two ranks, in which one rank sends bytes to the other. It uses NCCL, or Gloo
on a CPU.

There is no global process group. A TCP store serves as the rendezvous. Neither library is able to
cancel a transfer, so any failure breaks the group, which the other side notices. All functions in
this module block, except for `Lane.submit` and the `close` methods.

Gloo joins on an additional thread. If Gloo's wait for the other rank times out, it frees memory
that its listener still uses. If the rank connects after that, the process crashes with a
segmentation fault. For this reason, Gloo's own timeout is long, and the caller stops waiting before
it expires. If the group is joined after that, it is dropped.

NCCL has to run without its watchdog, which would end the process of a rank whose peer has died.
torch doesn't start a watchdog in blocking-wait mode. In this mode, the waiting thread aborts the
operation and raises an error. Transfers use a separate stream, and so do copies to and from the
device. No engine has to wait for either of them. Joining can't be interrupted, so it starts only
once the other rank is known to join. If that rank dies at this point, the thread keeps waiting and
is abandoned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

NCCL, GLOO = "nccl", "gloo"
PRODUCER, CONSUMER = 0, 1
TIMEOUT = timedelta(seconds=5)
# Gloo's timeout for joining, in seconds. It is longer than any delay of a rank that still intends
# to join.
JOIN_S = 600.0
# Environment variables that torch reads when it creates a group.
_NO_WATCHDOG = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
_environment = Lock()

Made = TypeVar("Made")


def library_for(device: str) -> str:
    """Return the library for transfers between processes on this type of device."""
    import torch

    on_cuda = torch.device(device).type == "cuda"
    return NCCL if on_cuda and torch.distributed.is_nccl_available() else GLOO


def c10d() -> Any:
    """Return `torch.distributed`. Its type stubs don't export the names that are used here."""
    import torch

    return torch.distributed


class Lane:
    """Runs blocking calls in order on a daemon thread.

    A library call may never return. If that happens, a daemon thread doesn't keep the process from
    exiting.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._closed = False

    def submit(self, call: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """Return a future for the result of the call. If the lane is closed before the call runs,
        the future raises `RuntimeError`.
        """
        outcome: Future[Made] = Future()

        def make() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                if self._closed:
                    raise RuntimeError("the process group has been left")
                outcome.set_result(call(*arguments))
            except BaseException as error:
                # Drop the traceback. Otherwise, the store's sockets would stay open for as long as
                # the error exists.
                outcome.set_exception(error.with_traceback(None))

        if self._closed:
            make()
            return outcome
        self._calls.put(make)
        if not self._thread.ident:
            self._thread.start()
        return outcome

    def close(self) -> None:
        """Don't run any more calls. If a call is in progress, it continues."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (make := self._calls.get()) is not None:
            make()


class _Joined(Protocol):
    """A group that both ranks have joined, using one of the libraries. If a transfer fails, it
    raises `RuntimeError`.
    """

    def send(self, blob: torch.Tensor) -> None:
        """Send to the consumer."""
        ...

    def receive(self, buffer: torch.Tensor) -> None:
        """Receive from the producer."""
        ...

    def close(self) -> None:
        """Leave the group. Any transfers in progress fail."""
        ...


class Group:
    """One rank of a group. It joins when it is first used, after the other rank has arrived within
    `come_within` seconds.

    `host` is the address on which Gloo listens.
    """

    def __init__(
        self, store: Any, rank: int, device: str, host: str, come_within: timedelta | None = None
    ) -> None:
        self._store = store
        self._rank = rank
        self._device = device
        self._host = host
        self._come_within = come_within
        self._joined: _Joined | None = None
        self._closed = False

    def send(self, blob: torch.Tensor) -> None:
        """Send bytes to the other rank. Raises `RuntimeError` if the transfer fails."""
        self._group().send(blob)

    def receive(self, buffer: torch.Tensor) -> None:
        """Receive from the other rank until the buffer is full. Raises `RuntimeError` if the
        transfer fails.
        """
        self._group().receive(buffer)

    def close(self) -> None:
        """Leave the group, which makes the other rank's transfers fail."""
        if self._joined is not None:
            self._joined.close()
        # Drop the store, which closes its sockets. This object may be part of a reference cycle, so
        # the sockets might otherwise stay open.
        self._joined, self._store, self._closed = None, None, True

    def let_go(self, store: Any) -> None:
        """Stop this rank from waiting for the other one, by announcing the other rank in the same
        store. The group must be closed first.
        """
        store.set(_here(1 - self._rank), b"")

    def _group(self) -> _Joined:
        """Join the group if necessary and return it. If joining fails, it can't be tried again,
        because the store still contains addresses that are no longer valid.
        """
        joined, store = self._joined, self._store
        if self._closed or store is None:
            raise RuntimeError("the process group has been left")
        if joined is None:
            try:
                joined = self._join(store)
            except RuntimeError:
                self.close()
                raise
            if self._closed:
                joined.close()
                raise RuntimeError("the process group was left while it was joined")
            self._joined = joined
        return joined

    def _join(self, store: Any) -> _Joined:
        # Wait here until the other rank has started. If this times out, nothing needs to be cleaned
        # up.
        store.set(_here(self._rank), b"")
        store.wait([_here(1 - self._rank)], self._come_within or TIMEOUT)
        if self._closed:
            raise RuntimeError("no process joined before the process group was left")
        if library_for(self._device) == NCCL:
            return _Nccl(store, self._rank, self._device)
        return _Gloo(store, self._rank, self._host)


def _here(rank: int) -> str:
    """Return the store key with which a rank announces that it is joining."""
    return f"here/{rank}"


class _Gloo:
    """A Gloo group between the memory of two hosts. A process leaves the group when the last
    reference to it is dropped.
    """

    def __init__(self, store: Any, rank: int, host: str) -> None:
        joining: Future[Any] = Future()
        arguments = (joining, store, rank, host)
        Thread(target=_join_gloo, args=arguments, name="collective join", daemon=True).start()
        try:
            self._group: Any = joining.result(TIMEOUT.total_seconds())
        except TimeoutError:
            raise RuntimeError("the other rank stopped while it joined") from None

    def send(self, blob: torch.Tensor) -> None:
        self._made().send([blob], CONSUMER, 0).wait(TIMEOUT)

    def receive(self, buffer: torch.Tensor) -> None:
        self._made().recv([buffer], PRODUCER, 0).wait(TIMEOUT)

    def close(self) -> None:
        self._group = None

    def _made(self) -> Any:
        """Return the group. Don't store it, because its connections are closed only when the last
        reference to it is dropped.
        """
        if (group := self._group) is None:
            raise RuntimeError("the process group has been left")
        return group


def _join_gloo(joining: Future[Any], store: Any, rank: int, host: str) -> None:
    kind = c10d().ProcessGroupGloo
    options = kind._Options()
    options._timeout = timedelta(seconds=JOIN_S)
    try:
        options._devices = [kind.create_device(hostname=host)]
        joining.set_result(kind(store, rank, 2, options))
    except Exception as error:
        # Drop the traceback. Otherwise, it would keep the device and its listener alive.
        joining.set_exception(RuntimeError(str(error)))


class _Nccl:
    """An NCCL group between two devices, which transfers bytes from and to host memory."""

    def __init__(self, store: Any, rank: int, device: str) -> None:
        import torch

        make_stream: Any = torch.cuda.Stream
        self._device = device
        self._stream = make_stream(device)
        kind = c10d().ProcessGroupNCCL
        options = kind.Options()
        options._timeout = TIMEOUT
        with self._on_stream(), _without_watchdog():
            self._group = kind(store, rank, 2, options)

    def send(self, blob: torch.Tensor) -> None:
        with self._on_stream():
            self._group.send([blob.to(self._device)], CONSUMER, 0).wait(TIMEOUT)

    def receive(self, buffer: torch.Tensor) -> None:
        import torch

        with self._on_stream():
            there = torch.empty_like(buffer, device=self._device)
            self._group.recv([there], PRODUCER, 0).wait(TIMEOUT)
            buffer.copy_(there)

    def close(self) -> None:
        """Abort the group on another thread, because this may take arbitrarily long."""
        Thread(target=self._group.abort, name="collective abort", daemon=True).start()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use this group's stream. The current stream is a property of the thread and defaults to
        the one that the engine uses.
        """
        import torch

        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Within this context, create NCCL groups without a watchdog."""
    with _environment:
        before = {name: os.environ.get(name) for name in _NO_WATCHDOG}
        os.environ.update(_NO_WATCHDOG)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
