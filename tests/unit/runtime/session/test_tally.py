"""What a stage counts, and the series that are made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.errors import Cancelled, Internal, ResourceExhausted
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.server.metrics import tally_families
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.runtime.session.tally import STEP_SECONDS, Histogram, Outcome, Tally
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(slots=1, stall_timeout_s=1.0, hold_timeout_s=1.0, hold_bytes=1)
PLAN = StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS, sample_rate_hz=24_000)


class Told(Collector):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> list[Metric]:
        return list(tally_families(PLAN, self._tally, 12.0))


def lines(tally: Tally) -> set[str]:
    """The samples of the page."""
    text = generate_latest(Told(tally)).decode().splitlines()
    return {line.removeprefix("antiphon_stage_") for line in text if not line.startswith("#")}


def test_page_has_zeros_before_anything_has_happened() -> None:
    told = lines(Tally())
    assert 'segments_total{code="",outcome="finished",stage="talker"} 0.0' in told
    assert 'segments_total{code="",outcome="cancelled",stage="talker"} 0.0' in told
    assert 'output_positions_total{edge="codes",stage="talker"} 0.0' in told
    assert 'output_chunks_total{edge="codes",stage="talker"} 0.0' in told
    assert 'credit_stalls_total{edge="codes",stage="talker"} 0.0' in told
    assert 'credit_stall_seconds_total{edge="codes",stage="talker"} 0.0' in told
    assert 'sessions_refused_total{stage="talker"} 0.0' in told
    # A client does not hear codes.
    assert not [each for each in told if each.startswith("underrun")]
    assert 'step_seconds_count{stage="talker"} 0.0' in told


def test_page_has_what_was_counted() -> None:
    tally = Tally()
    for outcome in (Outcome.FINISHED, Outcome.FINISHED, Outcome.CANCELLED):
        tally.ended(outcome)
    tally.ended(Outcome.FAILED, Internal("broken"))
    tally.ended(Outcome.REFUSED, ResourceExhausted("full"))
    tally.positions["codes"] += 7
    tally.chunks["codes"] += 2
    tally.sessions_refused = 3
    tally.stalls.now = 10.0
    tally.stalls.begin("codes")
    tally.stepped(0.5, 2)
    tally.stepped(0.003, 1)
    tally.stepped(0.0, 0)
    assert lines(tally) >= {
        'segments_total{code="",outcome="finished",stage="talker"} 2.0',
        'segments_total{code="",outcome="cancelled",stage="talker"} 1.0',
        'segments_total{code="internal",outcome="failed",stage="talker"} 1.0',
        'segments_total{code="resource_exhausted",outcome="refused",stage="talker"} 1.0',
        'output_positions_total{edge="codes",stage="talker"} 7.0',
        'output_chunks_total{edge="codes",stage="talker"} 2.0',
        'credit_stalls_total{edge="codes",stage="talker"} 1.0',
        'credit_stall_seconds_total{edge="codes",stage="talker"} 2.0',
        'sessions_refused_total{stage="talker"} 3.0',
        'step_seconds_bucket{le="0.002",stage="talker"} 0.0',
        'step_seconds_bucket{le="0.005",stage="talker"} 1.0',
        'step_seconds_bucket{le="0.5",stage="talker"} 2.0',
        'step_seconds_bucket{le="+Inf",stage="talker"} 2.0',
        'step_seconds_sum{stage="talker"} 0.503',
        'step_segments_bucket{le="1.0",stage="talker"} 1.0',
        'step_segments_bucket{le="2.0",stage="talker"} 2.0',
        'step_segments_sum{stage="talker"} 3.0',
    }


def test_what_a_neighbour_cancelled_is_no_failure() -> None:
    tally = Tally()
    tally.ended(Outcome.FAILED, Cancelled("the session has ended"))
    assert tally.segments == {(Outcome.CANCELLED, ""): 1}


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(STEP_SECONDS))))
def test_histogram_counts_each_value_at_the_first_bound_that_is_not_below(
    values: list[float],
) -> None:
    histogram = Histogram(STEP_SECONDS)
    for value in values:
        histogram.add(value)
    for index, bound in enumerate(STEP_SECONDS):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))
