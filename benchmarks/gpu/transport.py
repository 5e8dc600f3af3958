"""Measures transfers from the device memory of one process to that of another process.

Both processes run on the same machine. The following alternatives are compared: shared memory as
used by links, optionally with pinned pages, a process group of two ranks on one device, and CUDA's
own handles, which links do not use. If a library refuses a transfer, this is a result as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch
import torch.multiprocessing as processes

from benchmarks.gpu.peer import SharedPages, finish, serve
from benchmarks.gpu.report import HOLDS, Figures, Row, mirrored
from benchmarks.transport.__main__ import ask, start
from benchmarks.transport.arms import GRPC, SHARED_MEMORY, Arm

SIZES = {"cuda": (16 << 10, 1 << 20, 64 << 20), "cpu": (16 << 10, 1 << 20)}
PAYLOADS = {"cuda": ("8 KB", "192 KB", "4 MB", "41 MB"), "cpu": ("8 KB",)}
WARM, ROUNDS = 3, 20
PEER_S, GROUP_S = 60.0, 120.0
SHARED_MEMORY_FILES = Path("/dev/shm")
# NCCL rejects two ranks on one device, which it identifies by host and bus. One of the ranks
# therefore claims to be on another host.
ONE_MACHINE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def transport_rows(device: torch.device) -> list[Row]:
    """Return rows for transfers between devices and between processes."""
    # On a CPU, only the command is tested, so the comparison is not mirrored.
    compared = mirrored if device.type == "cuda" else list
    rows = compared(
        [
            Row("shared memory, pageable", partial(_shared_memory, device, False)),
            Row("shared memory, pinned", partial(_shared_memory, device, True)),
            Row("device handles", partial(_handles, device)),
        ]
    )
    group = "process group, two ranks on one device"
    rows.append(Row(group, partial(_group, device), least_s=20.0))
    rows += compared(
        [
            Row(f"link, {arm.name}", partial(_link, arm, PAYLOADS[device.type]))
            for arm in (SHARED_MEMORY, GRPC)
        ]
    )
    return rows


class Peer:
    """A process with its own context on the device."""

    def __init__(self, device: torch.device) -> None:
        context: Any = processes.get_context("spawn")
        ours, theirs = context.Pipe()
        self._orders = cast(Connection, ours)
        self._process = context.Process(target=serve, args=(theirs, str(device)), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._orders.send(None)
            self._process.join(PEER_S)
        self._process.kill()

    def ask(self, order: object) -> object:
        """Send an order and return the response. Raises `TimeoutError` or `EOFError`."""
        self._orders.send(order)
        return self._answer()

    def _answer(self) -> object:
        if not self._orders.poll(PEER_S):
            raise TimeoutError(f"the other process has not answered for {PEER_S:.0f} s")
        return self._orders.recv()


def _shared_memory(device: torch.device, pinned: bool) -> Figures:
    """Copy from the device to shared pages. The other process copies them to the device."""
    largest, told = max(SIZES[device.type]), {}
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY_FILES) as file, Peer(device) as peer:
        file.truncate(largest)
        pages = SharedPages(Path(file.name), largest, device, pinned=pinned)
        peer.ask((Path(file.name), largest, pinned))
        for size in SIZES[device.type]:
            source = torch.ones(size, dtype=torch.uint8, device=device)

            def move(size: int = size, source: torch.Tensor = source) -> object:
                pages.tensor[:size].copy_(source, non_blocking=True)
                finish(device)
                return peer.ask(size)

            told[size] = _timed(move)
        pages.close()
    return _rates(told)


def _handles(device: torch.device) -> Figures:
    """Let the other process copy from the memory of this one.

    This uses CUDA IPC or, on a CPU, torch's shared memory.
    """
    told = {}
    with Peer(device) as peer:
        for size in SIZES[device.type]:
            source = torch.ones(size, dtype=torch.uint8, device=device)
            finish(device)
            told[size] = _timed(partial(peer.ask, source))
    return _rates(told)


def _timed(move: Callable[[], object]) -> float:
    """Return the median duration of transfers in milliseconds, and verify their content."""
    taken = []
    for _ in range(WARM + ROUNDS):
        started = time.perf_counter()
        if move() != 16:
            raise RuntimeError("the other process has read something else")
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken[WARM:])


def _rates(told: dict[int, float]) -> Figures:
    return {
        f"{size >> 10} KiB": {"ms": round(ms, 4), "gb_s": round(size / ms / 1e6, 2)}
        for size, ms in told.items()
    }


def _group(device: torch.device) -> Figures:
    """Measure NCCL or, on a CPU, Gloo."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sizes = [str(each) for each in SIZES[device.type]]
    program = (sys.executable, "-m", "benchmarks.gpu.rank")
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(port), str(device), *sizes],
            env={**os.environ, **ONE_MACHINE, "NCCL_HOSTID": f"rank-{rank}", "NCCL_DEBUG": "WARN"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [each.communicate(timeout=GROUP_S) for each in ranks]
    except subprocess.TimeoutExpired:
        return {"refused": f"no end after {GROUP_S:.0f} s"}
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    if any(each.returncode for each in ranks):
        said = [error[-1500:] or output[-1500:] for output, error in outputs]
        refused = {"refused": said}
        # Gloo should never refuse a transfer.
        return refused if device.type == "cuda" else {**refused, HOLDS: False}
    return _rates({int(size): ms for size, ms in _json(outputs[0][0]).items()})


def _json(printed: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(printed.strip().splitlines()[-1])
    return found


def _link(arm: Arm, payloads: tuple[str, ...]) -> Figures:
    """Measure messages sent by links between the host memory of two processes, as in
    benchmarks.transport.
    """

    async def measure() -> Figures:
        producer = await start(arm, process_group=0)
        assert producer.stdin is not None
        told: Figures = {}
        try:
            for payload in payloads:
                async with asyncio.timeout(PEER_S):
                    await ask(producer, payload)
                    measured = await ask(producer, payload)
                told[payload] = {
                    "p50_us": round(measured.percentile(50), 1),
                    "p95_us": round(measured.percentile(95), 1),
                }
            producer.stdin.close()
            await producer.wait()
        finally:
            if producer.returncode is None:
                # This also kills the consumer. Otherwise, it would keep the standard output of this
                # process open.
                os.killpg(producer.pid, signal.SIGKILL)
                await producer.wait()
        return told

    return asyncio.run(measure())
