from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import Internal
from antiphon.pipelines.graph import Edge
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Emitted
from antiphon.runtime.session.credit import Credit
from antiphon.runtime.session.instructions import Destination
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.values.chunk import Tensors
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason, SegmentKey

POLICY = ChunkPolicy(first=1, ramp=(2, 4), steady=5)
CODES = PIPELINE.edge("codes")


def codes(start: int, count: int) -> Tensors:
    return {"codes": np.arange(start, start + count, dtype=np.uint16).repeat(4).reshape(-1, 4)}


def run(edge: Edge, delivery: Delivery, frames: int, *, bare_finish: bool) -> list[Piece]:
    outlet = OutputEdge(edge, delivery, POLICY)
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
    outlet = OutputEdge(PIPELINE.edge("prompt"), Delivery.WHOLE, POLICY)
    assert not outlet.push(0, {"ids": np.arange(5, dtype=np.int32)}, None)
    rows = {"rows": np.ones((2, 3), np.float32), "row_positions": np.array([1, 2], np.int32)}
    (piece,) = outlet.push(1, rows, FinishReason.STOP)
    assert set(piece.tensors) == {"ids", "rows", "row_positions"}
    assert piece.position == 0


def test_outlet_raises_when_a_position_is_skipped_or_repeated() -> None:
    for position in (0, 2):
        outlet = OutputEdge(CODES, Delivery.STREAM, POLICY)
        outlet.push(0, codes(0, 1), None)
        with pytest.raises(Internal, match="expected 1"):
            outlet.push(position, codes(position, 1), None)


def test_outlet_raises_when_output_follows_the_end() -> None:
    outlet = OutputEdge(CODES, Delivery.STREAM, POLICY)
    outlet.push(0, {}, FinishReason.STOP)
    with pytest.raises(Internal, match="after its end"):
        outlet.push(0, codes(0, 1), None)


def hidden_rows(count: int) -> Tensors:
    rows = np.arange(count * 4096, dtype=np.float32).reshape(count, 4096)
    return {"rows": rows, "row_positions": np.arange(count, dtype=np.int32)}


def test_outlet_cuts_what_is_large_into_pieces_that_join_to_the_same() -> None:
    outlet = OutputEdge(PIPELINE.edge("prompt"), Delivery.STREAM, POLICY)
    (ids,) = outlet.push(0, {"ids": np.arange(700, dtype=np.int32)}, None)
    assert len(ids.tensors["ids"]) == 700
    whole = hidden_rows(700)
    pieces = outlet.push(700, whole, FinishReason.STOP)
    assert len(pieces) == 3
    for name, tensor in whole.items():
        np.testing.assert_array_equal(
            np.concatenate([piece.tensors[name] for piece in pieces]), tensor
        )
    sizes = [sum(tensor.nbytes for tensor in piece.tensors.values()) for piece in pieces]
    assert max(sizes) <= 4 << 20
    assert {piece.position for piece in pieces} == {700}
    assert [piece.finish_reason for piece in pieces] == [None, None, FinishReason.STOP]


def test_outlet_pieces_count_on_when_the_cut_tensor_is_what_positions_count() -> None:
    outlet = OutputEdge(PIPELINE.edge("tokens"), Delivery.STREAM, POLICY)
    ids = np.arange(3 << 20, dtype=np.int32)
    pieces = outlet.push(0, {"ids": ids}, None)
    assert len(pieces) > 2
    for piece in pieces:
        assert piece.tensors["ids"][0] == piece.position
    assert outlet.total == len(ids)
    assert outlet.push(len(ids), {}, FinishReason.STOP)[-1].position == len(ids)


def test_outlet_leaves_one_piece_when_whole_or_when_tensors_have_rows_of_their_own() -> None:
    outlet = OutputEdge(PIPELINE.edge("prompt"), Delivery.WHOLE, POLICY)
    assert len(outlet.push(0, hidden_rows(700), FinishReason.STOP)) == 1
    outlet = OutputEdge(PIPELINE.edge("text"), Delivery.STREAM, POLICY)
    unlike = {"ids": np.arange(3, dtype=np.int32), "utf8": np.zeros(9 << 20, np.uint8)}
    assert len(outlet.push(0, unlike, FinishReason.STOP)) == 1


def test_outlet_cuts_large_tensors_of_unlike_lengths_each_on_its_own() -> None:
    outlet = OutputEdge(PIPELINE.edge("text"), Delivery.STREAM, POLICY)
    apart = {"speaker": np.zeros(192, np.float32), "mel": np.ones((20_000, 80), np.float32)}
    pieces = outlet.push(0, apart, None)
    assert [[*piece.tensors] for piece in pieces] == [["speaker"], ["mel"], ["mel"]]
    assert {piece.position for piece in pieces} == {0}
    joined = np.concatenate([piece.tensors["mel"] for piece in pieces[1:]])
    np.testing.assert_array_equal(joined, apart["mel"])


@pytest.mark.parametrize("delivery", list(Delivery))
def test_outlet_raises_when_a_grouped_edge_has_a_tensor_without_a_row_for_each_position(
    delivery: Delivery,
) -> None:
    speaker = {"speaker": np.zeros(192, np.float32)}
    for tensors in (speaker, {**codes(0, 3), **speaker}):
        with pytest.raises(Internal, match="speaker has no row for each position"):
            OutputEdge(CODES, delivery, POLICY).push(0, tensors, None)


def test_outlet_cuts_no_row_in_two() -> None:
    outlet = OutputEdge(PIPELINE.edge("prompt"), Delivery.STREAM, POLICY)
    rows = {"rows": np.zeros((2, 5 << 20), np.uint8), "row_positions": np.arange(2, dtype=np.int32)}
    pieces = outlet.push(0, rows, None)
    assert [len(piece.tensors["rows"]) for piece in pieces] == [1, 1]


def primer(frames: int, position: int = 0, finish: FinishReason | None = None) -> Emitted:
    return Emitted(SegmentKey("s", 0), "codes", position, codes(0, frames), finish, prime=True)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_outlet_sends_what_primes_at_once_and_counts_it_nowhere(delivery: Delivery) -> None:
    outlet = OutputEdge(CODES, delivery, POLICY, Credit(2, [Destination("here:1")]))
    limit = outlet.limit
    for frames in (1, 50):
        (piece,) = outlet.prime(primer(frames))
        assert (piece.position, piece.prime, piece.finish_reason) == (0, True, None)
        assert len(piece.tensors["codes"]) == frames
    assert (outlet.total, outlet.held, outlet.limit) == (0, False, limit)
    (first, *_) = outlet.push(0, codes(0, 1), FinishReason.STOP)
    assert (first.position, first.prime) == (0, False)


def test_outlet_cuts_what_primes_and_is_large_into_pieces_at_position_0() -> None:
    outlet = OutputEdge(CODES, Delivery.WHOLE, POLICY)
    pieces = outlet.prime(primer(1_200_000))
    assert len(pieces) == 3
    assert {(piece.position, piece.prime) for piece in pieces} == {(0, True)}
    assert sum(len(piece.tensors["codes"]) for piece in pieces) == 1_200_000


@pytest.mark.parametrize("delivery", list(Delivery))
def test_outlet_raises_when_it_primes_after_the_first_position(delivery: Delivery) -> None:
    outlet = OutputEdge(CODES, delivery, POLICY)
    outlet.push(0, codes(0, 1), None)
    with pytest.raises(Internal, match="must come first"):
        outlet.prime(primer(1))


def test_outlet_raises_when_it_primes_after_the_end_at_a_position_or_undeclared() -> None:
    ended = OutputEdge(CODES, Delivery.STREAM, POLICY)
    ended.push(0, {}, FinishReason.STOP)
    for outlet, emitted in (
        (ended, primer(1)),
        (OutputEdge(CODES, Delivery.STREAM, POLICY), primer(1, position=1)),
        (OutputEdge(CODES, Delivery.STREAM, POLICY), primer(1, finish=FinishReason.STOP)),
    ):
        with pytest.raises(Internal, match="must come first"):
            outlet.prime(emitted)
    with pytest.raises(Internal, match="not declared `primed`"):
        OutputEdge(PIPELINE.edge("tokens"), Delivery.STREAM, POLICY).prime(primer(1))
