"""Asynchronous copies between device and host payloads.

Outputs are copied to pinned memory on a separate stream. The engine's thread continues at once. Its
arrays may be read after the function that `ToHost.seal` returned has returned; the thread that
sends them waits for that, not the engine. Inputs are copied through pinned memory as well. The
engine's stream waits for them, and no thread does.

A batch is one copy, and each session gets a slice of the same array. Its staging slot is free again
when the last slice is gone, which is when the last chunk with one has been sent. Without a free
slot, torch copies synchronously and the engine waits. That is how a slow reader slows the engine,
and it cannot deadlock.

On a device without streams, the same code completes each copy before it returns. When a direction
is off, as it is by default on CPUs, nothing is copied unnecessarily.
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

# torch has no type annotations for these.
_cuda: Any = torch.cuda

UNIT_BYTES = 64 << 10

Wait = Callable[[], None]
"""Blocks until copies are complete, without holding the GIL."""


class Mark(Protocol):
    """A point in a stream's work, such as a `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether the point has been reached."""
        ...

    def synchronize(self) -> None:
        """Block until the point is reached."""
        ...


class Copies(Protocol):
    """Ordered copies between host and device, concurrent with the engine's work."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy that follows the device work submitted so far."""
        ...

    def mark(self) -> Mark:
        """Return a mark after the copies started so far."""
        ...

    def precede(self, mark: Mark) -> None:
        """Order device work submitted from now on after the mark."""
        ...


class _Done:
    """A mark that has been reached."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class NoStream:
    """A device whose copies are complete when they return."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy synchronously."""
        target.copy_(source)

    def mark(self) -> Mark:
        """Return a reached mark."""
        return _Done()

    def precede(self, mark: Mark) -> None:
        """Do nothing: copies are complete."""


class CudaStream:
    """A CUDA stream for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = _cuda.Stream(device)

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy. The tensors' device memory is not reused before it is complete."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        for each in (target, source):
            # "cuda" and "cuda:0" are the same device but do not compare equal.
            if each.device.type == self._device.type:
                each.record_stream(self._stream)

    def mark(self) -> Mark:
        """Record a new event."""
        event: torch.cuda.Event = _cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def precede(self, mark: Mark) -> None:
        """Let the engine's stream wait for the mark."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)


def copies_on(device: torch.device) -> Copies:
    """Return the copies of a device."""
    return CudaStream(device) if device.type == "cuda" else NoStream()


class Staging:
    """Host memory for copies in progress; pinned if there is a GPU.

    Slots are taken on one thread and returned on any.
    """

    def __init__(self, capacity: int, *, pinned: bool) -> None:
        self._slots = SlotAllocator(capacity, UNIT_BYTES)
        self._memory = torch.empty(capacity, dtype=torch.uint8, pin_memory=pinned)
        # A view may be collected during `take`, so returned slots are queued.
        self._returned: deque[int] = deque()

    @property
    def used(self) -> int:
        """Number of slots in use."""
        self._collect()
        return self._slots.taken

    def take(self, size: int) -> tuple[torch.Tensor, memoryview] | None:
        """Return a slot of `size` bytes as a tensor and a view; None if none is free.

        The slot is free again when the view and everything that views it are gone.
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
    """Copies an engine's outputs to the host. For the engine's thread.

    Without `staging` copies are synchronous. `waited` counts copies for which the engine had to
    wait.
    """

    def __init__(self, copies: Copies, staging: Staging | None) -> None:
        self._copies = copies
        self._staging = staging
        self._begun = False
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToHost:
        """Return the copies that a stage's configuration selects; synchronous on a CPU."""
        device = torch.device(config.device)
        return cls(copies_on(device), _staging(config, on=config.async_to_host))

    @classmethod
    def direct(cls) -> ToHost:
        """Return synchronous copies."""
        return cls(NoStream(), None)

    def copy(self, tensor: torch.Tensor) -> Array:
        """Return an array of the tensor's dtype and shape, to be filled; slices of it are views.

        Its values are valid after the function that the next `seal` returns has returned.
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
        """Return a mark after the copies since the last call; None if all were synchronous."""
        if not self._begun:
            return None
        self._begun = False
        return self._copies.mark()

    def seal(self) -> Wait | None:
        """Return a function that waits for the copies since the last call; None if they are
        complete."""
        mark = self.mark()
        return None if mark is None or mark.query() else mark.synchronize


class ToDevice:
    """Copies an engine's inputs to the device. For the engine's thread.

    Without `staging` copies are synchronous.
    """

    def __init__(self, device: torch.device, copies: Copies, staging: Staging | None) -> None:
        self._device = device
        self._copies = copies
        self._staging = staging
        self._under_way: deque[tuple[Mark, memoryview]] = deque()
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToDevice:
        """Return the copies that a stage's configuration selects; synchronous on a CPU."""
        device = torch.device(config.device)
        return cls(device, copies_on(device), _staging(config, on=config.async_to_device))

    @classmethod
    def direct(cls, device: torch.device) -> ToDevice:
        """Return synchronous copies."""
        return cls(device, NoStream(), None)

    def copy(self, array: Array) -> torch.Tensor:
        """Return the array's values on the device, for device work submitted from now on.

        With asynchronous copies, the array may be released at once.
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
    """Return a few values on the device, for work submitted from now on; on a CPU, arrays as they
    are.

    The copy to a GPU uses pinned memory. From pageable memory, the caller would wait until all
    earlier device work is done.
    """
    host = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def together_on_device(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Copy several arrays of 64-bit numbers to the device in one copy; see `on_device`."""
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
    """Return the tensor's values on the host in its own dtype, as numpy lacks bfloat16."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()


def host_tensor(array: Array) -> torch.Tensor:
    """Return the array as a tensor. torch does not support numpy's bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    known: np.dtype[Any] = host_array(torch.empty(0, dtype=dtype)).dtype
    return known


def _staging(config: StageConfig, *, on: bool) -> Staging | None:
    """Return pinned memory for one direction, None if it is off. Raises `InvalidArgument`."""
    if config.staging_bytes & (config.staging_bytes - 1):
        raise InvalidArgument(
            f"staging_bytes: {config.staging_bytes} is not a power of two", field="staging_bytes"
        )
    if not on or torch.device(config.device).type != "cuda":
        return None
    return Staging(config.staging_bytes, pinned=True)
