"""Measure the CPU time of 1000 audio events of 80 ms: `python -m benchmarks.realtime`.

The sides are a bare Starlette application that parses, decodes and counts the same events and sends
the same responses (`bare.py`), the gateway with turns that the client ends, and the gateway with
turns that it detects. All of them receive the same bytes over 16 connections, as fast as they can
read them. CPU time includes all processes of a side except the client, which is the same program
for all of them. Turns longer than 4 seconds are also forwarded to a stage, which `--turn 40`
prevents. The CPU time of Silero's network is measured separately, because it is a lower bound for
turn detection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pybase64
from websockets.asyncio.client import ClientConnection, connect

from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import process_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Side

MODEL = Path(__file__).parents[2] / "models" / "antiphon-demo"
CONNECTIONS = 16
EVENT_MS = 80
SAMPLES = 24_000 * EVENT_MS // 1000
WARM_UP_EVENTS = 20
EVENTS_PER_TURN = 100
"""The number of events in a turn, which corresponds to 8 seconds of audio.

Audio after the first `gateway.conversations.listen_after_s` of a turn (4 seconds) is also resampled
by the gateway, forwarded to a stage and encoded there. The bare application does nothing
comparable.
"""
CLEAR, CLEARED = '{"type": "input_audio_buffer.clear"}', "input_audio_buffer.cleared"
BARE = "bare Starlette"
TAKEN, HEARD = "gateway, turns by the client", "gateway, turns detected"
NETWORK = "silero's network alone"
CPU_FIGURE, SERVER_FIGURE = "CPU of all, ms per 1000 events", "CPU of the server"
TURN_DETECTION = {
    BARE: None,
    TAKEN: None,
    HEARD: {"type": "server_vad", "create_response": False, "interrupt_response": False},
}


@dataclass(slots=True)
class Traffic:
    """The messages and bytes of text that a client has sent, and the messages that it has
    received.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0


class CountedConnection:
    """A client connection whose messages are counted in `traffic`."""

    def __init__(self, connection: ClientConnection, traffic: Traffic) -> None:
        self._connection = connection
        self._traffic = traffic

    async def send(self, text: str) -> None:
        """Send a message."""
        await self._connection.send(text)
        self._traffic.sent += 1
        self._traffic.sent_bytes += len(text)

    async def until(self, kind: str) -> None:
        """Receive messages up to the first one of this type. Raises `RuntimeError` if it is an
        error.
        """
        while True:
            event = json.loads(await self._connection.recv())
            self._traffic.received += 1
            if event["type"] == "error":
                raise RuntimeError(f"the server rejects an event: {event}")
            if event["type"] == kind:
                return

    async def append(self, event: str, events: int, events_per_turn: int) -> None:
        """Append events. After each turn, clear the buffer and wait for the response."""
        for number in range(1, events + 1):
            await self.send(event)
            if number % events_per_turn == 0 or number == events:
                await self.send(CLEAR)
                await self.until(CLEARED)


@asynccontextmanager
async def bare_process() -> AsyncIterator[tuple[str, int]]:
    """Run the bare application in a separate process. Returns its WebSocket URL and process ID."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = "from benchmarks.realtime.bare import serve; import sys; serve(int(sys.argv[1]))"
        argv = (sys.executable, "-c", program, str(listener.fileno()))
        process = await asyncio.create_subprocess_exec(*argv, pass_fds=(listener.fileno(),))
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/realtime", process.pid
        finally:
            process.terminate()
            await process.wait()


def append_event(noise: np.random.Generator) -> str:
    """Return an event that appends 80 ms of noise."""
    pcm16 = noise.normal(0, 1000, SAMPLES).astype("<i2").tobytes()
    audio = pybase64.b64encode_as_string(pcm16)
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


async def measure(
    url: str, pids: Sequence[int], side: str, events: int, events_per_turn: int = EVENTS_PER_TURN
) -> Figures:
    """Send events over all connections, and return their cost in `pids`, starting with the
    server.
    """
    event, traffic = append_event(np.random.default_rng(0)), Traffic()
    opened = [await connect(url, compression=None) for _ in range(CONNECTIONS)]
    connections = [CountedConnection(each, traffic) for each in opened]
    try:
        session = {
            "type": "realtime",
            "audio": {"input": {"turn_detection": TURN_DETECTION[side]}},
        }
        for each in connections:
            await each.send(json.dumps({"type": "session.update", "session": session}))
            await each.until("session.updated")
        await asyncio.gather(
            *(each.append(event, WARM_UP_EVENTS, WARM_UP_EVENTS) for each in connections)
        )
        before, sent = [process_cpu_s(pid) for pid in pids], events // CONNECTIONS
        await asyncio.gather(*(each.append(event, sent, events_per_turn) for each in connections))
        used_s = [process_cpu_s(pid) - began_s for pid, began_s in zip(pids, before, strict=True)]
    finally:
        for opened_one in opened:
            await opened_one.close()
    per_1000_ms = 1e6 / (sent * CONNECTIONS)
    return {
        CPU_FIGURE: sum(used_s) * per_1000_ms,
        SERVER_FIGURE: used_s[0] * per_1000_ms,
        "messages sent": traffic.sent,
        "bytes sent": traffic.sent_bytes,
        "messages received": traffic.received,
    }


async def network(events: int) -> Figures:
    """Measure Silero's network in a process with the same number of threads as the gateway."""
    numbers = map(str, (CONNECTIONS, events, EVENT_MS))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.realtime.inference", *numbers,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    printed, _ = await process.communicate()
    return {CPU_FIGURE: float(printed)}


async def compare(rounds: int, events: int, events_per_turn: int) -> None:
    """Start both servers, measure them, and print a report."""
    async with bare_process() as (bare_url, bare_pid), Launcher(local_deployment(MODEL)) as running:
        url = running.http_url.replace("http", "ws", 1) + "/v1/realtime"
        gateway = running.processes["gateway"].pid
        stages = [each.pid for name, each in running.processes.items() if name != "gateway"]
        ours, bare = (url, [gateway, *stages]), (bare_url, [bare_pid])
        comparison = Comparison(
            [
                Side(BARE, partial(measure, *bare, BARE, events, events_per_turn)),
                Side(TAKEN, partial(measure, *ours, TAKEN, events, events_per_turn), (BARE,)),
                Side(HEARD, partial(measure, *ours, HEARD, events, events_per_turn), (BARE,)),
                Side(NETWORK, partial(network, events), (BARE,)),
            ],
            f"{events} events over {CONNECTIONS} connections, {events_per_turn} a turn",
        )
        await comparison.run(rounds)
        check_equal_work(comparison)
        comparison.report()


def check_equal_work(comparison: Comparison) -> None:
    """Raise `RuntimeError` if the gateway and the bare application processed different messages."""
    for figure in ("messages sent", "bytes sent", "messages received"):
        bare, gateway = (comparison.column(side, figure) for side in (BARE, TAKEN))
        if bare != gateway:
            raise RuntimeError(f"the sides did different work: {figure} {bare} and {gateway}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.realtime",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--events", type=int, default=8000, help="of a measurement (8000)")
    parser.add_argument(
        "--turn", type=int, default=EVENTS_PER_TURN, help=f"events of a turn ({EVENTS_PER_TURN})"
    )
    given = parser.parse_args()
    with stated_machine():
        asyncio.run(compare(given.rounds, given.events, given.turn))


if __name__ == "__main__":
    main()
