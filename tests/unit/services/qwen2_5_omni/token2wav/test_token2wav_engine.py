from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import DataLoss, ErrorCode, InvalidArgument, ResourceExhausted
from antiphon.pipelines.qwen2_5_omni import AUDIO, CODES
from antiphon.runtime.engine import Emitted, InputChunk, SegmentSettings
from antiphon.transport.device_edge import ToHost
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.flow.layer import TimedLayer
from antiphon_services.qwen2_5_omni.token2wav.decoder import ROWS_AT_A_TIME
from antiphon_services.qwen2_5_omni.token2wav.engine import Token2WavEngine
from antiphon_services.qwen2_5_omni.token2wav.vocoder import (
    CALL_FRAMES,
    ROWS_OF_A_FRAME,
)
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from antiphon_testkit.late_copies import LateCopies, late_to_host
from tests.unit.services.qwen2_5_omni.token2wav.token2wav_rig import (
    TOLERANCE,
    Rig,
    Speech,
    difference,
    speech,
)

SAMPLING = Sampling(0.0, 0, 1.0, 1.0, seed=0, max_tokens=1)
KEY = SegmentKey("one", 0)
# More than a layer has of speech of 40 codes, fewer than of 800.
SHORT_ROWS = 1000


def engine_of(
    rig: Rig, *, slots: int = 8, context_limit: int = 1000, to_host: ToHost | None = None
) -> Token2WavEngine:
    return Token2WavEngine(
        rig.ours, context_limit=context_limit, slots=slots, held_blocks=3, to_host=to_host
    )


def settings(wanted: Speech) -> SegmentSettings:
    return SegmentSettings(wanted.voice, replace(SAMPLING, seed=wanted.seed), frozenset({AUDIO}))


def chunks(
    wanted: Speech, sizes: Sequence[int], reason: FinishReason = FinishReason.STOP
) -> list[InputChunk]:
    """Pieces of these sizes, again and again, and a bare finish."""
    codes = wanted.codes.numpy().astype(np.uint16)[:, None]
    made: list[InputChunk] = []
    start = 0
    while start < len(codes):
        size = sizes[len(made) % len(sizes)]
        made.append(InputChunk(CODES, start, {CODES: codes[start : start + size]}))
        start += size
    return [*made, InputChunk(CODES, len(codes), {}, segment_finished=True, finish_reason=reason)]


def check(output: SegmentOutput, wanted: Speech, rig: Rig) -> None:
    """Samples, codes, places and the end are those of the reference."""
    assert output.failed is None
    assert output.completed is not None
    count = len(wanted.codes)
    assert output.completed.input_positions == count
    assert output.completed.output_positions == 480 * count
    position = 0
    for each in output.emitted:
        assert each.edge == AUDIO
        assert each.position == position
        if each.tensors:
            assert len(each.tensors["samples"]) == 480 * len(each.tensors["codes"])
            position += len(each.tensors["samples"])
    found = output.tensors(AUDIO)
    assert found["codes"][:, 0].tolist() == wanted.codes.tolist()
    assert difference(torch.from_numpy(found["samples"]), rig.truth(wanted)) < TOLERANCE


@pytest.mark.parametrize("sizes", [(1000,), (1,), (12, 7)], ids=str)
def test_audio_equals_the_reference_at_any_chunk_size(rig: Rig, sizes: Sequence[int]) -> None:
    wanted = speech(70)
    output = run_segment(engine_of(rig), settings(wanted), chunks(wanted, sizes))
    check(output, wanted, rig)
    assert output.finish_reason(AUDIO) is FinishReason.STOP
    assert len([each for each in output.emitted if each.tensors]) > 1


def test_audio_equals_the_reference_when_eight_are_in_company(rig: Rig) -> None:
    wanted = {
        SegmentKey(f"s{seed}", 0): speech(20 + 11 * seed, ("Chelsie", "Ethan")[seed % 2], seed)
        for seed in range(8)
    }
    engine = engine_of(rig)
    outputs = run_segments(
        engine,
        {
            key: (settings(each), chunks(each, ((100,), (5,), (17, 30))[each.seed % 3]))
            for key, each in wanted.items()
        },
    )
    for key, each in wanted.items():
        check(outputs[key], each, rig)


def test_step_waits_for_no_copy_of_its_samples(rig: Rig) -> None:
    copies = LateCopies()
    to_host = late_to_host(copies)
    engine = engine_of(rig, to_host=to_host)
    wanted = {SegmentKey("s", seed): speech(30 + seed, seed=seed) for seed in range(3)}
    outputs = run_segments(
        engine, {key: (settings(each), chunks(each, (50,))) for key, each in wanted.items()}
    )
    # One copy for each call, not for each segment.
    assert 0 < copies.begun < len([one for each in outputs.values() for one in each.emitted])
    assert copies.made == 0
    wait = to_host.seal()
    assert wait is not None
    wait()
    for key, each in wanted.items():
        check(outputs[key], each, rig)


def test_audio_is_empty_when_there_are_no_codes(rig: Rig) -> None:
    output = run_segment(engine_of(rig), settings(speech(0)), chunks(speech(0), (1,)))
    assert [each.tensors for each in output.emitted] == [{}]
    assert output.finish_reason(AUDIO) is FinishReason.STOP
    assert output.completed is not None
    assert output.completed.output_positions == 0


def test_codes_that_come_during_a_call_are_in_the_next_one(rig: Rig) -> None:
    wanted = speech(100)
    engine, output = engine_of(rig), SegmentOutput()
    engine.admit(KEY, settings(wanted))
    parts = chunks(wanted, (50,))
    engine.accept(KEY, parts[0])
    assert engine.awaited_edge(KEY) is None
    assert not engine.step()
    for each in parts[1:]:
        engine.accept(KEY, each)
    advance(engine, {KEY: output})
    check(output, wanted, rig)


def test_held_segment_keeps_its_samples_and_others_go_on(rig: Rig) -> None:
    first, second = speech(30), speech(40, "Ethan", 9)
    other = SegmentKey("other", 0)
    engine = engine_of(rig)
    outputs = {KEY: SegmentOutput(), other: SegmentOutput()}
    for key, wanted in ((KEY, first), (other, second)):
        engine.admit(key, settings(wanted))
        for each in chunks(wanted, (1000,)):
            engine.accept(key, each)
    while not outputs[other].completed:
        for event in engine.step({KEY}):
            assert event.key == other
            if isinstance(event, Emitted):
                outputs[other].emitted.append(event)
            else:
                outputs[other].completed = event  # type: ignore[assignment]
    check(outputs[other], second, rig)
    engine.release(other)
    advance(engine, {KEY: outputs[KEY]})
    check(outputs[KEY], first, rig)


def test_released_segment_leaves_its_company_alone(rig: Rig) -> None:
    first, second = speech(30), speech(40, "Ethan", 9)
    other, output = SegmentKey("other", 0), SegmentOutput()
    engine = engine_of(rig, slots=2)
    for key, wanted in ((KEY, first), (other, second)):
        engine.admit(key, settings(wanted))
        for each in chunks(wanted, (1000,)):
            engine.accept(key, each)
    engine.step()
    engine.release(KEY)
    advance(engine, {other: output})
    check(output, second, rig)
    check(run_segment(engine, settings(first), chunks(first, (9,))), first, rig)


def test_short_speech_does_not_wait_for_long_speech(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no step does more than some layers of either."""
    long, short = speech(800), speech(40, "Ethan", 9)
    other = SegmentKey("other", 0)
    done: list[int] = []
    forward, vocoder = TimedLayer.forward, rig.module.code2wav_bigvgan_model

    def noted(layer: TimedLayer, rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        done.append(rows.shape[0] * rows.shape[1])
        return forward(layer, rows, *rest)

    def note_call(module: object, given: tuple[torch.Tensor]) -> None:
        (mels,) = given
        assert mels.shape[0] * mels.shape[2] <= CALL_FRAMES
        done.append(mels.shape[0] * mels.shape[2] * ROWS_OF_A_FRAME)

    monkeypatch.setattr(TimedLayer, "forward", noted)
    hook = vocoder.conv_pre.register_forward_pre_hook(note_call)
    engine, outputs = engine_of(rig), {KEY: SegmentOutput(), other: SegmentOutput()}
    ended: list[SegmentKey] = []
    for key, wanted in ((KEY, long), (other, short)):
        engine.admit(key, settings(wanted))
        for each in chunks(wanted, (1000,)):
            engine.accept(key, each)
        while len(ended) < len(outputs) if key == other else not done:
            done.clear()
            for event in engine.step():
                if isinstance(event, Emitted):
                    outputs[event.key].emitted.append(event)
                else:
                    outputs[event.key].completed = event  # type: ignore[assignment]
                    ended.append(event.key)
            # Of each of two calls what is done at a time, and what exceeded it at last.
            assert sum(done) < 2 * (ROWS_AT_A_TIME + CALL_FRAMES * ROWS_OF_A_FRAME)
    hook.remove()
    assert ended == [other, KEY]
    check(outputs[KEY], long, rig)
    check(outputs[other], short, rig)


def admit_all(engine: Token2WavEngine, **asked: Speech) -> dict[SegmentKey, SegmentOutput]:
    """Admit what is asked, whole."""
    for name, wanted in asked.items():
        engine.admit(SegmentKey(name, 0), settings(wanted))
        for each in chunks(wanted, (1000,)):
            engine.accept(SegmentKey(name, 0), each)
    return {SegmentKey(name, 0): SegmentOutput() for name in asked}


def fail_short_calls(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    forward = TimedLayer.forward

    def faulty(layer: TimedLayer, rows: torch.Tensor, *rest: Any) -> torch.Tensor:
        if rows.shape[0] * rows.shape[1] < SHORT_ROWS:
            raise RuntimeError(message)
        return forward(layer, rows, *rest)

    monkeypatch.setattr(TimedLayer, "forward", faulty)


def test_fault_fails_the_segments_of_its_call_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = speech(30), speech(800)
    engine = engine_of(rig)
    outputs = admit_all(engine, short=short, beside=short, released=short, long=long)
    assert not engine.step()
    released = SegmentKey("released", 0)
    engine.release(released)
    del outputs[released]
    fail_short_calls(monkeypatch, "no layer")
    advance(engine, outputs)
    for name in ("short", "beside"):
        failed = outputs[SegmentKey(name, 0)].failed
        assert failed is not None
        assert failed.error.code is ErrorCode.INTERNAL
        assert "RuntimeError: no layer" in failed.error.message
    check(outputs[SegmentKey("long", 0)], long, rig)
    monkeypatch.undo()
    check(run_segment(engine, settings(short), chunks(short, (9,))), short, rig)


def test_lost_device_is_everyones_fault(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(rig)
    admit_all(engine, short=speech(30), long=speech(800))
    fail_short_calls(monkeypatch, "CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.step()


def test_call_ends_when_all_that_it_was_for_are_released(rig: Rig) -> None:
    engine, wanted = engine_of(rig), speech(30)
    engine.admit(KEY, settings(speech(800)))
    for each in chunks(speech(800), (1000,)):
        engine.accept(KEY, each)
    engine.step()
    engine.release(KEY)
    assert not engine.step()
    check(run_segment(engine, settings(wanted), chunks(wanted, (9,))), wanted, rig)


def test_segment_is_refused_when_slots_are_taken_or_the_voice_is_unknown(rig: Rig) -> None:
    engine = engine_of(rig, slots=1)
    with pytest.raises(InvalidArgument, match="unknown voice 'Zoe'; use one of: chelsie, ethan"):
        engine.admit(KEY, settings(Speech(speech(1).codes, "Zoe", 0)))
    engine.admit(KEY, settings(speech(1)))
    with pytest.raises(ResourceExhausted, match="slots"):
        engine.admit(SegmentKey("two", 0), settings(speech(1)))


@pytest.mark.parametrize(
    ("chunk", "error", "said"),
    [
        (InputChunk(CODES, 0, {CODES: np.array([[66]], np.uint16)}), InvalidArgument, "below 66"),
        (InputChunk(CODES, 0, {CODES: np.array([[6]], np.int32)}), InvalidArgument, "uint16"),
        (InputChunk(CODES, 0, {CODES: np.zeros((1, 2), np.uint16)}), InvalidArgument, "uint16"),
        (InputChunk(CODES, 0, {CODES: np.zeros((9, 1), np.uint16)}), InvalidArgument, "than 8"),
        (InputChunk(CODES, 0, {}), InvalidArgument, "the only tensor"),
        (InputChunk(CODES, 3, {CODES: np.zeros((1, 1), np.uint16)}), DataLoss, "instead of code 0"),
        (InputChunk("rows", 0, {}), InvalidArgument, "unknown input edge 'rows'"),
        (InputChunk(CODES, 0, {}, segment_finished=True), DataLoss, "finish reason"),
    ],
)
def test_chunk_is_refused_when_it_does_not_fit(
    rig: Rig, chunk: InputChunk, error: type[Exception], said: str
) -> None:
    engine = engine_of(rig, context_limit=8)
    engine.admit(KEY, settings(speech(1)))
    with pytest.raises(error, match=said):
        engine.accept(KEY, chunk)
