"""What a GPU replays as graphs: the same codes, and nothing that a graph cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.attention import Span
from antiphon_services.lm.codebooks import CodePredictor
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.experts import LEAST_ROWS, Sparse
from antiphon_services.lm.graphs import Eager, RowFunction, bucket_sizes
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.lm.sampler import SamplingRows
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_services.qwen3_omni.talker.model import PREDICTOR_SAMPLING
from antiphon_testkit.drive_engine import run_segments
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.graph_watch import GraphWatch
from tests.replayed_graphs import ReplayPool
from tests.unit.services.grouped_experts import experts_as_on_a_gpu
from tests.unit.services.qwen3_omni.talker.talker_lab import (
    GREEDY,
    SAMPLED,
    Lab,
    Turn,
    codes_of,
    make_late_engine,
)

ROWS = 16


class Recorder:
    """A bucketing that remembers the number of rows of each run, and watches it."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.watch = GraphWatch()

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        runs: list[int] = []
        self.runs.append(runs)

        def recorded(*rows: Tensor) -> tuple[Tensor, ...]:
            runs.append(len(rows[0]))
            with self.watch:
                return function(*rows)

        return Eager(recorded, buffers, least)


Inputs = dict[SegmentKey, tuple[SegmentSettings, Sequence[InputChunk]]]


def inputs_of(turns: Sequence[Turn]) -> Inputs:
    return {
        SegmentKey(f"session {index}", 0): (turn.settings, turn.chunks())
        for index, turn in enumerate(turns)
    }


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(4, 4, (4,)), (4, 5, (4, 5)), (4, 16, (4, 8, 16)), (1, 6, (1, 2, 4, 6)), (4, 2, (2,))],
)
def test_buckets_double_up_to_the_most_when_sized(
    least: int, most: int, sizes: tuple[int, ...]
) -> None:
    assert bucket_sizes(least, most) == sizes


def test_rows_are_padded_with_what_was_there_when_they_fill_no_bucket() -> None:
    met: list[list[int]] = []

    def double(rows: Tensor) -> tuple[Tensor]:
        met.append(rows.tolist())
        return (rows * 2,)

    run = Eager(double, [torch.zeros(6, dtype=torch.int64)], 2)
    results = [run(torch.arange(1, 1 + count))[0].tolist() for count in (3, 1, 2, 6)]
    assert met == [[1, 2, 3, 0], [1, 2], [1, 2], [1, 2, 3, 4, 5, 6]]
    assert results == [[2, 4, 6], [2], [2, 4], [2, 4, 6, 8, 10, 12]]


@pytest.mark.parametrize("count", [4, 5, 7, 11, ROWS])
@torch.inference_mode()
def test_states_and_memory_have_the_same_digits_when_rows_are_padded(lab: Lab, count: int) -> None:
    module, generator = lab.model.talker.model, torch.Generator().manual_seed(count)
    plain = Decoder(module, 300, batch_invariant=True, exact_norms=False)
    bucketed = Decoder(
        module, 300, batch_invariant=True, exact_norms=False, bucketing=Eager, most_rows=ROWS
    )
    caches = [KVCache(plain.shape, ROWS, 300) for _ in range(2)]
    layers = range(plain.shape.layers)
    for layer in layers:
        memory = caches[0].layer(layer)
        memory.copy_(torch.randn(memory.shape, generator=generator))
    width = lab.shape.talker_hidden
    # Whoever was there before leaves its rows in the padding, which may be anything.
    first = [Span(slot, 0) for slot in range(ROWS)]
    bucketed.append(torch.full((ROWS, width), np.nan), bucketed.plan(caches[1], first))
    for layer in layers:
        caches[1].layer(layer).copy_(caches[0].layer(layer))
    spans = sorted((Span(slot, 19 * slot) for slot in range(count)), key=plain.order)
    rows = torch.randn(count, width, generator=generator)
    expected, _ = plain.append(rows, plain.plan(caches[0], spans))
    states, _ = bucketed.append(rows, bucketed.plan(caches[1], spans))
    assert torch.equal(states, expected)
    for layer in layers:
        assert torch.equal(caches[1].layer(layer), caches[0].layer(layer))


@pytest.mark.parametrize("prompts", [[40], [2, 30, 1], [5, 12]])
@torch.inference_mode()
def test_draws_go_by_bucket_when_prompts_fill_the_rest_of_a_step(
    lab: Lab, prompts: list[int]
) -> None:
    module, recorder = lab.model.talker.model, Recorder()
    plain = Decoder(module, 300, batch_invariant=True, exact_norms=False)
    cut = Decoder(
        module, 300, batch_invariant=True, exact_norms=False, bucketing=recorder, most_rows=ROWS
    )
    generator = torch.Generator().manual_seed(sum(prompts))
    caches = [KVCache(plain.shape, ROWS, 300) for _ in range(2)]
    for layer in range(plain.shape.layers):
        memory = caches[0].layer(layer)
        memory.copy_(torch.randn(memory.shape, generator=generator))
        caches[1].layer(layer).copy_(memory)
    spans = [Span(slot, 3 * slot, count) for slot, count in enumerate(prompts)]
    spans.sort(key=lambda span: span.count == 1)
    draws = [Span(slot, 19 * slot) for slot in range(len(prompts), 9)]
    spans += sorted(draws, key=plain.order)
    # The last draw again: few draws have as many rows as products need.
    rows = torch.randn(
        sum(each.count for each in spans), lab.shape.talker_hidden, generator=generator
    )
    rows = torch.cat((rows, rows[-1:]))
    tapped_layer = 1
    expected = plain.append(rows, plain.plan(caches[0], spans), tapped_layer=tapped_layer)
    for runs in recorder.runs:
        runs.clear()
    made = cut.append(rows, cut.plan(caches[1], spans), tapped_layer=tapped_layer)
    for each, wanted in zip(made, expected, strict=True):
        assert torch.equal(each, wanted)
    for layer in range(plain.shape.layers):
        assert torch.equal(caches[1].layer(layer), caches[0].layer(layer))
    # A piece runs once, for the draws alone, or first for what prompts of few rows have.
    alone = len(draws) + prompts.count(1) + 1
    for runs in recorder.runs:
        assert runs[-1] == next(size for size in bucket_sizes(4, ROWS) if size >= alone)


def company(lab: Lab, samplings: Sequence[Sampling]) -> Inputs:
    """Segments of different lengths with these settings in turn."""
    lengths = [(1 + index % 5, 2 + index % 7) for index in range(11)]
    return inputs_of(
        [
            replace(
                lab.turn(1 + index, reply=reply),
                sampling=replace(
                    samplings[index % len(samplings)], seed=index, max_tokens=max_tokens
                ),
            )
            for index, (reply, max_tokens) in enumerate(lengths)
        ]
    )


def check_same_codes(lab: Lab, engine: Engine, plain: Engine, inputs: Inputs) -> None:
    outputs, expected = run_segments(engine, inputs), run_segments(plain, inputs)
    for key, output in outputs.items():
        assert codes_of(lab, output).tolist() == codes_of(lab, expected[key]).tolist()


@pytest.mark.parametrize("samplings", [[GREEDY], [SAMPLED], [GREEDY, SAMPLED]])
def test_codes_equal_the_plain_paths_when_a_step_has_any_number_of_rows(
    lab: Lab, samplings: list[Sampling]
) -> None:
    recorder = Recorder()
    engine = load(lab.directory, StageConfig(slots=ROWS), recorder).engine
    for runs in recorder.runs:
        runs.clear()
    check_same_codes(lab, engine, lab.stage.engine, company(lab, samplings))
    *pieces, predictor = recorder.runs
    assert len(pieces) == len(lab.model.talker.model.layers) + 1
    assert all(pieces)
    assert set(predictor) == {4, 8, 16}


def test_codes_equal_the_plain_paths_when_graphs_write_where_they_wrote_before(lab: Lab) -> None:
    pool = ReplayPool()
    engine = load(lab.directory, StageConfig(slots=ROWS), pool).engine
    # A graph for each bucket of each piece, and of the code predictor.
    assert len(pool.graphs) == 3 * (len(lab.model.talker.model.layers) + 2)
    check_same_codes(lab, engine, lab.stage.engine, company(lab, [GREEDY, SAMPLED]))


def test_codes_equal_the_plain_paths_when_graphs_run_again_before_frames_are_read(
    lab: Lab,
) -> None:
    engine, _ = make_late_engine(lab, ROWS, ReplayPool())
    check_same_codes(lab, engine, lab.stage.engine, company(lab, [GREEDY, SAMPLED]))


@torch.no_grad()
def test_code_predictor_asks_the_device_for_nothing_when_it_draws(lab: Lab) -> None:
    recorder = Recorder()
    predictor = CodePredictor(lab.model.talker.code_predictor, ROWS, PREDICTOR_SAMPLING, recorder)
    settings = SamplingRows.of([GREEDY, SAMPLED, SAMPLED, SAMPLED, GREEDY], torch.device("cpu"))
    rows = torch.randn(2, 5, lab.shape.talker_hidden)
    first, numbers = torch.zeros(5, dtype=torch.int64), torch.rand(5, predictor.groups).double()
    predictor.frames(rows[0], first, rows[1], settings, numbers)
    assert recorder.runs == [[8]]
    assert recorder.watch.seen > 100
    assert recorder.watch.unfit == []


@torch.no_grad()
def test_talker_asks_the_device_for_nothing_when_experts_are_one_product(lab: Lab) -> None:
    recorder = Recorder()

    def append() -> None:
        decoder = Decoder(
            lab.model.talker.model,
            300,
            batch_invariant=True,
            exact_norms=False,
            bucketing=recorder,
            most_rows=ROWS,
        )
        cache = KVCache(decoder.shape, ROWS, 300)
        rows = torch.randn(5, lab.shape.talker_hidden)
        decoder.append(rows, decoder.plan(cache, [Span(slot, 3) for slot in range(5)]))

    with experts_as_on_a_gpu():
        append()
    assert recorder.runs
    assert recorder.watch.unfit == []
    # The loop over experts, which only a CPU takes, is seen to ask.
    append()
    assert recorder.watch.unfit


def test_talker_has_pieces_only_where_experts_ask_nothing(lab: Lab) -> None:
    talker = lab.model.talker
    assert Sparse(talker.model.layers[-1].mlp).asks_device
    assert not Decoder(
        talker.code_predictor.model, 4, batch_invariant=True, exact_norms=False
    ).asks_device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("dtype", "sessions", "sampling"),
    [
        ("float32", 11, GREEDY),
        # Where rows fill a bucket, both sides run the same shapes and round alike.
        ("float32", LEAST_ROWS, SAMPLED),
        ("bfloat16", LEAST_ROWS, GREEDY),
        ("bfloat16", LEAST_ROWS, SAMPLED),
    ],
)
def test_codes_are_the_same_when_a_gpu_replays_graphs(
    lab: Lab, dtype: Any, sessions: int, sampling: Sampling
) -> None:
    turns = [
        replace(lab.turn(1 + index), sampling=replace(sampling, seed=index))
        for index in range(sessions)
    ]
    captured, plain = (
        load(
            lab.directory, stage_config(device="cuda", dtype=dtype, slots=sessions, graphs=graphs)
        ).engine
        for graphs in (True, False)
    )
    check_same_codes(lab, captured, plain, inputs_of(turns))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("graphs", [False, True])
def test_codes_are_the_same_when_a_gpu_launches_ahead(lab: Lab, graphs: bool) -> None:
    # Who shares a step differs at the ends, and with it the digits: so no close choices.
    inputs = inputs_of([lab.turn(1 + index) for index in range(11)])
    ahead, plain = (
        load(
            lab.directory,
            stage_config(device="cuda", slots=11, graphs=graphs, launch_ahead=launch_ahead),
        ).engine
        for launch_ahead in (True, False)
    )
    check_same_codes(lab, ahead, plain, inputs)
