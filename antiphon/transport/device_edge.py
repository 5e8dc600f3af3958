"""Asynchronous copies between a device and payloads in host memory.

Output is copied to pinned memory on a separate stream, so the engine thread can continue
immediately. The arrays must not be read before the function returned by `ToHost.seal` has
completed. It is called by the thread that sends the arrays, so the engine doesn't have to wait for
it. Input is copied through pinned memory as well. Here, the engine's stream waits for the copies,
but no thread does.

A batch is copied all at once, and each session receives a slice of the same array. The staging slot
is released when the last slice is deleted, which happens once every chunk that contains one has
been sent. If no slot is free, torch copies synchronously and the engine waits. This means that a
slow reader slows the engine down, but can't cause a deadlock.

On a device without streams, the same code runs, but each copy is complete when the call returns. A
direction can also be disabled, which is the default on CPUs. In that case, nothing is copied
unnecessarily.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.transport.slot_allocator import SlotAllocator
from antiphon.values.chunk import Tensor as Array

# torch doesn't provide type annotations for this module.
_cuda: Any = torch.cuda

UNIT_BYTES = 64 << 10

Wait = Callable[[], None]
"""A function that blocks until the copies are complete. It doesn't hold the GIL while it waits."""


class Mark(Protocol):
    """A point in the work of a stream, similar to a `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether the stream has reached this point."""
        ...

    def synchronize(self) -> None:
        """Block until the stream has reached this point."""
        ...


class Copies(Protocol):
    """Copies between host and device. They are carried out in order, concurrently with the engine's
    work.
    """

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy that runs after all device work submitted so far."""
        ...

    def mark(self) -> Mark:
        """Return a mark that is reached once all copies started so far are complete."""
        ...

    def precede(self, mark: Mark) -> None:
        """Make all device work submitted from now on wait for the mark."""
        ...


class _Done:
    """A mark that has already been reached."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class NoStream:
    """A device on which copies are already complete when the call returns."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the data synchronously."""
        target.copy_(source)

    def mark(self) -> Mark:
        """Return a mark that has already been reached."""
        return _Done()

    def precede(self, mark: Mark) -> None:
        """Do nothing, because there is nothing to wait for."""


class CudaStream:
    """A CUDA stream that is used for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = _cuda.Stream(device)

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy. The tensors' device memory isn't reused until the copy is complete."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        for each in (target, source):
            # "cuda" and "cuda:0" refer to the same device, but they don't compare equal.
            if each.device.type == self._device.type:
                each.record_stream(self._stream)

    def mark(self) -> Mark:
        """Record a new event."""
        event: torch.cuda.Event = _cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def precede(self, mark: Mark) -> None:
        """Make the engine's stream wait for the mark."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)


def copies_on(device: torch.device) -> Copies:
    """Return the implementation of `Copies` for a device."""
    return CudaStream(device) if device.type == "cuda" else NoStream()


class Staging:
    """Host memory for copies in progress. It is pinned if there is a GPU.

    Slots must be taken on a single thread, but can be returned on any thread.
    """

    def __init__(self, capacity: int, *, pinned: bool) -> None:
        self._slots = SlotAllocator(capacity, UNIT_BYTES)
        self._memory = torch.empty(capacity, dtype=torch.uint8, pin_memory=pinned)
        # A view may be garbage collected while `take` is running, so returned slots are put in a
        # queue.
        self._returned: deque[int] = deque()

    @property
    def used(self) -> int:
        """The number of slots that are in use."""
        self._collect()
        return self._slots.taken

    def take(self, size: int) -> tuple[torch.Tensor, memoryview] | None:
        """Return a slot of `size` bytes as a tensor and a view, or None if no slot is free.

        The slot is returned automatically when the view and everything that refers to it have been
        deleted.
        """
        self._collect()
        offset = self._slots.take(size)
        if offset is None:
            return None
        place = self._memory[offset : offset + size]
        owner = place.numpy()
        weakref.finalize(owner, self._returned.append, offset).atexit = False
        return place, owner.data

    def _collect(self) -> None:
        while self._returned:
            self._slots.free(self._returned.popleft())


class ToHost:
    """Copies an engine's output to the host. Used on the engine thread.

    Without `staging`, all copies are synchronous. `waited` counts the copies for which the engine
    had to wait.
    """

    def __init__(self, copies: Copies, staging: Staging | None) -> None:
        self._copies = copies
        self._staging = staging
        self._begun = False
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToHost:
        """Return an instance that follows the stage's configuration. On a CPU, copies are
        synchronous.
        """
        device = torch.device(config.device)
        return cls(copies_on(device), _staging(config, on=config.copies.async_to_host))

    @classmethod
    def direct(cls) -> ToHost:
        """Return an instance whose copies are all synchronous."""
        return cls(NoStream(), None)

    def copy(self, tensor: torch.Tensor) -> Array:
        """Return an array with the tensor's dtype and shape, which will be filled later. Slices of
        the array are views.

        Its values are valid once the function returned by the next call of `seal` has completed.
        """
        size = tensor.numel() * tensor.element_size()
        if self._staging is None or not size:
            return host_array(tensor)
        if (taken := self._staging.take(size)) is None:
            self.waited += 1
            return host_array(tensor)
        place, view = taken
        self._copies.begin(place.view(tensor.dtype).view(tensor.shape), tensor.detach())
        self._begun = True
        return np.frombuffer(view, _numpy_dtype(tensor.dtype)).reshape(tensor.shape)

    def mark(self) -> Mark | None:
        """Return a mark that is reached after all copies since the previous call. Returns None if
        all of them were synchronous.
        """
        if not self._begun:
            return None
        self._begun = False
        return self._copies.mark()

    def seal(self) -> Wait | None:
        """Return a function that waits for all copies since the previous call. Returns None if they
        are already complete.
        """
        mark = self.mark()
        return None if mark is None or mark.query() else mark.synchronize


class ToDevice:
    """Copies an engine's input to the device. Used on the engine thread.

    Without `staging`, all copies are synchronous.
    """

    def __init__(self, device: torch.device, copies: Copies, staging: Staging | None) -> None:
        self._device = device
        self._copies = copies
        self._staging = staging
        self._under_way: deque[tuple[Mark, memoryview]] = deque()
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToDevice:
        """Return an instance that follows the stage's configuration. On a CPU, copies are
        synchronous.
        """
        device = torch.device(config.device)
        return cls(device, copies_on(device), _staging(config, on=config.copies.async_to_device))

    @classmethod
    def direct(cls, device: torch.device) -> ToDevice:
        """Return an instance whose copies are all synchronous."""
        return cls(device, NoStream(), None)

    def copy(self, array: Array) -> torch.Tensor:
        """Return the array's values on the device. All device work that is submitted from now on
        can use them.

        If copies are asynchronous, the array can be released immediately.
        """
        source = host_tensor(array)
        if self._staging is None or not array.nbytes:
            return source.to(self._device)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        if (taken := self._staging.take(array.nbytes)) is None:
            self.waited += 1
            return source.to(self._device)
        place, view = taken
        pinned = place.view(source.dtype).view(source.shape)
        pinned.copy_(source)
        target = torch.empty_like(source, device=self._device)
        self._copies.begin(target, pinned)
        mark = self._copies.mark()
        self._copies.precede(mark)
        self._under_way.append((mark, view))
        return target


def on_device(
    values: Sequence[float | tuple[int, ...]] | Array | torch.Tensor,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a small number of values as a tensor on the device. Work that is submitted from now on
    can use it. On a CPU, an array is not copied.

    For a GPU, the values are copied through pinned memory, because with pageable memory the caller
    would have to wait for all earlier device work.
    """
    host = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def together_on_device(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Copy several arrays of 64-bit numbers to the device in one transfer. Otherwise, this works
    like `on_device`.
    """
    if device.type == "cpu":
        return [torch.from_numpy(each) for each in arrays]
    flat = [np.ascontiguousarray(each).reshape(-1).view(np.int64) for each in arrays]
    packed = on_device(np.concatenate(flat), device)
    parts = torch.split(packed, [len(each) for each in flat])
    return [
        part.view(torch.from_numpy(each[:0]).dtype).view(each.shape)
        for part, each in zip(parts, arrays, strict=True)
    ]


def host_array(tensor: torch.Tensor) -> Array:
    """Return the tensor's values on the host in their original dtype. This includes bfloat16, which
    numpy doesn't support by itself.
    """
    host = tensor.detach().cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()


def host_tensor(array: Array) -> torch.Tensor:
    """Return the array as a tensor. This includes bfloat16 arrays, which torch doesn't accept from
    numpy.
    """
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    known: np.dtype[Any] = host_array(torch.empty(0, dtype=dtype)).dtype
    return known


def _staging(config: StageConfig, *, on: bool) -> Staging | None:
    """Return the pinned memory for one direction, or None if that direction is disabled. Raises
    `InvalidArgument` if the setting is not valid.
    """
    if config.copies.staging_bytes & (config.copies.staging_bytes - 1):
        raise InvalidArgument(
            f"copies.staging_bytes: {config.copies.staging_bytes} is not a power of two",
            field="copies.staging_bytes",
        )
    if not on or torch.device(config.device).type != "cuda":
        return None
    return Staging(config.copies.staging_bytes, pinned=True)
