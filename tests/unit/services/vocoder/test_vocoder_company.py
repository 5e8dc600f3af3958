"""Segments that share an engine: each one's audio is what it would be alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.runtime.engine import Completed, Emitted
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_services.vocoder.pace import ACCELERATOR, CPU, DecodePace
from tests.unit.services.vocoder.vocoder_modules import (
    CONFIGS,
    EDGES,
    WANTED,
    codes_chunk,
    decoder_of,
    fresh_states,
    make_codes,
    module_of,
    one_shot,
    piece_of,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(slots=True)
class Talk:
    """A session of a schedule: all its frames, those that were sent, and what came of them."""

    codes: Tensor
    sent: int
    parts: list[Tensor]
    completed: bool = False


def send(engine: VocoderEngine, key: SegmentKey, talk: Talk, rng: np.random.Generator) -> None:
    """Give the engine the next frames, a few or many; the last ones sometimes without finish."""
    end = min(talk.sent + int(rng.choice([1, 2, 4, 25])), len(talk.codes))
    bare = talk.sent == end
    last = end == len(talk.codes) and (bare or rng.random() < 0.5)
    finish = FinishReason.STOP if last else None
    if not bare or last:
        engine.accept(key, codes_chunk(talk.codes[talk.sent : end], talk.sent, finish))
    talk.sent = end


def take(engine: VocoderEngine, talks: dict[SegmentKey, Talk], held: set[SegmentKey]) -> None:
    """One step, and what it brings."""
    for event in engine.step(held):
        assert event.key not in held
        match event:
            case Emitted():
                samples = event.tensors.get("samples", np.empty(0, np.float32))
                talks[event.key].parts.append(torch.from_numpy(samples))
            case Completed():
                talks[event.key].completed = True
            case _:
                raise AssertionError(event)


@pytest.mark.parametrize(
    ("pace", "bucketing"),
    [(CPU, None), (ACCELERATOR, None), (ACCELERATOR, Eager)],
    ids=["cpu", "accelerator", "buckets"],
)
@pytest.mark.parametrize("sessions", [1, 4, 16, 64])
def test_engine_gives_audio_of_one_shot_when_sessions_come_and_go_at_random(
    sessions: int, pace: DecodePace, bucketing: Bucketing | None
) -> None:
    rng = np.random.default_rng(sessions)
    slots = max(1, 3 * sessions // 4)
    engine = VocoderEngine(
        decoder_of("odd"), EDGES, 200, slots, pace, bucketing=bucketing, steady=12
    )
    waiting = [SegmentKey(f"session-{each}", 0) for each in range(sessions)]
    talks: dict[SegmentKey, Talk] = {}
    left: list[SegmentKey] = []
    while waiting or talks.keys() - set(left):
        live = [key for key in talks if key not in left]
        if waiting and len(live) < slots and rng.random() < 0.7:
            key = waiting.pop()
            engine.admit(key, WANTED)
            talks[key] = Talk(make_codes(int(rng.integers(0, 60)), len(talks)), 0, [])
            live.append(key)
        for key in live:
            if rng.random() < 0.3 and engine.awaited_edge(key) is not None:
                send(engine, key, talks[key], rng)
        held = {key for key in live if rng.random() < 0.2}
        take(engine, talks, held)
        for key in live:
            # Some are given up at any moment.
            if talks[key].completed or rng.random() < 0.01:
                engine.release(key)
                left.append(key)
    assert engine.state_bytes == 0
    assert sum(talk.completed for talk in talks.values()) >= sessions // 2
    for talk in talks.values():
        joined = torch.cat([torch.empty(0), *talk.parts])
        reaches = decoder_of("odd").samples(len(talk.codes)) > 0
        expected = one_shot(module_of("odd"), talk.codes).float() if reaches else torch.empty(0)
        if talk.completed:
            assert len(joined) == len(expected)
        torch.testing.assert_close(joined, expected[: len(joined)], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_are_as_close_to_the_truth_as_one_shot_when_dtype_is_float32(name: str) -> None:
    codes, sizes = make_codes(40), (3, 9, 9, 19)
    truth = one_shot(module_of(name), codes)
    error = (one_shot(module_of(name, torch.float32), codes) - truth).abs().max()
    decoder = decoder_of(name, torch.float32)
    states, parts = fresh_states(decoder, 3), []
    for own, size in zip(codes.split(sizes), (5, 8, 1, 30), strict=True):
        before, behind = piece_of(2, make_codes(size, 5)), piece_of(0, make_codes(size + 1, 6))
        parts.append(decoder.decode(states, [before, piece_of(1, own), behind])[1])
    assert (torch.cat(parts) - truth).abs().max() <= 2 * error + 1e-6


def test_shares_are_fair_when_more_wait_than_fit() -> None:
    pace = DecodePace(step=32, least=4, padding=1)
    assert pace.shares([]) == []
    assert pace.shares([100]) == [32]
    assert pace.shares([100, 3]) == [16, 3]
    assert pace.shares([1, 100, 100]) == [1, 10, 10]
    assert pace.shares([9] * 10) == [4] * 8 + [0] * 2


def test_pieces_share_a_call_when_padding_costs_less_than_another() -> None:
    pace = DecodePace(step=32, least=4, padding=2)
    assert pace.grouped([]) == []
    assert pace.grouped([4, 4, 4]) == [[0, 1, 2]]
    assert pace.grouped([25, 4, 25]) == [[0, 2], [1]]
    assert pace.grouped([3, 4, 3, 3]) == [[1, 0, 2], [3]]
    assert DecodePace(256, 4, 256).grouped([1, 40, 25]) == [[1, 2, 0]]
