"""A stage whose engine leaves copies of its outputs under way when a step ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence

import numpy as np
import torch
from msgspec import structs

from antiphon.runtime.engine import Completed, Emitted, EngineEvent, LoadedStage
from antiphon.transport.device_edge import NoStream, Staging, ToHost
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from tests.integration.stage_session import Request, Session, codes_chunk, opening


class GatedCopies(NoStream):
    """Copies are made when the gate is open; until then marks are not reached."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._pending.append((target, source))

    def mark(self) -> GatedCopies:
        return self

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.gate.wait()
        while self._pending:
            target, source = self._pending.pop(0)
            target.copy_(source)


class CopyingEngine(FakeEngine):
    """Its samples lie on a device; one copy a step takes all of them to the host."""

    def __init__(self, to_host: ToHost) -> None:
        super().__init__()
        self._to_host = to_host
        self.completed = threading.Event()

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        events = [self._copied(event) for event in super().step(held)]
        if any(isinstance(event, Completed) for event in events):
            self.completed.set()
        return events

    def _copied(self, event: EngineEvent) -> EngineEvent:
        if not isinstance(event, Emitted) or not event.tensors:
            return event
        samples = self._to_host.copy(torch.from_numpy(event.tensors["samples"]))
        return structs.replace(event, tensors={**event.tensors, "samples": samples})


async def test_audio_waits_for_its_copies_and_the_engine_does_not() -> None:
    copies, place = GatedCopies(), Staging(1 << 20, pinned=False)
    to_host = ToHost(copies, place)
    engine = CopyingEngine(to_host)
    loaded = LoadedStage(engine, FACTS, to_host)
    async with running_stage(loaded, "code2wav") as served:
        session = Session(served, "copied")
        await session.send(*opening("copied"))
        await session.opened()
        for number in range(3):
            chunk = codes_chunk("copied", number, [number + 1], end=number == 2)
            await session.send(Request(chunk=chunk_to_proto(chunk)))
        # The engine has come to the segment's end before a copy has been made.
        assert await asyncio.to_thread(engine.completed.wait, 30)
        copies.gate.set()
        heard: list[float] = []
        while True:
            audio = await session.audio()
            heard += audio.tensors["samples"].tolist() if audio.tensors else []
            if audio.segment_finished:
                break
        assert heard == np.repeat([1.0, 2.0, 3.0], 4).tolist()
        assert to_host.waited == 0
