"""A process group of two ranks that moves bytes from the one to the other: NCCL, or Gloo on a CPU.

There is no global process group: a TCP store is the rendezvous. Neither library can take a
transfer back: what fails breaks the group, and the other side notices.

Everything here but `Lane.submit` and what is called `close` blocks.

Gloo joins on one more thread. When it times out while it waits for the other rank to connect, it
frees what its listener will still use if that rank connects late: a segmentation fault. So its
own timeout is long, and whoever waits for the thread gives up earlier; a group that is joined
after that is dropped.

NCCL must not have its watchdog, which ends the process of a rank whose peer has died: torch starts
none where waiting blocks, and then the thread that waits aborts and raises. Its transfers, and the
copies to and from the device, are on a stream of their own, for which no engine waits. Joining
cannot be interrupted, so it is begun when the other rank is known to come; the thread of one that
dies then is left behind.
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
# How long Gloo may take to join: longer than a rank can be late that still means to come.
JOIN_S = 600.0
# torch's, read when a group is made.
_NO_WATCHDOG = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
_environment = Lock()

Made = TypeVar("Made")


def library_for(device: str) -> str:
    """Whichever library moves tensors between processes with this device."""
    import torch

    on_cuda = torch.device(device).type == "cuda"
    return NCCL if on_cuda and torch.distributed.is_nccl_available() else GLOO


def c10d() -> Any:
    """`torch.distributed`: its stubs do not export what is used of it here."""
    import torch

    return torch.distributed


class Lane:
    """Blocking calls, one after the other, on a thread that does not keep the process from its end:
    a library may never return from one."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._closed = False

    def submit(self, call: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """What the call gives or raises: `RuntimeError` if the lane is closed before it begins."""
        outcome: Future[Made] = Future()

        def make() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                if self._closed:
                    raise RuntimeError("the process group has been left")
                outcome.set_result(call(*arguments))
            except BaseException as error:
                # Its traceback would keep the store's sockets for as long as anybody has the error.
                outcome.set_exception(error.with_traceback(None))

        if self._closed:
            make()
            return outcome
        self._calls.put(make)
        if not self._thread.ident:
            self._thread.start()
        return outcome

    def close(self) -> None:
        """Make no more calls; the one that runs goes on."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (make := self._calls.get()) is not None:
            make()


class _Joined(Protocol):
    """A library's group of both ranks. Transfers raise `RuntimeError`."""

    def send(self, blob: torch.Tensor) -> None:
        """To the consumer."""
        ...

    def receive(self, buffer: torch.Tensor) -> None:
        """From the producer."""
        ...

    def close(self) -> None:
        """Leave; transfers under way fail."""
        ...


class Group:
    """One rank; joins when it is first used, after the other one has come within `come_within`.

    `host` is the address that Gloo listens at.
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
        """Send bytes to the other rank. Raises `RuntimeError`."""
        self._group().send(blob)

    def receive(self, buffer: torch.Tensor) -> None:
        """Fill a buffer with what the other rank sends. Raises `RuntimeError`."""
        self._group().receive(buffer)

    def close(self) -> None:
        """Leave; the other rank's transfers fail."""
        if self._joined is not None:
            self._joined.close()
        # The store's sockets go with it, and this may be part of a cycle.
        self._joined, self._store, self._closed = None, None, True

    def let_go(self, store: Any) -> None:
        """End this rank's wait for the other one, by the same rendezvous; it must be closed."""
        store.set(_here(1 - self._rank), b"")

    def _group(self) -> _Joined:
        """The group, joined. Who has failed to once stays out: the store keeps stale addresses."""
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
        # Who has not even begun is waited for here, where a time-out leaves nothing behind.
        store.set(_here(self._rank), b"")
        store.wait([_here(1 - self._rank)], self._come_within or TIMEOUT)
        if self._closed:
            raise RuntimeError("nobody came before the process group was left")
        if library_for(self._device) == NCCL:
            return _Nccl(store, self._rank, self._device)
        return _Gloo(store, self._rank, self._host)


def _here(rank: int) -> str:
    """Where a rank says in the store that it joins."""
    return f"here/{rank}"


class _Gloo:
    """Between hosts' memory; who drops it has left it."""

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
        """Its connections end with the last reference, which nobody keeps."""
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
        # Without its traceback, which would keep the device, and so the listener.
        joining.set_exception(RuntimeError(str(error)))


class _Nccl:
    """Between devices, for bytes that are on the host."""

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
        """An abort takes as long as the library likes, also while another thread waits."""
        Thread(target=self._group.abort, name="collective abort", daemon=True).start()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Streams are each thread's own matter, and a thread's first is the engine's."""
        import torch

        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """NCCL's groups that are made here have no watchdog; others of the process are as ever."""
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
