"""What vLLM's scheduler is told of the rows of a step, without vLLM's engine around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon_services.vllm import environment
from antiphon_services.vllm.row_receiver import RowReceiver
from antiphon_services.vllm.spans import TAP_LAYER, RowSpan, StepRows, wanted

pytest.importorskip("vllm")

# vLLM and what it imports warn of their own futures.
pytestmark = pytest.mark.filterwarnings("default")

BLOCK = 4
WIDTH = 8
STEP_ROWS = 5
ROW_BYTES = WIDTH * 4


class Scheduler:
    """vLLM's, as far as the connector sees it: one request named `r`."""

    def __init__(self, receiver: RowReceiver) -> None:
        environment.prepare(StageConfig(engine="vllm"), {})
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        from antiphon_services.vllm.connector import ROW_STEPS, RowConnector

        address = receiver.address
        extra = {
            "name": address.name,
            "secret": address.secret,
            "waiting_bytes": STEP_ROWS * ROW_STEPS * ROW_BYTES,
        }
        text = SimpleNamespace(hidden_size=WIDTH)
        spec = SimpleNamespace(block_size=BLOCK)
        group = SimpleNamespace(layer_names=["attention.0", TAP_LAYER], kv_cache_spec=spec)
        config: Any = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
            model_config=SimpleNamespace(hf_text_config=text, dtype=torch.float32),
        )
        groups: Any = SimpleNamespace(kv_cache_groups=[group])
        self.connector = RowConnector(config, KVConnectorRole.SCHEDULER, groups)

    def begin(self, positions: range, reply_from: int | None = None) -> None:
        """The request comes."""
        asked = wanted(7, np.array(positions), reply_from)
        request: Any = SimpleNamespace(request_id="r", kv_transfer_params=asked)
        self.connector.on_new_request(request)

    def step(self, ends: Mapping[str, int], table: list[int]) -> tuple[StepRows, StepRows]:
        """A step behind which so many positions are computed, with the blocks of `r`."""
        cached = SimpleNamespace(
            req_ids=list(ends), num_computed_tokens=[n - 1 for n in ends.values()]
        )
        output: Any = SimpleNamespace(
            scheduled_cached_reqs=cached,
            scheduled_new_reqs=[],
            num_scheduled_tokens=dict.fromkeys(ends, 1),
            scheduled_spec_decode_tokens={},
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: (table,)),
        )
        told = self.connector.build_connector_meta(output)
        return told.rows, told.ended

    def end(self, table: list[int]) -> None:
        request: Any = SimpleNamespace(request_id="r")
        assert self.connector.request_finished_all_groups(request, (table,)) == (False, None)

    def behind(self, size_bytes: int) -> None:
        """A worker tells how much waits."""
        from antiphon_services.vllm.connector import RowsWaiting

        told: Any = SimpleNamespace(kv_connector_worker_meta=RowsWaiting(size_bytes))
        self.connector.update_connector_output(told)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    receiver = RowReceiver(
        rows=lambda *_: None, lost=lambda _: None, broken=lambda _: None, life=lambda: 0
    )
    yield Scheduler(receiver)
    receiver.close()


def slots(rows: StepRows) -> list[int]:
    return np.concatenate(rows.slots).tolist() if rows.slots else []


def test_rows_of_a_prefix_hit_leave_over_steps_in_order(scheduler: Scheduler) -> None:
    scheduler.begin(range(12), reply_from=12)
    table = [9, 2, 5, 7]
    rows, _ = scheduler.step({"r": 12}, table)
    assert (rows.spans, slots(rows)) == ([RowSpan(7, 0, 5)], [36, 37, 38, 39, 8])
    rows, _ = scheduler.step({"r": 13}, table)
    assert rows.spans == [RowSpan(7, 5, 5)]
    rows, ended = scheduler.step({"r": 14}, table)
    assert (rows.spans, slots(rows)) == (
        [RowSpan(7, 10, 2), RowSpan(7, 12, 2)],
        [22, 23, 28, 29],
    )
    assert not ended.spans


def test_no_rows_leave_while_the_stage_is_behind(scheduler: Scheduler) -> None:
    scheduler.begin(range(12))
    scheduler.behind(3 * STEP_ROWS * ROW_BYTES)
    assert not scheduler.step({"r": 12}, [1, 2, 3])[0].spans
    scheduler.behind(STEP_ROWS * ROW_BYTES)
    assert scheduler.step({"r": 12}, [1, 2, 3])[0].spans == [RowSpan(7, 0, 5)]


def test_rows_of_a_request_that_was_thrown_out_leave_when_they_are_computed_again(
    scheduler: Scheduler,
) -> None:
    scheduler.begin(range(12))
    assert scheduler.step({"r": 12}, [1, 2, 3])[0].spans == [RowSpan(7, 0, 5)]
    assert not scheduler.step({}, [])[0].spans
    rows, _ = scheduler.step({"r": 7}, [6, 4])
    assert (rows.spans, slots(rows)) == ([RowSpan(7, 5, 2)], [17, 18])
    assert scheduler.step({"r": 12}, [6, 4, 8])[0].spans == [RowSpan(7, 7, 5)]


def test_rows_that_are_left_at_the_end_are_taken_before_the_next_step(
    scheduler: Scheduler,
) -> None:
    scheduler.begin(range(12), reply_from=12)
    scheduler.step({"r": 13}, [9, 2, 5, 7])
    scheduler.end([9, 2, 5, 7])
    rows, ended = scheduler.step({}, [])
    assert not rows.spans
    assert ended.spans == [RowSpan(7, 5, 7), RowSpan(7, 12, 1)]
    assert slots(ended) == [9, 10, 11, 20, 21, 22, 23, 28]
    assert not scheduler.step({}, [])[1].spans


def test_nothing_is_taken_of_a_request_that_ends_without_blocks(scheduler: Scheduler) -> None:
    """It was thrown out, and its blocks are somebody else's."""
    scheduler.begin(range(12))
    scheduler.step({"r": 12}, [9, 2, 5])
    scheduler.end([])
    assert not scheduler.step({}, [])[1].spans
