"""Calls in a few fixed shapes, as a GPU replays them: the same samples, nobody's state touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_services.lm.graphs import Eager, GraphPool, RowFunction, bucket_sizes
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.batch import StreamStates
from antiphon_services.vocoder.buckets import Buckets
from antiphon_services.vocoder.pace import DecodePace
from antiphon_services.vocoder.stream import StreamDecoder
from antiphon_testkit.graph_watch import GraphWatch
from tests.unit.services.vocoder.vocoder_modules import (
    CONFIGS,
    build_module,
    decoder_of,
    make_codes,
    module_of,
    one_shot,
    piece_of,
)

SLOTS = 5
SIZES = (1, 1, 2, 3, 5, 8, 14)
STEADY = PIPELINE.chunk_policy.steady
PACE = DecodePace(step=4 * STEADY, least=4, padding=256)
EXACT = {"rtol": 0.0, "atol": 1e-10}


class Recorder:
    """A bucketing that notes the shape of each run, and may watch what it does."""

    def __init__(self, watch: GraphWatch | None = None) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._watch = watch

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        def recorded(*rows: Tensor) -> tuple[Tensor, ...]:
            self.shapes.append(tuple(rows[0].shape))
            if self._watch is None:
                return function(*rows)
            with self._watch:
                return function(*rows)

        return Eager(recorded, buffers, least)


def states_of(name: str) -> StreamStates:
    """States that were used before, with a slot that is nobody's."""
    states = decoder_of(name).new_states(SLOTS + 1)
    states.memory.fill_(7.0)
    for slot in range(SLOTS):
        states.reset(slot)
    return states


@pytest.mark.parametrize("name", CONFIGS)
def test_buckets_give_the_samples_of_one_shot_for_any_number_of_frames_and_members(
    name: str,
) -> None:
    decoder, states, recorder = decoder_of(name), states_of(name), Recorder()
    run = Buckets(decoder, states, recorder, PACE, STEADY)
    codes = [make_codes(40, seed) for seed in range(SLOTS)]
    parts: list[list[Tensor]] = [[] for _ in codes]
    done = [0] * SLOTS
    rng = np.random.default_rng(1)
    while any(each < 40 for each in done):
        able = [slot for slot in range(SLOTS) if done[slot] < 40]
        members = rng.permutation(able)[: int(rng.integers(1, SLOTS + 1))]
        sizes = [min(int(rng.choice(SIZES)), 40 - done[slot]) for slot in members]
        pieces = [
            piece_of(int(slot), codes[slot][done[slot] : done[slot] + size])
            for slot, size in zip(members, sizes, strict=True)
        ]
        with torch.inference_mode():
            rows, spans = decoder.advance(states, pieces, run)
        for slot, size, row, span in zip(members, sizes, rows, spans, strict=True):
            parts[slot].append(row[span])
            done[slot] += size
    for each, own in zip(parts, codes, strict=True):
        torch.testing.assert_close(torch.cat(each), one_shot(module_of(name), own), **EXACT)
    allowed = {
        (members, 3 + frames * decoder.groups)
        for frames in bucket_sizes(1, STEADY)
        for members in bucket_sizes(1, min(SLOTS, PACE.step // frames))
    }
    assert set(recorder.shapes) <= allowed
    assert len(set(recorder.shapes)) > 5


def test_call_without_a_bucket_is_made_as_it_is() -> None:
    decoder, states, recorder = decoder_of("odd"), states_of("odd"), Recorder()
    run = Buckets(decoder, states, recorder, DecodePace(step=STEADY, least=4, padding=256), STEADY)
    long, company = make_codes(STEADY + 1), make_codes(STEADY)
    with torch.inference_mode():
        rows, (span,) = decoder.advance(states, [piece_of(0, long)], run)
        pieces = [piece_of(1, company), piece_of(2, company)]
        together, spans = decoder.advance(states, pieces, run)
    assert recorder.shapes == []
    torch.testing.assert_close(rows[0][span], one_shot(module_of("odd"), long), **EXACT)
    expected = one_shot(module_of("odd"), company)
    for row, each in zip(together, spans, strict=True):
        torch.testing.assert_close(row[each], expected, **EXACT)


def test_samples_stay_when_the_next_call_has_the_same_shape() -> None:
    decoder, states = decoder_of("odd"), states_of("odd")
    kept = torch.zeros(SLOTS, decoder.samples_per_frame * STEADY, dtype=torch.float64)

    def replayed(function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        def into_place(*rows: Tensor) -> tuple[Tensor, ...]:
            (samples,) = function(*rows)
            place = kept[: len(samples), : samples.shape[1]]
            return (place.copy_(samples),)

        return Eager(into_place, buffers, least)

    run = Buckets(decoder, states, replayed, PACE, STEADY)
    codes = make_codes(2)
    with torch.inference_mode():
        first, (span,) = decoder.advance(states, [piece_of(0, codes)], run)
        before = first.clone()
        decoder.advance(states, [piece_of(1, make_codes(2, 5))], run)
    assert torch.equal(first, before)
    torch.testing.assert_close(first[0][span], one_shot(module_of("odd"), codes), **EXACT)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bucket_does_nothing_that_a_graph_cannot_hold(name: str) -> None:
    decoder, states, watch = decoder_of(name), states_of(name), GraphWatch()
    run = Buckets(decoder, states, Recorder(watch), PACE, STEADY)
    with torch.no_grad():
        for frames in (1, 3, STEADY):
            pieces = [piece_of(slot, make_codes(frames)) for slot in (3, 0)]
            type(decoder).advance.__wrapped__(decoder, states, pieces, run)  # type: ignore[attr-defined]
    assert watch.seen > 100
    assert watch.unfit == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_samples_are_those_of_one_shot_when_a_gpu_replays_graphs() -> None:
    truth = [one_shot(module_of("released"), make_codes(30, seed)) for seed in range(SLOTS)]
    module = build_module(torch.float32, **CONFIGS["released"]).to("cuda")
    decoder = StreamDecoder(vocoder_of(module))
    states = decoder.new_states(SLOTS + 1)
    for slot in range(SLOTS):
        states.reset(slot)
    run = Buckets(decoder, states, GraphPool(decoder.device), PACE, STEADY)
    parts: list[list[Tensor]] = [[] for _ in truth]
    for start, size in ((0, 1), (1, 1), (2, 2), (4, 3), (7, 8), (15, 15)):
        pieces = [
            piece_of(slot, make_codes(30, slot)[start : start + size]) for slot in range(SLOTS)
        ]
        with torch.inference_mode():
            rows, spans = decoder.advance(states, pieces, run)
        for part, row, span in zip(parts, rows, spans, strict=True):
            part.append(row[span].cpu().double())
    for each, whole in zip(parts, truth, strict=True):
        torch.testing.assert_close(torch.cat(each), whole, rtol=0.0, atol=1e-4)
