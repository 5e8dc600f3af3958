"""Between a device and the host's payloads, beside the engine's work.

Outputs are copied on a stream of their own into pinned memory. The engine's thread
goes on at once with arrays that may be read when what `ToHost.seal` returned has
ended; whoever hands them on waits for that, not the engine. Inputs go the other way
through pinned memory of their own; the engine's stream waits for them, no thread does.

The copies of a batch are one copy: each session gets a slice of the same array, and
its place is free again when the last slice is gone, which is when the last chunk with
one has been sent. When there is no place, a copy is made as torch makes it, and the
engine waits for it: that is how a slow reader slows the engine, and nothing deadlocks.

A device without streams takes the same way; its copies are done when they return.
Where a direction is off, and on CPUs by default, nothing is copied that need not be.
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

# torch does not say what these take.
_cuda: Any = torch.cuda

UNIT_BYTES = 64 << 10

Wait = Callable[[], None]
"""Returns when copies are complete; blocks without the interpreter's lock."""


class Mark(Protocol):
    """A point in a stream's work: a `torch.cuda.Event`, or that of a device without streams."""

    def query(self) -> bool:
        """Whether it has been reached."""
        ...

    def synchronize(self) -> None:
        """Wait until it is reached."""
        ...


class Copies(Protocol):
    """Copies between host and device, in order, beside the engine's own work."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy after what the engine has asked of the device so far."""
        ...

    def mark(self) -> Mark:
        """After the copies that have begun."""
        ...

    def precede(self, mark: Mark) -> None:
        """What the engine asks of the device from now on comes after the mark."""
        ...


class _Done:
    """A mark that has been reached."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class NoStream:
    """A device on which every copy is complete when it returns."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def mark(self) -> Mark:
        """Reached."""
        return _Done()

    def precede(self, mark: Mark) -> None:
        """It does."""


class CudaStream:
    """A CUDA stream that only copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = _cuda.Stream(device)

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy; the device's memory is not given to others before it is done."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        for each in (target, source):
            # "cuda" and "cuda:0" are one device, and not equal.
            if each.device.type == self._device.type:
                each.record_stream(self._stream)

    def mark(self) -> Mark:
        """A new event."""
        event: torch.cuda.Event = _cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def precede(self, mark: Mark) -> None:
        """The engine's stream waits."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)


def copies_on(device: torch.device) -> Copies:
    """How copies are made on a device."""
    return CudaStream(device) if device.type == "cuda" else NoStream()


class Staging:
    """Host memory for copies that are under way; pinned where there is a GPU.

    Places are taken on one thread and come back on any.
    """

    def __init__(self, capacity: int, *, pinned: bool) -> None:
        self._slots = SlotAllocator(capacity, UNIT_BYTES)
        self._memory = torch.empty(capacity, dtype=torch.uint8, pin_memory=pinned)
        # A view may die in the midst of `take`: what comes back waits here.
        self._returned: deque[int] = deque()

    @property
    def used(self) -> int:
        """How many places are taken."""
        self._collect()
        return self._slots.taken

    def take(self, size: int) -> tuple[torch.Tensor, memoryview] | None:
        """A place of `size` bytes, as a tensor and as a view; None when there is none.

        It is free again when the view and all that views it are gone.
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
    """Outputs of an engine. Belongs to the engine's thread.

    `staging` None: off. `waited` counts the copies that the engine had to wait for.
    """

    def __init__(self, copies: Copies, staging: Staging | None) -> None:
        self._copies = copies
        self._staging = staging
        self._begun = False
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToHost:
        """As a stage is configured: off on a CPU."""
        device = torch.device(config.device)
        return cls(copies_on(device), _staging(config, on=config.async_to_host))

    @classmethod
    def direct(cls) -> ToHost:
        """Off."""
        return cls(NoStream(), None)

    def copy(self, tensor: torch.Tensor) -> Array:
        """The tensor's values, in its own dtype and shape; slices of the array are views.

        They are there when what the next `seal` returns has ended.
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
        """After the copies since the last time; None when each was complete at once."""
        if not self._begun:
            return None
        self._begun = False
        return self._copies.mark()

    def seal(self) -> Wait | None:
        """What waits for the copies since the last time; None when they are complete."""
        mark = self.mark()
        return None if mark is None or mark.query() else mark.synchronize


class ToDevice:
    """Inputs of an engine. Belongs to the engine's thread. `staging` None: off."""

    def __init__(self, device: torch.device, copies: Copies, staging: Staging | None) -> None:
        self._device = device
        self._copies = copies
        self._staging = staging
        self._under_way: deque[tuple[Mark, memoryview]] = deque()
        self.waited = 0

    @classmethod
    def of(cls, config: StageConfig) -> ToDevice:
        """As a stage is configured: off on a CPU."""
        device = torch.device(config.device)
        return cls(device, copies_on(device), _staging(config, on=config.async_to_device))

    @classmethod
    def direct(cls, device: torch.device) -> ToDevice:
        """Off."""
        return cls(device, NoStream(), None)

    def copy(self, array: Array) -> torch.Tensor:
        """The array's values on the device, for what the engine does from now on.

        The array may be given up at once where the direction is on.
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
    """A few numbers for what is asked of the device from now on; on a CPU, arrays as they are.

    A GPU takes them from pinned memory. From any other, the copy and the caller would wait
    until it has done all that it was asked before.
    """
    host = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def together_on_device(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """`on_device` of several arrays of 64-bit numbers, in one copy."""
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
    """The tensor's values on the host, in its own dtype; numpy lacks bfloat16."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()


def host_tensor(array: Array) -> torch.Tensor:
    """The array as a tensor; torch does not know numpy's bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    known: np.dtype[Any] = host_array(torch.empty(0, dtype=dtype)).dtype
    return known


def _staging(config: StageConfig, *, on: bool) -> Staging | None:
    """Pinned memory for one direction; None where it is off. Raises `InvalidArgument`."""
    if config.staging_bytes & (config.staging_bytes - 1):
        raise InvalidArgument(
            f"staging_bytes: {config.staging_bytes} is not a power of two", field="staging_bytes"
        )
    if not on or torch.device(config.device).type != "cuda":
        return None
    return Staging(config.staging_bytes, pinned=True)
