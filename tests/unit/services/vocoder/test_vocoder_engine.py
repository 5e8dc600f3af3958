from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.errors import (
    AntiphonError,
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
)
from antiphon.runtime.engine import Completed, Emitted, Failed, InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.batch import StreamStates
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_services.vocoder.pace import CPU
from antiphon_services.vocoder.stream import Run, StreamDecoder, StreamPiece
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from tests.unit.services.vocoder.vocoder_modules import (
    EDGES,
    ENTRIES,
    NO_SAMPLING,
    WANTED,
    codes_chunk,
    decoder_of,
    make_codes,
    module_of,
    one_shot,
)

STOP = FinishReason.STOP
KEY = SegmentKey("session", 0)
UNWANTED = SegmentSettings("", NO_SAMPLING, frozenset())
CONTEXT_LIMIT = 200
SLOTS = 4
# The sizes that the released deployment of another server sends: 4, then 25 each.
POLICY = (4, *[25] * 8)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_engine(name: str = "odd") -> VocoderEngine:
    return VocoderEngine(decoder_of(name), EDGES, CONTEXT_LIMIT, SLOTS)


def chunks_of(
    codes: Tensor, sizes: Sequence[int] = POLICY, *, bare_finish: bool = False
) -> list[InputChunk]:
    """The frames in chunks of these sizes; the last one finishes, or one without frames."""
    pieces, position = [], 0
    for size in sizes:
        if position < len(codes):
            pieces.append((codes[position : position + size], position))
            position += size
    if bare_finish or not pieces:
        pieces.append((codes[:0], len(codes)))
    *rest, last = pieces
    return [*(codes_chunk(*each) for each in rest), codes_chunk(*last, STOP)]


def check_audio(output: SegmentOutput, codes: Tensor, name: str = "odd") -> None:
    """The segment gave exactly the one-shot decode of its frames, each frame once."""
    expected = one_shot(module_of(name), codes).numpy() if len(codes) else np.empty(0)
    tensors = output.tensors("sound")
    samples = tensors.get("samples", np.empty(0, np.float32))
    frames = tensors.get("frames", np.empty((0, codes.shape[1]), np.uint16))
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(frames, codes.numpy())
    lengths = [len(each.tensors.get("samples", ())) for each in output.emitted]
    starts = [0, *np.cumsum(lengths)[:-1].tolist()]
    assert [each.position for each in output.emitted] == starts
    assert output.emitted[-1].finish_reason is STOP
    assert output.finish_reason("sound") is STOP
    assert output.completed == Completed(
        output.emitted[-1].key, STOP, input_positions=len(codes), output_positions=len(samples)
    )


@pytest.mark.parametrize("bare_finish", [False, True], ids=["data", "bare"])
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6, 7, 28, 29, 30, 31, 54, 55])
def test_engine_decodes_every_frame_once_when_segments_follow_on_each_other(
    frames: int, bare_finish: bool
) -> None:
    engine = make_engine()
    for segment, total in enumerate((frames, 4, frames)):
        codes = make_codes(total, seed=segment)
        chunks = chunks_of(codes, bare_finish=bare_finish)
        output = run_segment(engine, WANTED, chunks, SegmentKey("session", segment))
        check_audio(output, codes)
        assert ("samples" in output.emitted[-1].tensors) is not bare_finish
    assert engine.state_bytes == 0


def test_engine_gives_all_but_the_start_when_rates_are_the_released_ones() -> None:
    engine = make_engine("released")
    for segment in range(2):
        codes = make_codes(8, seed=segment)
        key = SegmentKey("session", segment)
        output = run_segment(engine, WANTED, chunks_of(codes, (3, 5)), key)
        assert len(output.tensors("sound")["samples"]) == 1920 * 8 - 555
        check_audio(output, codes, "released")


def test_engine_ends_with_nothing_when_no_frame_comes() -> None:
    output = run_segment(make_engine(), WANTED, [codes_chunk(make_codes(0), 0, STOP)], KEY)
    assert output.emitted == [Emitted(KEY, "sound", 0, {}, STOP)]
    assert output.completed == Completed(KEY, STOP, 0, 0)


def test_engine_passes_finish_reason_on_when_it_is_a_length_limit() -> None:
    chunks = [codes_chunk(make_codes(2), 0, FinishReason.LENGTH)]
    output = run_segment(make_engine(), WANTED, chunks, KEY)
    assert output.finish_reason("sound") is FinishReason.LENGTH
    assert output.completed is not None
    assert output.completed.finish_reason is FinishReason.LENGTH


def test_engine_carries_codes_when_first_frames_give_no_sample() -> None:
    codes = make_codes(4)
    output = run_segment(make_engine("bare"), WANTED, chunks_of(codes, (1, 1, 1, 1)), KEY)
    assert [each.tensors["samples"].shape for each in output.emitted] == [(0,), (0,), (0,), (2,)]
    check_audio(output, codes, "bare")


def test_engine_keeps_segments_apart_when_they_are_interleaved() -> None:
    codes = {SegmentKey(f"session-{each}", each): make_codes(20 + each, each) for each in range(3)}
    segments = {
        key: (WANTED, chunks_of(own, (1 + key.segment, *[4] * 6))) for key, own in codes.items()
    }
    outputs = run_segments(make_engine(), segments)
    for key, own in codes.items():
        check_audio(outputs[key], own)


def test_engine_serves_others_when_one_has_a_backlog() -> None:
    engine = make_engine()
    long, short = SegmentKey("long", 0), SegmentKey("short", 0)
    codes = {long: make_codes(100, 1), short: make_codes(3, 2)}
    outputs = {key: SegmentOutput() for key in codes}
    for key, own in codes.items():
        engine.admit(key, WANTED)
        engine.accept(key, codes_chunk(own, 0, STOP))
    advance(engine, outputs, steps=1)
    assert len(outputs[long].tensors("sound")["frames"]) == CPU.step // 2
    assert outputs[short].completed
    advance(engine, outputs, steps=1)
    assert len(outputs[long].tensors("sound")["frames"]) == CPU.step // 2 + CPU.step
    advance(engine, outputs)
    for key, own in codes.items():
        check_audio(outputs[key], own)


def test_engine_decodes_chunks_at_once_when_they_wait_together() -> None:
    engine, codes, outputs = make_engine(), make_codes(9), {KEY: SegmentOutput()}
    engine.admit(KEY, WANTED)
    for chunk in chunks_of(codes, (1, 2, 2, 4)):
        engine.accept(KEY, chunk)
    advance(engine, outputs, steps=1)
    assert len(outputs[KEY].emitted) == 1
    check_audio(outputs[KEY], codes)


def test_engine_leaves_segment_alone_when_it_is_held() -> None:
    engine, codes = make_engine(), make_codes(9)
    other = SegmentKey("other", 0)
    outputs = {key: SegmentOutput() for key in (KEY, other)}
    for key in outputs:
        engine.admit(key, WANTED)
        engine.accept(key, codes_chunk(codes, 0, STOP))
    assert {event.key for event in engine.step(held={KEY})} == {other}
    engine.release(other)
    del outputs[other]
    assert engine.awaited_edge(KEY) is None
    advance(engine, outputs)
    check_audio(outputs[KEY], codes)


@pytest.mark.parametrize("cuts", [(0, 30), (0, 7, 8, 30)])
def test_engine_drops_output_when_frames_only_prime(cuts: tuple[int, ...]) -> None:
    codes = make_codes(40)
    chunks = [
        *(codes_chunk(codes[a:b], 0, prime=True) for a, b in itertools.pairwise(cuts)),
        codes_chunk(codes[30:36], 0),
        codes_chunk(codes[36:], 6, STOP),
    ]
    output = run_segment(make_engine(), WANTED, chunks, KEY)
    expected = one_shot(module_of("odd"), codes).numpy()[decoder_of("odd").samples(30) :]
    tensors = output.tensors("sound")
    np.testing.assert_allclose(tensors["samples"], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(tensors["frames"], codes[30:].numpy())
    rate = decoder_of("odd").samples_per_frame
    assert [each.position for each in output.emitted] == [0, 6 * rate]
    assert output.completed == Completed(KEY, STOP, 10, 10 * rate)


def test_engine_ends_without_audio_when_last_frames_only_prime() -> None:
    chunks = [codes_chunk(make_codes(3), 0, STOP, prime=True)]
    output = run_segment(make_engine(), WANTED, chunks, KEY)
    assert output.emitted == [Emitted(KEY, "sound", 0, {}, STOP)]


def test_engine_refuses_more_frames_than_its_context_with_those_that_prime() -> None:
    engine = make_engine()
    engine.admit(KEY, WANTED)
    engine.accept(KEY, codes_chunk(make_codes(CONTEXT_LIMIT - 1), 0, prime=True))
    with pytest.raises(InvalidArgument, match="more than 200"):
        engine.accept(KEY, codes_chunk(make_codes(2), 0))
    engine.accept(KEY, codes_chunk(make_codes(1), 0))


def test_engine_decodes_nothing_when_nobody_wants_audio() -> None:
    engine = make_engine()
    output = run_segment(engine, UNWANTED, chunks_of(make_codes(6)), KEY)
    assert output.emitted == []
    assert output.completed == Completed(KEY, STOP, 6, 0)


GOOD = make_codes(2).numpy().astype(np.uint16)


@pytest.mark.parametrize(
    ("chunk", "error", "words"),
    [
        (InputChunk("tokens", 2, {"frames": GOOD}), InvalidArgument, "unknown input edge 'tokens'"),
        (InputChunk("frames", 2, {}), InvalidArgument, "the only tensor"),
        (InputChunk("frames", 2, {"ids": GOOD}), InvalidArgument, "the only tensor"),
        (InputChunk("frames", 2, {"frames": GOOD.astype(np.int64)}), InvalidArgument, "int64"),
        (InputChunk("frames", 2, {"frames": GOOD.flatten()}), InvalidArgument, r"\(8,\)"),
        (InputChunk("frames", 2, {"frames": GOOD[:, :3]}), InvalidArgument, r"\(2, 3\)"),
        (InputChunk("frames", 2, {"frames": GOOD * 0 + ENTRIES}), InvalidArgument, "below 32"),
        (InputChunk("frames", 2, {"frames": GOOD * 0 - 1}), InvalidArgument, "got 65535"),
        (
            InputChunk("frames", 1, {"frames": GOOD}),
            DataLoss,
            "received frame 1 instead of frame 2",
        ),
        (
            InputChunk("frames", 3, {"frames": GOOD}),
            DataLoss,
            "received frame 3 instead of frame 2",
        ),
        (InputChunk("frames", 3, {}, True, STOP), DataLoss, "received frame 3 instead of frame 2"),
        (InputChunk("frames", 2, {"frames": GOOD}, True, None), DataLoss, "finish reason"),
        (codes_chunk(make_codes(CONTEXT_LIMIT - 1), 2), InvalidArgument, "more than 200"),
    ],
)
def test_engine_refuses_chunk_when_it_is_unusable(
    chunk: InputChunk, error: type[AntiphonError], words: str
) -> None:
    engine, other = make_engine(), SegmentKey("other", 0)
    codes = make_codes(6)
    outputs = {other: SegmentOutput()}
    for key in (KEY, other):
        engine.admit(key, WANTED)
        engine.accept(key, codes_chunk(codes[:2], 0))
    with pytest.raises(error, match=words):
        engine.accept(KEY, chunk)
    engine.release(KEY)
    engine.accept(other, codes_chunk(codes[2:], 2, STOP))
    advance(engine, outputs)
    check_audio(outputs[other], codes)


def test_engine_refuses_chunk_when_segment_has_finished() -> None:
    engine = make_engine()
    engine.admit(KEY, WANTED)
    engine.accept(KEY, codes_chunk(make_codes(2), 0, STOP))
    with pytest.raises(DataLoss, match="after the last one"):
        engine.accept(KEY, codes_chunk(make_codes(1), 2))


def test_engine_refuses_segment_when_it_is_there_already() -> None:
    engine = make_engine()
    engine.admit(KEY, WANTED)
    with pytest.raises(FailedPrecondition):
        engine.admit(KEY, WANTED)


def test_engine_refuses_segment_when_all_slots_are_taken() -> None:
    engine = make_engine()
    keys = [SegmentKey("session", each) for each in range(SLOTS + 1)]
    for key in keys[:-1]:
        engine.admit(key, WANTED)
        engine.accept(key, codes_chunk(make_codes(1), 0))
    with pytest.raises(ResourceExhausted, match="4 slots"):
        engine.admit(keys[-1], WANTED)
    while engine.awaited_edge(keys[0]) is None:
        engine.step()
    assert engine.state_bytes == SLOTS * decoder_of("odd").state_bytes
    engine.release(keys[1])
    codes = make_codes(7)
    check_audio(run_segment(engine, WANTED, chunks_of(codes), keys[-1]), codes)


def test_engine_holds_memory_from_first_frames_to_release() -> None:
    engine = make_engine()
    engine.admit(KEY, WANTED)
    assert (engine.state_bytes, engine.awaited_edge(KEY)) == (0, "frames")
    engine.accept(KEY, codes_chunk(make_codes(2), 0))
    assert (engine.state_bytes, engine.awaited_edge(KEY)) == (0, None)
    engine.step()
    assert engine.state_bytes == decoder_of("odd").state_bytes
    assert engine.awaited_edge(KEY) == "frames"
    engine.accept(KEY, codes_chunk(make_codes(2), 2))
    engine.release(KEY)
    assert engine.state_bytes == 0
    assert engine.step() == []


class FaultyDecoder(StreamDecoder):
    """Breaks at a frame that starts with code 0."""

    def advance(
        self, states: StreamStates, pieces: Sequence[StreamPiece], run: Run | None = None
    ) -> tuple[Tensor, list[slice]]:
        if any(not piece.codes[0, 0] for piece in pieces):
            raise RuntimeError("out of memory")
        return super().advance(states, pieces, run)


def test_engine_fails_one_segment_when_its_decode_breaks() -> None:
    decoder = FaultyDecoder(vocoder_of(module_of("odd")))
    engine = VocoderEngine(decoder, EDGES, CONTEXT_LIMIT, SLOTS)
    good = make_codes(6).clamp(min=1)
    bad = good.clone()
    bad[3, 0] = 0
    other = SegmentKey("other", 0)
    outputs = run_segments(
        engine,
        {KEY: (WANTED, chunks_of(bad, (3, 3))), other: (WANTED, chunks_of(good, (3, 3)))},
    )
    failed = outputs[KEY].failed
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Internal)
    assert "out of memory" in failed.error.message
    assert isinstance(failed.error.__cause__, RuntimeError)
    assert outputs[KEY].completed is None
    check_audio(outputs[other], good)
    assert engine.state_bytes == 0
