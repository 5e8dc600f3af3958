"""The consumers: `python -m benchmarks.transport.consumer ARM REPORT_FD ...`."""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from typing import Any

import grpc
import numpy as np

from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.transport.payload.framed import FRAME_BYTES
from antiphon.transport.payload.registry import attach_best
from antiphon.values.chunk import Chunk
from antiphon.wire import blob
from antiphon_testkit.link_rig import LinkConsumer, Received, serving
from benchmarks.transport.arms import arm_named, omni_wheel, run_as
from benchmarks.transport.contestants import METHOD, SLAB_BYTES, settings_of
from benchmarks.transport.report import report

OMNI_POLL_S = 0.001


def raw(report_fd: int, memory_fd: str, event: str) -> None:
    """Read data from shared memory when the eventfd signals it."""
    memory = mmap.mmap(int(memory_fd), SLAB_BYTES)
    view = np.frombuffer(memory, np.uint8)
    view.max()  # Touch every page.
    print("ready", flush=True)
    while True:
        size = os.eventfd_read(int(event))
        assert view[:size].size == size
        report(report_fd)


async def eventfd(report_fd: int, memory_fd: str, event: str) -> None:
    """Read data from shared memory on an event loop, which watches the eventfd."""
    memory = mmap.mmap(int(memory_fd), SLAB_BYTES)
    view = np.frombuffer(memory, np.uint8)
    view.max()  # Touch every page.

    def take() -> None:
        size = os.eventfd_read(int(event))
        assert view[:size].size == size
        report(report_fd)

    asyncio.get_running_loop().add_reader(int(event), take)
    print("ready", flush=True)
    await asyncio.Event().wait()


class _Reporter(Received):
    """Reports chunks instead of recording them."""

    def __init__(self, report_fd: int) -> None:
        super().__init__()
        self._report_fd = report_fd

    def take(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            assert chunk.tensors
            report(self._report_fd)


async def link(report_fd: int, transport: str, ring: bool) -> None:
    """Receive messages over an antiphon link."""
    settings = settings_of(transport, ring)  # type: ignore[arg-type]
    reporter = _Reporter(report_fd)
    consumer = LinkConsumer(settings, attach_best, boot_id="consumer", received=reporter)
    async with serving(consumer) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


async def whole(report_fd: int) -> None:
    """Receive messages over a raw gRPC stream."""

    async def take(messages: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for message in messages:
            assert blob.decode(message)
            report(report_fd)
        yield b""

    await _serve_raw(take)


async def _serve_raw(take: Callable[[AsyncIterator[bytes], object], AsyncIterator[bytes]]) -> None:
    service, _, method = METHOD.strip("/").partition("/")
    handlers: dict[str, Any] = {method: grpc.stream_stream_rpc_method_handler(take)}
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    await server.start()
    await server.wait_for_termination()


async def stream(report_fd: int) -> None:
    """Receive pieces over a raw gRPC stream. The last piece of a message is shorter than the
    others.
    """

    async def take(messages: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for message in messages:
            if len(message) < FRAME_BYTES:
                report(report_fd)
        yield b""

    await _serve_raw(take)


def omni(report_fd: int, prefix: str) -> None:
    """Poll for the next key, in the same way as the receive loop of the transfer adapter."""
    from benchmarks.transport.omni import load_connector

    connector = load_connector(omni_wheel())
    print("ready", flush=True)
    woken = threading.Condition()
    for number in count():
        while connector.get("0", "1", f"{prefix}_{number}") is None:
            with woken:
                woken.wait(timeout=OMNI_POLL_S)
        report(report_fd)


def main() -> None:
    """Run a consumer until it is killed."""
    name, report_fd, *arguments = sys.argv[1:]
    arm = arm_named(name)
    if arm.busy:
        threading.Thread(target=_compute, daemon=True).start()
    match arm.kind:
        case "raw":
            raw(int(report_fd), *arguments)
        case "eventfd":
            run_as(arm, eventfd(int(report_fd), *arguments))
        case "whole":
            run_as(arm, whole(int(report_fd)))
        case "stream":
            run_as(arm, stream(int(report_fd)))
        case "omni":
            omni(int(report_fd), *arguments)
        case transport:
            run_as(arm, link(int(report_fd), transport, arm.ring))


def _compute() -> None:
    """Run Python code without a pause, like an engine between kernels in the worst case."""
    number = 1
    while True:
        number = number * 31 % 65537


if __name__ == "__main__":
    main()
