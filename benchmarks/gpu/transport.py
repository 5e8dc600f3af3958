"""Ways from one process's device memory to another's on one machine, and the links' own.

Shared memory as the links have it, whose pages may be pinned; a process group of two ranks on one
device; and CUDA's own handles, which no link uses. What a library refuses is a result too.
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
# Ranks on one device are refused by host and bus: one of the two says that it is elsewhere.
ONE_MACHINE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def transport_rows(device: torch.device) -> list[Row]:
    """From device to device, and from process to process."""
    # On a CPU the command is tried; nothing is compared.
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
    """A process with a context of its own on the device."""

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
        """Send an order; its answer. Raises `TimeoutError` and `EOFError`."""
        self._orders.send(order)
        return self._answer()

    def _answer(self) -> object:
        if not self._orders.poll(PEER_S):
            raise TimeoutError(f"the other process has not answered for {PEER_S:.0f} s")
        return self._orders.recv()


def _shared_memory(device: torch.device, pinned: bool) -> Figures:
    """Out of the device into shared pages, and from there into the device by the other process."""
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
    """The other process copies from this one's memory: CUDA IPC, on a CPU torch's shared memory."""
    told = {}
    with Peer(device) as peer:
        for size in SIZES[device.type]:
            source = torch.ones(size, dtype=torch.uint8, device=device)
            finish(device)
            told[size] = _timed(partial(peer.ask, source))
    return _rates(told)


def _timed(move: Callable[[], object]) -> float:
    """Milliseconds of one transfer, the middle of some; each brings ones."""
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
    """NCCL, on a CPU Gloo."""
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
        # Gloo has no reason to.
        return refused if device.type == "cuda" else {**refused, HOLDS: False}
    return _rates({int(size): ms for size, ms in _json(outputs[0][0]).items()})


def _json(printed: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(printed.strip().splitlines()[-1])
    return found


def _link(arm: Arm, payloads: tuple[str, ...]) -> Figures:
    """Messages as links send them, host memory to host memory; see benchmarks.transport."""

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
                # Its consumer too, which would keep what this process prints to open.
                os.killpg(producer.pid, signal.SIGKILL)
                await producer.wait()
        return told

    return asyncio.run(measure())
