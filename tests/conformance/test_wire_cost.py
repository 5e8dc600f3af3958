"""What a spoken second costs on each edge, in bytes and messages of the link's stream."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.session.chunking import due
from antiphon.transport.settings import LinkSettings
from antiphon.values.chunk import Chunk, Tensors
from antiphon_testkit.link_rig import linked

SESSION = "0123456789abcdef0123456789abcdef"
FRAMES_PER_S = 12.5
SETTINGS = LinkSettings("grpc", "cpu", slab_bytes=1 << 20, resume_window_s=5.0)


async def cost(edge: str, chunks: list[tuple[int, Tensors]]) -> tuple[int, int]:
    """Bytes and messages of chunks that are sent one by one, without the hello."""
    async with linked(SETTINGS) as rig:
        counts = rig.link.state.counts
        before = 0, 0
        for sequence, (position, tensors) in enumerate(chunks):
            chunk = Chunk(SESSION, edge, sequence=sequence, position=position, tensors=tensors)
            rig.link.send_nowait(chunk)
            await rig.consumer.received.wait_count(sequence + 1)
            if not sequence:
                before = counts["message_bytes"], counts["messages"]
        return counts["message_bytes"] - before[0], counts["messages"] - before[1]


async def test_token_costs_at_most_100_bytes() -> None:
    tokens = 300
    ids = {"ids": np.array([151_645], np.int32)}
    bytes_, messages = await cost("tokens", [(number, ids) for number in range(tokens + 1)])
    assert messages == tokens
    print(f"tokens: {bytes_ / tokens:.1f} bytes and 1 message per token")
    assert bytes_ / tokens <= 100


@pytest.mark.parametrize("seconds", [2, 10, 60])
async def test_codes_cost_at_most_1_kb_per_second(seconds: int) -> None:
    frames = int(seconds * FRAMES_PER_S)
    sizes = due(frames, 0, finished=True, policy=PIPELINE.chunk_policy)
    chunks: list[tuple[int, Tensors]] = [(0, {})]
    position = 0
    for size in sizes:
        chunks.append((position, {"codes": np.full((size, 16), 2047, np.uint16)}))
        position += size
    bytes_, messages = await cost("codes", chunks)
    assert position == frames
    print(f"codes, {seconds} s: {bytes_ / seconds:.0f} B/s, {messages / seconds:.2f} messages/s")
    assert bytes_ / seconds <= 1000
