"""The rows of a long prompt between two stage processes: `python -m benchmarks.transport.prompts`.

10,000 positions of 3584 bfloat16 values (72 MB), sent by an engine in pieces as prefill makes
them: from the first piece's step until the consumer's engine has the last one, beside the time
that the bare transport takes for as many bytes; and how the rows of other sessions' replies fare
on the same pair of stages meanwhile. Everything is interleaved in rounds. With `--against DIR`
(another checkout that has this benchmark) the stages of both take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path

import grpc
import msgspec
import numpy as np

from antiphon.pipelines.qwen2_5_omni import PIPELINE, TALKER, THINKER
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.stubs import stage_stub
from benchmarks.transport.__main__ import ask, start
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


class Pair:
    """A thinker and a talker of a checkout, linked."""

    def __init__(self, checkout: Path, transport: str, piece_rows: int) -> None:
        self._where = (checkout, transport, piece_rows)
        self._processes: dict[str, Process] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._addresses: dict[str, str] = {}
        self._numbers = count()

    async def start(self) -> None:
        """Start both."""
        checkout, transport, piece_rows = self._where
        for role in (THINKER, TALKER):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.transport.prompt_stages"),
                *(role, transport, str(piece_rows)),
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": str(checkout)},
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
        """End both; when sessions began, and when what they sent was there."""
        for channel in self._channels.values():
            await channel.close()
        told = {}
        for role, process in self._processes.items():
            out, _ = await process.communicate(b"")
            told[role] = msgspec.json.decode(out, type=Times)
        return told[THINKER], told[TALKER]

    def kill(self) -> None:
        """End both at once."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.kill()

    async def session(self, name: str) -> None:
        """One session, to its reports. Raises `RuntimeError` for one that fails."""
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
    """Some replies side by side; with `prompt`, prompts of that kind one after the other."""
    async with asyncio.TaskGroup() as group:
        talking = [
            group.create_task(pair.session(f"{REPLY_SESSION}-{label}")) for _ in range(REPLIES)
        ]
        while prompt and not all(each.done() for each in talking):
            await pair.session(f"{prompt}-beside")


async def measure(pair: Pair) -> None:
    """One round on a pair that is warm."""
    for _ in range(TRANSFERS):
        await pair.session(f"{PROMPT_SESSION}-{ALONE}")
    await replies(pair, ALONE, "")
    await replies(pair, PACED_SESSION, PACED_SESSION)
    await replies(pair, ALONE, "")
    await replies(pair, PROMPT_SESSION, PROMPT_SESSION)


def transfers_ms(began: Times, came: Times) -> list[float]:
    """How long each prompt took that had the pair to itself."""
    wanted = [name for name in began if name.startswith(f"{PROMPT_SESSION}-{ALONE}")]
    return [(came[name][-1] - began[name][0]) / 1e6 for name in wanted]


def intervals_ms(came: Times, label: str) -> list[float]:
    """Times between the rows of a reply, of all replies with a label."""
    return [
        (after - before) / 1e6
        for name, times in came.items()
        if name.startswith(f"{REPLY_SESSION}-{label}-")
        for before, after in pairwise(times)
    ]


class Rows:
    """Figures by what they are of, from all rounds."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[Sequence[float]]] = defaultdict(list)

    def add(self, name: str, figures: Sequence[float]) -> None:
        """A round's."""
        self._rounds[name].append(figures)

    def shown(self, name: str, base: str, middle: Callable[[Sequence[float]], float]) -> str:
        """Cells: the rounds' middles, the 95th percentile, and the middles' ratios to another's."""
        rounds = self._rounds[name]
        middles = [middle(figures) for figures in rounds]
        bases = [middle(figures) for figures in self._rounds[base]]
        ratios = [ours / theirs for ours, theirs in zip(middles, bases, strict=True)]
        slow = np.percentile(np.concatenate(rounds), 95)
        return f"{_spread(middles, 1)} | {slow:.1f} | {_spread(ratios, 2)} |"


def _spread(figures: Sequence[float], digits: int) -> str:
    middle, least, most = statistics.median(figures), min(figures), max(figures)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


async def run(
    checkouts: Sequence[tuple[str, Path]], transports: Sequence[str], rows: int, rounds: int
) -> None:
    """Measure everything and print the tables."""
    for transport in transports:
        arms = RAW_ARMS[transport]
        producers = {arm.name: await start(arm) for arm in arms}
        table = Rows()
        for _ in range(rounds):
            for name, producer in producers.items():
                measured = await ask(producer, LONG_PROMPT)
                table.add(name, [us / 1e3 for us in measured.latency_us])
            for side, checkout in checkouts:
                pair = Pair(checkout, transport, rows)
                try:
                    await pair.start()
                    await pair.session(f"{PROMPT_SESSION}-warm")
                    await measure(pair)
                    began, came = await pair.stop()
                finally:
                    pair.kill()
                table.add(side, transfers_ms(began, came))
                for label in (ALONE, PACED_SESSION, PROMPT_SESSION):
                    table.add(f"{side} {label}", intervals_ms(came, label))
        for producer in producers.values():
            assert producer.stdin is not None
            producer.stdin.close()
            await producer.wait()
        _show(table, transport, [arm.name for arm in arms], [side for side, _ in checkouts])


def _show(table: Rows, transport: str, arms: Sequence[str], sides: Sequence[str]) -> None:
    print(f"\n| {transport} | median ms | p95 | times {arms[0]} |\n|---|--:|--:|--:|")
    for name in (*arms, *sides):
        print(f"| {name} | {table.shown(name, arms[0], statistics.median)}")
    print(f"\n| {transport}: rows of replies | mean ms between two | p95 | times alone |")
    print("|---|--:|--:|--:|")
    for side in sides:
        for label, words in (
            (ALONE, "alone"),
            (PACED_SESSION, f"a piece of a prompt every {STEP_S * 1e3:.0f} ms"),
            (PROMPT_SESSION, "prompts as fast as they go"),
        ):
            alone = f"{side} {ALONE}"
            print(f"| {side}, {words} | {table.shown(f'{side} {label}', alone, statistics.mean)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--piece-rows", type=int, default=256, help="positions a step (256)")
    parser.add_argument("--transports", nargs="+", choices=RAW_ARMS, default=list(RAW_ARMS))
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    arguments = parser.parse_args(argv)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, ", end="")
    print(f"Python {platform.python_version()}; {arguments.piece_rows} positions a piece")
    checkouts = [("this", HERE)]
    if arguments.against is not None:
        checkouts.append(("other", arguments.against.resolve()))
    given = arguments.transports, arguments.piece_rows, arguments.rounds
    asyncio.run(run(checkouts, *given))
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
