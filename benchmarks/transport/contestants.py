"""The methods to transfer tensors to another process.

Each method consists of a producer in this module and a consumer, which runs as a separate process
(`python -m benchmarks.transport.consumer ARM ...`).
"""

from __future__ import annotations

import asyncio
import mmap
import os
from abc import abstractmethod
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from itertools import count

import grpc
import numpy as np

from antiphon.deployment.stage_config import TransportName
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.transport.payload.framed import FRAME_BYTES
from antiphon.transport.settings import LinkSettings
from antiphon.values.chunk import Chunk, Tensors
from antiphon.wire import blob
from antiphon_testkit.link_rig import producer
from benchmarks.transport.arms import Arm, command, omni_wheel
from benchmarks.transport.report import Reports

SLAB_BYTES = 256 << 20
METHOD = "/raw/Stream"


def settings_of(transport: TransportName, ring: bool) -> LinkSettings:
    """Return the link settings of the benchmark."""
    return LinkSettings(transport, "cpu", SLAB_BYTES, resume_window_s=5.0, ring=ring)


class Contestant:
    """A transfer method. The first line that its consumer prints is its address."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self.reports = Reports()
        self._consumer: Process | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start the consumer and connect to it."""

    @abstractmethod
    async def send(self, tensors: Tensors) -> None:
        """Send a message. Its report arrives later."""

    async def stop(self) -> None:
        """Stop the consumer."""
        if self._consumer is not None:
            self._consumer.kill()
            await self._consumer.wait()
        self.reports.close()

    async def spawn(self, *arguments: str, fds: Sequence[int] = ()) -> str:
        """Start the consumer, and return the first line that it prints."""
        report_fd = self.reports.write_fd
        self._consumer = await asyncio.create_subprocess_exec(
            *command("consumer", self._arm.name, str(report_fd), *arguments),
            stdout=PIPE, pass_fds=(report_fd, *fds),
        )  # fmt: skip
        assert self._consumer.stdout is not None
        return (await self._consumer.stdout.readline()).decode().strip()


class RawLimit(Contestant):
    """Copies to memory that both processes have mapped, and signals with an eventfd.

    This is a lower bound for all methods. The consumer of "raw" blocks in a read of the eventfd,
    and the consumer of "eventfd" is an event loop.
    """

    async def start(self) -> None:
        """Map the memory, touch every page, and share it by inheritance."""
        self._memory_fd = os.memfd_create("raw-limit")
        os.ftruncate(self._memory_fd, SLAB_BYTES)
        os.posix_fallocate(self._memory_fd, 0, SLAB_BYTES)
        self._memory = mmap.mmap(self._memory_fd, SLAB_BYTES)
        self._target = np.frombuffer(self._memory, np.uint8)
        self._target[:] = 0
        self._event = os.eventfd(0)
        fds = (self._memory_fd, self._event)
        await self.spawn(*map(str, fds), fds=fds)

    async def send(self, tensors: Tensors) -> None:
        """Copy the data and wake up the consumer."""
        end = 0
        for tensor in tensors.values():
            source = tensor.reshape(-1).view(np.uint8)
            self._target[end : end + source.nbytes] = source
            end += source.nbytes
        os.eventfd_write(self._event, end)


class AntiphonLink(Contestant):
    """An antiphon link with one of its transports."""

    def __init__(self, arm: Arm, transport: TransportName) -> None:
        super().__init__(arm)
        self._transport = transport
        self._sequence = count()

    async def start(self) -> None:
        """Establish the link."""
        address = await self.spawn()
        self._link, self._told = producer(address, settings_of(self._transport, self._arm.ring))

    async def send(self, tensors: Tensors) -> None:
        """Send a chunk."""
        chunk = Chunk("session", "rows", sequence=next(self._sequence), tensors=tensors)
        self._link.send_nowait(chunk)

    async def stop(self) -> None:
        """Close the link."""
        assert not self._told.lost, self._told.lost
        assert self._link.state.transport == self._transport
        await self._link.close(flush=False)
        await super().stop()


class WholeMessages(Contestant):
    """Sends the blob as a single message of a gRPC stream, as raw bytes without framing."""

    async def start(self) -> None:
        """Open a stream."""
        address = await self.spawn()
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = self._channel.stream_stream(METHOD)()
        self._stream = stream

    async def send(self, tensors: Tensors) -> None:
        """Send a message."""
        await self._stream.write(blob.encode(tensors))

    async def stop(self) -> None:
        """Close the stream."""
        self._stream.cancel()
        await self._channel.close()
        await super().stop()


class StreamedMessages(WholeMessages):
    """Sends the same bytes as messages of 1 MiB, to measure the cost of gRPC itself."""

    async def send(self, tensors: Tensors) -> None:
        """Send the messages."""
        encoding = blob.Encoding(tensors)
        for pieces in encoding.frames(FRAME_BYTES):
            await self._stream.write(b"".join(pieces))


class OmniConnector(Contestant):
    """The SharedMemoryConnector of vllm-omni. The consumer polls in the same way as its receive
    loop.
    """

    def __init__(self, arm: Arm) -> None:
        super().__init__(arm)
        self._numbers = count()

    async def start(self) -> None:
        """Load the connector from its unpacked wheel."""
        from benchmarks.transport.omni import load_connector

        self._connector = load_connector(omni_wheel())
        self._prefix = f"bench{os.getpid()}"
        await self.spawn(self._prefix)

    async def send(self, tensors: Tensors) -> None:
        """Store the tensors under the next key."""
        from benchmarks.transport.omni import to_torch

        key = f"{self._prefix}_{next(self._numbers)}"
        done, _, _ = self._connector.put("0", "1", key, to_torch(tensors))
        assert done


def contestant_of(arm: Arm) -> Contestant:
    """Return the producer of an alternative."""
    match arm.kind:
        case "raw" | "eventfd":
            return RawLimit(arm)
        case "whole":
            return WholeMessages(arm)
        case "stream":
            return StreamedMessages(arm)
        case "omni":
            return OmniConnector(arm)
        case "shared_memory" | "grpc":
            return AntiphonLink(arm, arm.kind)
        case _:
            raise ValueError(f"no contestant is {arm.kind}")
