"""Measure the rows of a long prompt between two stages: `python -m benchmarks.transport.prompts`.

An engine sends 10,000 positions of 3584 bfloat16 values (72 MB) in pieces, as in prefill. The time
is measured from the step of the first piece until the consumer's engine has received the last one.
The baselines transfer the same number of bytes with the transport alone. In addition, rows of
replies in other sessions on the same stages are measured, both alone and while prompts are
transferred. CPU time is that of both processes, per prompt without other sessions. With `--against
DIR`, the stages of both checkouts are measured in alternating order. The other checkout must
contain this benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import grpc
import msgspec

from antiphon.pipelines.qwen2_5_omni import PIPELINE, TALKER, THINKER
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_tools.launcher.plan import import_path
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import cpu_s_of
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.transport.__main__ import ask, producing
from benchmarks.transport.arms import GRPC_STREAM, RAW, WHOLE_AS_STAGE
from benchmarks.transport.producer import LONG_PROMPT
from benchmarks.transport.prompt_stages import (
    PACED_SESSION,
    PROMPT_SESSION,
    REPLY_SESSION,
    STEP_S,
    Times,
)

HERE = Path(__file__).parents[2]
RAW_ARMS = {"shared_memory": (RAW,), "grpc": (GRPC_STREAM, WHOLE_AS_STAGE)}
REPLIES = 4
TRANSFERS = 5
ALONE = "alone"
REPLY_LABELS = {
    ALONE: "alone",
    PACED_SESSION: f"a piece every {STEP_S * 1e3:.0f} ms",
    PROMPT_SESSION: "prompts all the time",
}
CPU_FIGURE, TRANSFER_FIGURE = "CPU, ms per prompt", "transfer, ms"


class Pair:
    """A linked thinker and talker from a checkout."""

    def __init__(self, checkout: Path, transport: str, piece_rows: int) -> None:
        self._where = (checkout, transport, piece_rows)
        self._processes: dict[str, Process] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._addresses: dict[str, str] = {}
        self._numbers = count()

    async def start(self) -> None:
        """Start both processes."""
        checkout, transport, piece_rows = self._where
        for role in (THINKER, TALKER):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.transport.prompt_stages"),
                *(role, transport, str(piece_rows)),
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": import_path(checkout)},
                stdin=PIPE,
                stdout=PIPE,
                limit=1 << 24,
            )
            self._processes[role] = process
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip()
            self._addresses[role] = address
            self._channels[role] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    async def stop(self) -> tuple[Times, Times]:
        """Stop both processes, and return when sessions started and when their data arrived."""
        for channel in self._channels.values():
            await channel.close()
        told = {}
        for role, process in self._processes.items():
            out, _ = await process.communicate(b"")
            told[role] = msgspec.json.decode(out, type=Times)
        return told[THINKER], told[TALKER]

    def cpu_s(self) -> float:
        """Return the CPU time of both processes so far."""
        return cpu_s_of(process.pid for process in self._processes.values())

    def kill(self) -> None:
        """Kill both processes."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.kill()

    async def session(self, name: str) -> None:
        """Run a session up to its reports. Raises `RuntimeError` if it fails."""
        session_id = f"{name}-{next(self._numbers)}"
        opened = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._on_stage(TALKER, session_id, opened))
            await opened.wait()
            group.create_task(self._on_stage(THINKER, session_id, asyncio.Event()))

    async def _on_stage(self, role: str, session_id: str, opened: asyncio.Event) -> None:
        reported = asyncio.Event()

        async def requests() -> AsyncIterator[session_pb2.SessionRequest]:
            yield session_pb2.SessionRequest(
                open=session_pb2.SessionOpen(
                    session_id=session_id,
                    routes=self._routes(role),
                    windows={"codes": 50},
                    first_segment=session_pb2.SegmentOpen(segment=0, outputs=["text", "audio"]),
                )
            )
            if role == THINKER:
                begin = chunk_pb2.Chunk(
                    session_id=session_id,
                    edge="input",
                    segment_finished=True,
                    finish_reason=chunk_pb2.FINISH_REASON_STOP,
                )
                yield session_pb2.SessionRequest(chunk=begin)
            await reported.wait()

        async for response in stage_stub(self._channels[role]).RunSession(requests()):
            match response.WhichOneof("message"):
                case "error":
                    opened.set()
                    raise RuntimeError(f"{role}: {response.error.message}")
                case "opened" | "segment_opened":
                    opened.set()
                case "report":
                    reported.set()
        if not reported.is_set():
            raise RuntimeError(f"{role}: the session ended without a report")

    def _routes(self, role: str) -> list[session_pb2.Route]:
        target = session_pb2.StageTarget(address=self._addresses[TALKER])
        to_talker = session_pb2.Destination(stage=target)
        to_reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        return [
            session_pb2.Route(
                edge=edge.name,
                destinations=[to_talker if TALKER in edge.consumers else to_reply],
            )
            for edge in PIPELINE.outputs(role)
        ]


async def replies(pair: Pair, label: str, prompt: str) -> None:
    """Run concurrent replies. If `prompt` is set, prompts of this type are sent at the same
    time.
    """
    async with asyncio.TaskGroup() as group:
        talking = [
            group.create_task(pair.session(f"{REPLY_SESSION}-{label}")) for _ in range(REPLIES)
        ]
        while prompt and not all(each.done() for each in talking):
            await pair.session(f"{prompt}-beside")


async def measure(checkout: Path, transport: str, piece_rows: int) -> Figures:
    """Measure a round with a new pair of stages, after a prompt that serves as a warm-up."""
    pair = Pair(checkout, transport, piece_rows)
    try:
        await pair.start()
        await pair.session(f"{PROMPT_SESSION}-warm")
        before_s = pair.cpu_s()
        for _ in range(TRANSFERS):
            await pair.session(f"{PROMPT_SESSION}-{ALONE}")
        used_s = pair.cpu_s() - before_s
        await replies(pair, ALONE, "")
        await replies(pair, PACED_SESSION, PACED_SESSION)
        await replies(pair, ALONE, "")
        await replies(pair, PROMPT_SESSION, PROMPT_SESSION)
        began, came = await pair.stop()
    finally:
        pair.kill()
    between = {
        f"between rows of replies, {words}, ms": statistics.mean(intervals_ms(came, label))
        for label, words in REPLY_LABELS.items()
    }
    return {
        CPU_FIGURE: 1e3 * used_s / TRANSFERS,
        TRANSFER_FIGURE: statistics.median(transfers_ms(began, came)),
        **between,
    }


async def measure_bare(producer: Process) -> Figures:
    """Measure a round that transfers the same number of bytes with the transport alone."""
    measured = await ask(producer, LONG_PROMPT)
    return {
        CPU_FIGURE: measured.cpu_us / len(measured.latency_us) / 1e3,
        TRANSFER_FIGURE: measured.percentile(50) / 1e3,
    }


def transfers_ms(began: Times, came: Times) -> list[float]:
    """Return the duration of each prompt that was transferred without other sessions."""
    wanted = [name for name in began if name.startswith(f"{PROMPT_SESSION}-{ALONE}")]
    return [(came[name][-1] - began[name][0]) / 1e6 for name in wanted]


def intervals_ms(came: Times, label: str) -> list[float]:
    """Return the intervals between the rows of all replies with a label."""
    return [
        (after - before) / 1e6
        for name, times in came.items()
        if name.startswith(f"{REPLY_SESSION}-{label}-")
        for before, after in pairwise(times)
    ]


async def compare(
    checkouts: Sequence[tuple[str, Path]], transports: Sequence[str], rows: int, rounds: int
) -> None:
    """Measure each transport and print a report."""
    for transport in transports:
        arms = RAW_ARMS[transport]
        async with producing(arms) as producers:
            sides = [
                Side(name, partial(measure_bare, producer)) for name, producer in producers.items()
            ]
            sides += [
                Side(side, partial(measure, checkout, transport, rows), (arms[0].name,))
                for side, checkout in checkouts
            ]
            comparison = Comparison(sides, f"{transport}, {rows} positions a piece")
            await comparison.run(rounds)
            comparison.report()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--piece-rows", type=int, default=256, help="positions a step (256)")
    parser.add_argument("--transports", nargs="+", choices=RAW_ARMS, default=list(RAW_ARMS))
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    arguments = parser.parse_args(argv)
    checkouts = [("this", HERE)]
    if arguments.against is not None:
        checkouts.append(("other", arguments.against.resolve()))
    given = arguments.transports, arguments.piece_rows, arguments.rounds
    with stated_machine():
        asyncio.run(compare(checkouts, *given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
