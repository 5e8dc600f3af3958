"""Who has which slot, what it costs, and what is left in it."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import Internal, InvalidArgument, ResourceExhausted
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.experts import LEAST_ROWS, Sparse
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.flat_settings import stage_config
from tests.unit.services.prefill_steps import prefill_steps
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab, codes_of


def test_memory_is_that_of_all_slots_when_it_is_stated(
    small: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    shape = small.shape
    with caplog.at_level(logging.INFO, "antiphon_services.lm.memory"):
        load(small.directory, StageConfig(slots=50, context_limit=4000))
    position = 2 * 4 * shape.talker_layers * shape.talker_kv_heads * shape.talker_head_dim
    assert f"keys and values {position * 2e5 / 1e9:.2f}; " in caplog.text
    assert "of 50 slots of 4000 positions: " in caplog.text


def test_load_is_refused_when_the_slots_do_not_fit_the_machine(small: Lab) -> None:
    with pytest.raises(InvalidArgument, match=r"slots, context_limit: .* GB") as refused:
        load(small.directory, StageConfig(slots=1_000_000))
    assert refused.value.field == "slots"


def test_rows_of_a_step_are_those_of_the_setting(small: Lab) -> None:
    engine, turn = (
        load(small.directory, stage_config(prefill_rows=128)).engine,
        small.turn(1, audio=150),
    )
    steps, positions = prefill_steps(engine, turn.settings, turn.chunks())
    assert positions > 128
    assert steps == -(-positions // 128)


def test_segment_is_refused_when_all_slots_are_taken(small: Lab) -> None:
    engine, turn = load(small.directory, StageConfig(slots=2)).engine, small.turn(1)
    keys = [SegmentKey("session", index) for index in range(3)]
    for key in keys:
        engine.admit(key, turn.settings)  # takes no slot yet
    for key in keys[:2]:
        engine.accept(key, turn.chunks()[0])
    with pytest.raises(ResourceExhausted):
        engine.accept(keys[2], turn.chunks()[0])
    for key in keys:
        engine.release(key)
    output = run_segment(engine, turn.settings, turn.chunks())
    assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


@pytest.mark.parametrize("cancelled", [False, True])
def test_codes_are_right_when_the_slot_held_no_numbers_before(small: Lab, cancelled: bool) -> None:
    engine = load(small.directory, StageConfig(slots=1)).engine
    long, turn = small.turn(1, audio=30), small.turn(2)
    broken = replace(long, rows=np.full_like(long.rows, np.nan))
    if cancelled:
        key = SegmentKey("cancelled", 0)
        engine.admit(key, broken.settings)
        for chunk in broken.prompt_chunks():
            engine.accept(key, chunk)
        engine.step()
        engine.release(key)
    else:
        failed = run_segment(engine, broken.settings, broken.chunks()).failed
        assert failed is not None
        assert isinstance(failed.error, Internal)
    output = run_segment(engine, turn.settings, turn.chunks())
    assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


@pytest.mark.parametrize("rows", [LEAST_ROWS, 5, 33, 200])
@torch.inference_mode()
def test_experts_equal_hugging_faces_when_rows_choose_their_own(lab: Lab, rows: int) -> None:
    module = lab.model.talker.model.layers[0].mlp
    given = torch.randn(
        rows, lab.shape.talker_hidden, generator=torch.Generator().manual_seed(rows)
    )
    expected = module(given[None])[0]
    for by_loop in (True, False):
        mine = Sparse(module, by_loop=by_loop)
        torch.testing.assert_close(mine(given), expected, rtol=0, atol=1e-5)
