"""CPU of 1000 audio events of 80 ms: `python -m benchmarks.realtime`.

The gateway takes them into its buffer, or hears turns in them; a bare Starlette application that
decodes each and sends it back is measured in the same run. All get them from 16 connections at a
time, as fast as they take them, in rounds that are interleaved. What silero's network takes of
hearing turns is measured by itself, too: nothing that hears them costs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pybase64
from websockets.asyncio.client import ClientConnection, connect

from antiphon.testing.local_deployment import local_deployment
from tools.launcher.launcher import Launcher

MODEL = Path(__file__).parents[2] / "models" / "antiphon-demo"
CONNECTIONS = 16
EVENT_MS = 80
SAMPLES = 24_000 * EVENT_MS // 1000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ECHO, TAKEN, HEARD = "starlette echo", "gateway, turns by the client", "gateway, turns detected"
NETWORK = "  of that, silero's network"
TURNS = {
    TAKEN: None,
    HEARD: {"type": "server_vad", "create_response": False, "interrupt_response": False},
}


def cpu_s(pid: int) -> float:
    """CPU that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[str, int]]:
    """The bare application in a process: its URL and process id."""
    listener = socket.create_server(("127.0.0.1", 0))
    program = "from benchmarks.realtime.echo import serve; import sys; serve(int(sys.argv[1]))"
    argv = (sys.executable, "-c", program, str(listener.fileno()))
    process = await asyncio.create_subprocess_exec(*argv, pass_fds=(listener.fileno(),))
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/", process.pid
    finally:
        process.terminate()
        await process.wait()
        listener.close()


def event(sound: np.random.Generator) -> str:
    """80 ms of noise, as a client appends them."""
    pcm16 = sound.normal(0, 1000, SAMPLES).astype("<i2").tobytes()
    audio = pybase64.b64encode_as_string(pcm16)
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


async def send_all(connection: ClientConnection, arm: str, data: str, events: int) -> None:
    """Send so many, and return when the server has dealt with them."""
    if arm == ECHO:
        for _ in range(events):
            await connection.send(data)
            await connection.recv()
        return
    for number in range(events):
        await connection.send(data)
        if number % 100 == 99 or number == events - 1:
            await connection.send('{"type": "input_audio_buffer.clear"}')
            while json.loads(await connection.recv())["type"] != "input_audio_buffer.cleared":
                pass


async def measure(url: str, pid: int, arm: str, events: int) -> float:
    """Milliseconds of CPU for each 1000 events."""
    data = event(np.random.default_rng(0))
    connections = [await connect(url, compression=None) for _ in range(CONNECTIONS)]
    try:
        if arm != ECHO:
            session = {"type": "realtime", "audio": {"input": {"turn_detection": TURNS[arm]}}}
            for each in connections:
                await each.send(json.dumps({"type": "session.update", "session": session}))
        each_has = events // CONNECTIONS
        await asyncio.gather(*(send_all(each, arm, data, 20) for each in connections))
        before = cpu_s(pid)
        await asyncio.gather(*(send_all(each, arm, data, each_has) for each in connections))
        return (cpu_s(pid) - before) * 1e6 / (each_has * CONNECTIONS)
    finally:
        for each in connections:
            await each.close()


async def network(events: int) -> float:
    """The same of silero's network alone, in a process with as many threads as the gateway's."""
    numbers = map(str, (CONNECTIONS, events, EVENT_MS))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.realtime.inference", *numbers,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    printed, _ = await process.communicate()
    return float(printed)


async def main() -> None:
    """Measure all, and print the medians."""
    parser = argparse.ArgumentParser(description="CPU of realtime audio events")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=8000)
    asked = parser.parse_args()
    times: dict[str, list[float]] = defaultdict(list)
    async with echo() as (echo_url, echo_pid), Launcher(local_deployment(MODEL)) as running:
        gateway = running.http_url.replace("http", "ws", 1) + "/v1/realtime"
        gateway_pid = running.processes["gateway"].pid
        where = {ECHO: (echo_url, echo_pid)} | dict.fromkeys(TURNS, (gateway, gateway_pid))
        for _ in range(asked.rounds):
            for arm, (url, pid) in where.items():
                times[arm].append(await measure(url, pid, arm, asked.events))
            times[NETWORK].append(await network(asked.events))
    for arm, each in times.items():
        ratio = statistics.median(each) / statistics.median(times[ECHO])
        print(f"{arm:<30}{statistics.median(each):8.0f} ms per 1000 events {ratio:6.2f} x")


if __name__ == "__main__":
    asyncio.run(main())
