from __future__ import annotations

import numpy as np
import pytest

from antiphon.chunk import Tensors
from antiphon.errors import Internal
from antiphon.pipelines.graph import Edge
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.outlet import Outlet, Piece
from antiphon.segment import ChunkPolicy, Delivery, FinishReason

POLICY = ChunkPolicy(first=1, ramp=(2, 4), steady=5)
CODES = PIPELINE.edge("codes")


def codes(start: int, count: int) -> Tensors:
    return {"codes": np.arange(start, start + count, dtype=np.uint16).repeat(4).reshape(-1, 4)}


def run(edge: Edge, delivery: Delivery, frames: int, *, bare_finish: bool) -> list[Piece]:
    outlet = Outlet(edge, delivery, POLICY)
    pieces: list[Piece] = []
    for frame in range(frames):
        last = frame == frames - 1 and not bare_finish
        pieces += outlet.push(frame, codes(frame, 1), FinishReason.STOP if last else None)
    if bare_finish or not frames:
        pieces += outlet.push(frames, {}, FinishReason.STOP)
    return pieces


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("bare_finish", [True, False])
def test_outlet_delivers_each_frame_once_and_one_finish(
    delivery: Delivery, bare_finish: bool
) -> None:
    for frames in range(61):
        pieces = run(CODES, delivery, frames, bare_finish=bare_finish)
        carried = [frame for piece in pieces for frame in piece.tensors.get("codes", [])]
        assert [int(frame[0]) for frame in carried] == list(range(frames))
        assert [piece.finish_reason for piece in pieces][:-1] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason is FinishReason.STOP
        position = 0
        for piece in pieces:
            assert piece.position == position
            position += len(piece.tensors.get("codes", []))


def test_outlet_sends_a_bare_finish_when_the_last_chunk_was_full() -> None:
    pieces = run(CODES, Delivery.STREAM, 7, bare_finish=True)
    assert [len(piece.tensors.get("codes", [])) for piece in pieces] == [1, 2, 4, 0]


def test_outlet_finishes_with_data_when_the_last_frame_brings_the_finish() -> None:
    pieces = run(CODES, Delivery.STREAM, 7, bare_finish=False)
    assert [len(piece.tensors.get("codes", [])) for piece in pieces] == [1, 2, 4]


def test_outlet_whole_is_one_chunk() -> None:
    assert len(run(CODES, Delivery.WHOLE, 23, bare_finish=True)) == 1


def test_outlet_joins_unlike_tensors_of_an_edge_when_whole() -> None:
    outlet = Outlet(PIPELINE.edge("prompt"), Delivery.WHOLE, POLICY)
    assert not outlet.push(0, {"ids": np.arange(5, dtype=np.int32)}, None)
    rows = {"rows": np.ones((2, 3), np.float32), "row_positions": np.array([1, 2], np.int32)}
    (piece,) = outlet.push(1, rows, FinishReason.STOP)
    assert set(piece.tensors) == {"ids", "rows", "row_positions"}
    assert piece.position == 0


def test_outlet_raises_when_a_position_is_skipped_or_repeated() -> None:
    for position in (0, 2):
        outlet = Outlet(CODES, Delivery.STREAM, POLICY)
        outlet.push(0, codes(0, 1), None)
        with pytest.raises(Internal, match="expected 1"):
            outlet.push(position, codes(position, 1), None)


def test_outlet_raises_when_output_follows_the_end() -> None:
    outlet = Outlet(CODES, Delivery.STREAM, POLICY)
    outlet.push(0, {}, FinishReason.STOP)
    with pytest.raises(Internal, match="after its end"):
        outlet.push(0, codes(0, 1), None)
