"""`python -m benchmarks.sizing.limits`: what the gateway's own parts cost in a large fleet.

CPU time of one thread, the least of several rounds: a pick, admission with so many calls admitted
and so many that wait, a replica's report of its load on its stream, an event of discovery. From
them follows which gateway is enough for how much.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable

import grpc

from antiphon.v1 import stage_pb2
from antiphon_gateway.calls.admission import AdmissionQueue, AdmissionRequest, Urgency
from antiphon_gateway.fleet.discovery.endpoint import Endpoint
from antiphon_tools.sizing.simulation.picking import pool_of
from benchmarks.comparison.machine import stated_machine

ROLES = ("writer", "speaker", "decoder")
ROUNDS = 3
METHOD = "/antiphon.v1.StageService/WatchLoad"


def least_us(work: Callable[[], int]) -> float:
    """Microseconds of CPU time for each thing that `work` says it has done."""
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.thread_time()
        done = work()
        best = min(best, (time.thread_time() - before) / done)
    return best * 1e6


def pick_us(replicas: int) -> float:
    """A pick of so many."""
    source, loads = random.Random(0), [float(each % 7) for each in range(replicas)]

    pool = pool_of(replicas, 64, loads.__getitem__)

    def work() -> int:
        for _ in range(20_000):
            pool.pick(source)
        return 20_000

    return least_us(work)


def admission_us(calls: int, waiting: int) -> float:
    """A call that comes and goes again while so many are admitted and so many wait."""
    queue = AdmissionQueue(
        max_calls=calls, max_waiting=65_536, max_waiting_bytes=1 << 40, longest_wait_s=1e6
    )
    request = AdmissionRequest(roles=frozenset(ROLES), urgency=Urgency.AUDIO)
    slots = dict.fromkeys(ROLES, calls)
    for number in range(calls + waiting):
        queue.ask(number, request, slots, number * 1e-6)
        if number < calls:
            queue.opened(number, number * 1e-6)
    state = {"next": calls + waiting, "oldest": 0}
    times = 2000 if not waiting else max(2, 20_000 // waiting)

    def work() -> int:
        for _ in range(times):
            now = 1.0 + state["next"] * 1e-6
            if waiting:
                queue.ask(state["next"], request, slots, now)
            for role in ROLES:
                queue.freed(state["oldest"], role, now)
            queue.leave(state["oldest"], now)
            if not waiting:
                queue.ask(state["next"], request, slots, now)
                queue.opened(state["next"], now)
            queue.next_deadline()
            state["oldest"] += 1
            state["next"] += 1
        return times

    return least_us(work)


def discovery_us(endpoints: int) -> float:
    """What has changed in a set of so many, of which one has; for each event."""
    before = frozenset(
        Endpoint("speaker", f"uid-{each}", f"10.0.{each // 256}.{each % 256}:50051")
        for each in range(endpoints)
    )
    gone = next(iter(before))
    after = (before - {gone}) | {Endpoint("speaker", "uid-new", "10.1.0.1:50051")}

    def work() -> int:
        for _ in range(100):
            assert len(after - before) == len(before - after) == 1
        return 100

    return least_us(work)


async def _serve(messages: int) -> None:
    """Reports as fast as they are taken, on as many streams as are opened."""

    async def watch(_: bytes, context: object) -> AsyncIterator[bytes]:
        for number in range(messages):
            yield stage_pb2.StageLoad(
                boot_id="0" * 32, slots=64, open_sessions=number % 64, open_segments=number % 64
            ).SerializeToString()

    class Reports(grpc.GenericRpcHandler):
        def service(
            self, details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            return grpc.unary_stream_rpc_method_handler(watch)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Reports(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def _taken_us(port: int, messages: int) -> float:
    """CPU time of this process for a report that it takes in."""
    loads: dict[int, stage_pb2.StageLoad] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, stage_pb2.StageLoad] = (
            channel.unary_stream(METHOD, response_deserializer=stage_pb2.StageLoad.FromString)
        )
        before = time.process_time()
        async for load in method(b""):
            loads[0] = load
        return (time.process_time() - before) / messages * 1e6


def report_us(messages: int = 20_000) -> float:
    """A report of a replica's load, over gRPC, with its event loop, as it is taken in."""
    arguments = [sys.executable, "-m", "benchmarks.sizing.limits", "--serve", str(messages)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            return min(asyncio.run(_taken_us(port, messages)) for _ in range(ROUNDS))
        finally:
            server.terminate()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizing.limits",
        description="What the gateway's own parts cost in a large fleet.",
    )
    parser.add_argument("--replicas", type=int, default=1000, help="of a role (1000)")
    parser.add_argument("--calls", type=int, default=50_000, help="at a time (50000)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.serve))
        return 0
    with stated_machine():
        measure(given.replicas, given.calls)
    return 0


def measure(replicas: int, calls: int) -> None:
    """Print the CPU time of each part as it is measured; there is nothing to compare with."""
    print(f"pick of {replicas}: {pick_us(replicas):.2f} us", flush=True)
    for admitted in (calls // 50, calls):
        for waiting in (0, 256, 2048):
            spent = admission_us(admitted, waiting)
            print(f"admission, {admitted} calls, {waiting} wait: {spent:.1f} us a call", flush=True)
    print(f"report of a load: {report_us():.1f} us", flush=True)
    print(f"event of {replicas} endpoints: {discovery_us(replicas):.0f} us", flush=True)


if __name__ == "__main__":
    sys.exit(main())
