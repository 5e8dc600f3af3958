"""A stage process: `python -m benchmarks.transport.prompt_stages ROLE TRANSPORT PIECE_ROWS`.

The thinker sends the rows of a long prompt, with one piece per step as in prefill, and rows of
replies at a fixed pace. The talker receives them. Neither of them performs any computation. The
process prints its address. When stdin is closed, it prints when each session started or received
data, in nanoseconds on a clock that all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import msgspec
import numpy as np

from antiphon.deployment.stage_config import TransportName
from antiphon.pipelines.qwen2_5_omni import CODES, PIPELINE, PROMPT, TALKER, THINKER, TOKENS
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    InputChunk,
    LoadedStage,
    SegmentSettings,
)
from antiphon.runtime.process import run
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import FACTS
from antiphon_testkit.stage_harness import LIMITS, LINKS, running_stage

POSITIONS, WIDTH = 10_000, 3584
STEP_S = 0.020
REPLY_TOKENS = 100
PROMPT_SESSION, PACED_SESSION, REPLY_SESSION = "prompt", "paced-prompt", "reply"
"""The prefix of a session ID determines its type.

A session sends rows as fast as possible, a piece every `STEP_S`, or a reply with a row every
`STEP_S`.
"""

Times = dict[str, list[int]]


@dataclass(slots=True)
class _Made:
    settings: SegmentSettings
    position: int = 0
    started: bool = False


class RowsEngine:
    """The thinker, whose rows already exist. `times` contains the time of the first rows of a
    session.
    """

    def __init__(self, piece_rows: int) -> None:
        self.times: Times = defaultdict(list)
        self._piece_rows = piece_rows
        rows = np.arange(POSITIONS * WIDTH, dtype=np.uint16).view(ml_dtypes.bfloat16)
        self._rows = rows.reshape(POSITIONS, WIDTH)
        self._segments: dict[SegmentKey, _Made] = {}
        self._due = time.monotonic()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        self._segments[key] = _Made(settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Start the session, because its input has arrived."""
        self._segments[key].started = True

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the input edge until the input has arrived."""
        return None if self._segments[key].started else "input"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Send a piece of each prompt and, if the time of a step has passed, a row of each
        reply.
        """
        ready = [key for key in self._segments if self.awaited_edge(key) is None]
        if not any(key.session_id.startswith(PROMPT_SESSION) for key in ready):
            time.sleep(max(0.0, self._due - time.monotonic()))
        now = time.monotonic()
        paced = now >= self._due
        if paced:
            self._due = max(self._due + STEP_S, now)
        events: list[EngineEvent] = []
        for key in ready:
            if key.session_id.startswith(PROMPT_SESSION) or paced:
                events += self._advance(key)
        return events

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self._segments[key]

    def _advance(self, key: SegmentKey) -> list[EngineEvent]:
        made = self._segments[key]
        is_reply = key.session_id.startswith(REPLY_SESSION)
        edge, count = (TOKENS, 1) if is_reply else (PROMPT, self._piece_rows)
        total = REPLY_TOKENS if is_reply else POSITIONS
        if not made.position:
            self.times[key.session_id].append(time.monotonic_ns())
        rows = self._rows[made.position : min(made.position + count, total)]
        begin, made.position = made.position, made.position + len(rows)
        if made.position < total:
            return [Emitted(key, edge, begin, {"rows": rows})]
        made.started = False
        others = made.settings.outputs - {edge}
        return [
            Emitted(key, edge, begin, {"rows": rows}, FinishReason.STOP),
            *(Emitted(key, other, 0, {}, FinishReason.STOP) for other in sorted(others)),
            Completed(key, FinishReason.STOP, total, total),
        ]


class SinkEngine:
    """The talker, which records when rows of replies and the last rows of a prompt can be read."""

    def __init__(self) -> None:
        self.times: Times = defaultdict(list)
        self._open: dict[SegmentKey, set[str]] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment."""
        self._open[key] = {PROMPT, TOKENS}

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Record the time of a reply row or of the end of a prompt."""
        is_reply = key.session_id.startswith(REPLY_SESSION)
        ends = chunk.finish_reason is not None
        if (is_reply and chunk.tensors) or (not is_reply and ends and chunk.edge == PROMPT):
            self.times[key.session_id].append(time.monotonic_ns())
        if ends:
            self._open[key].discard(chunk.edge)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return an input edge that has not ended."""
        return min(self._open[key], default=None)

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """End segments whose input has ended."""
        events: list[EngineEvent] = []
        for key, edges in self._open.items():
            if not edges:
                events.append(Emitted(key, CODES, 0, {}, FinishReason.STOP))
                events.append(Completed(key, FinishReason.STOP, 0, 0))
                edges.add("nothing more")
        return events

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self._open[key]


async def serve(role: str, engine: RowsEngine | SinkEngine, transport: TransportName) -> None:
    """Serve until stdin is closed."""
    limits = replace(LIMITS, slots=16, hold_bytes=64 << 20, stall_timeout_s=300.0)
    links = replace(LINKS, transport=transport, slab_bytes=256 << 20, resume_window_s=5.0)
    loaded = LoadedStage(engine, FACTS)
    async with running_stage(
        loaded, role, pipeline=PIPELINE, limits=limits, links=links, outbox_bytes=64 << 20
    ) as running:
        print(running.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> int:
    """Run a stage and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=(THINKER, TALKER))
    parser.add_argument("transport")
    parser.add_argument("piece_rows", type=int)
    arguments = parser.parse_args()
    engine = RowsEngine(arguments.piece_rows) if arguments.role == THINKER else SinkEngine()
    run(serve(arguments.role, engine, arguments.transport))
    print(msgspec.json.encode(engine.times).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
