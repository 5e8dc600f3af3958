"""Turns that are long: what is left to do when they end does not depend on that."""

from __future__ import annotations

import asyncio
import base64
import tracemalloc

import numpy as np
import pytest

from antiphon.wire.chunks import chunk_from_proto
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = 60
SECOND = np.random.default_rng(0).integers(-9000, 9000, 24_000).astype("<i2").tobytes()
PIECE = base64.b64encode(SECOND).decode()
SAMPLES = SECONDS * 16_000
LEFT_SAMPLES = 16_000
"""More than is not brought yet, or in the resampler."""


class Listener:
    """A thinker that answers when a turn's input is complete, and counts what came of that."""

    def __init__(self, samples: int) -> None:
        self.samples = self.pieces = 0
        self.has_most = asyncio.Event()
        self._most = samples - LEFT_SAMPLES

    async def __call__(self, session: Session) -> None:
        assert session.segment.live
        await session.opened()
        async for request in session.requests:
            if request.HasField("input_finished"):
                break
            if request.HasField("chunk"):
                self.samples += len(chunk_from_proto(request.chunk).tensors["samples"])
                self.pieces += 1
            if self.samples > self._most:
                self.has_most.set()
        await think(session)


async def answer_in_text(client: Realtime) -> None:
    """Have text made, and the client end its turns."""
    audio = {"input": {"turn_detection": None}}
    session = {"type": "realtime", "output_modalities": ["text"], "audio": audio}
    await client.send("session.update", session=session)
    await client.until("session.updated")


async def test_nothing_of_a_long_turn_is_copied_when_it_ends() -> None:
    thinker = Listener(SAMPLES)
    room = {"listen_after_s": 0.2, "max_body_bytes": 4 << 20}
    async with serve_gateway(**room) as served, realtime(served) as client:
        served.fakes[THINKER].script = thinker
        await answer_in_text(client)
        for _ in range(SECONDS):
            await client.send("input_audio_buffer.append", audio=PIECE)
        await thinker.has_most.wait()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            done = await client.until("response.done")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert done["response"]["status"] == "completed"
    assert thinker.samples == SAMPLES
    # Of which one copy is more than client and gateway take for all their events.
    assert peak - before < SECONDS * len(SECOND) // 2


async def test_a_turn_is_brought_to_the_stages_in_pieces_that_do_not_depend_on_the_events() -> None:
    """A message costs the same for 20 ms as for 400."""
    thinker = Listener(4 * 16_000)
    fiftieth = base64.b64encode(SECOND[: len(SECOND) // 50]).decode()
    async with serve_gateway(listen_after_s=1.0) as served, realtime(served) as client:
        served.fakes[THINKER].script = thinker
        await answer_in_text(client)
        for _ in range(200):
            await client.send("input_audio_buffer.append", audio=fiftieth)
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
    assert thinker.samples == 4 * 16_000
    # The first second at once, 0.4 s each of the others, and what is left.
    assert thinker.pieces <= 1 + 8 + 1
