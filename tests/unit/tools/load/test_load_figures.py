"""The pure parts of a load test: arrivals, player, statistics, objectives, capacity."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidArgument
from antiphon_tools.load import figures
from antiphon_tools.load.arrivals import poisson_arrivals
from antiphon_tools.load.capacity import CapacitySearch
from antiphon_tools.load.measured import FedAmounts, Measured, OwnDelay, Trace
from antiphon_tools.load.objectives import Objective, good, goodput
from antiphon_tools.load.player import Piece, plays_on, underrun
from antiphon_tools.load.statistics import distribution, percentile, slope

TIMES = st.floats(min_value=0, max_value=10, allow_nan=False)


def request(
    *, texts: tuple[float, ...] = (), audio: tuple[Piece, ...] = (), error: str = ""
) -> Measured:
    """A request that was due at 100 and ended at 110."""
    trace = Trace(0, due_at=100.0, sent_at=100.5, texts=list(texts), audio=list(audio))
    return trace.end(110.0, error)


def test_time_to_the_first_image_counts_from_when_the_request_was_due() -> None:
    trace = Trace(0, due_at=100.0, sent_at=100.5, images=[103.0, 105.0])
    drawn = trace.end(110.0)
    assert (drawn.ttfi, drawn.images, drawn.metric("ttfi")) == (3.0, 2, 3.0)
    assert (request().ttfi, request().images) == (None, 0)


def test_arrivals_are_the_same_for_the_same_seed_only() -> None:
    first, again, other = (list(poisson_arrivals(50, 10, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_arrivals_are_as_many_as_the_rate_says_and_bunch_up() -> None:
    arrivals = list(poisson_arrivals(100, 100, seed=0))
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert arrivals[-1] < 100
    assert len(arrivals) == pytest.approx(10_000, rel=0.03)
    gaps = [later - at for at, later in pairwise(arrivals)]
    # Of an exponential distribution the deviation is the mean.
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)


@pytest.mark.parametrize(
    ("pieces", "shortage"),
    [
        ([], 0.0),
        ([(5.0, 1.0)], 0.0),
        ([(5.0, 1.0), (5.9, 1.0)], 0.0),
        ([(5.0, 1.0), (6.25, 1.0)], 0.25),
        # A later, larger shortage counts anew from the start: 0.25 were lost before.
        ([(5.0, 1.0), (6.25, 1.0), (7.5, 1.0)], 0.5),
        # What comes in time after a shortage does not undo it.
        ([(5.0, 1.0), (6.25, 9.0), (6.5, 1.0)], 0.25),
    ],
)
def test_underrun_is_the_worst_shortage(pieces: list[Piece], shortage: float) -> None:
    assert underrun(pieces) == shortage


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1))
def test_underrun_is_what_a_player_that_waits_when_empty_waits_in_total(
    pieces: list[Piece],
) -> None:
    pieces.sort()
    waited, plays_until = 0.0, pieces[0][0]
    for at_s, seconds in pieces:
        waited += max(at_s - plays_until, 0.0)
        plays_until = max(plays_until, at_s) + seconds
    assert underrun(pieces) == pytest.approx(waited, abs=1e-9)


def test_player_plays_on_when_it_starts_as_much_later_as_it_is_short() -> None:
    assert plays_on(0.1, 0.1)
    assert not plays_on(0.1001, 0.1)


@given(st.lists(TIMES, min_size=1), st.floats(min_value=0, max_value=100))
def test_percentile_equals_numpys(values: list[float], percent: float) -> None:
    ours = percentile(sorted(values), percent)
    assert ours == pytest.approx(float(np.percentile(values, percent)), abs=1e-9)


def test_distribution_of_known_values() -> None:
    found = distribution(range(101))
    assert found is not None
    assert (found.count, found.mean, found.min, found.max) == (101, 50, 0, 100)
    assert (found.p50, found.p90, found.p99) == (50, 90, 99)
    assert distribution([]) is None


def test_slope_of_a_line_and_of_nothing() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 1), (0, 3)]) == slope([]) == 0


def test_request_counts_from_when_it_was_due_and_not_from_when_it_was_sent() -> None:
    measured = request(texts=(101.0, 101.5), audio=((102.0, 1.0), (103.5, 2.0), (104.0, 1.0)))
    assert (measured.ttft, measured.ttfa, measured.duration) == (1.0, 2.0, 10.0)
    assert measured.late_s == 0.5
    assert measured.audio_s == 4.0
    assert measured.rtf == 1.0
    assert measured.underrun == 0.5
    assert list(measured.gaps) == [1.5, 0.5]
    assert measured.gap == 1.5


def test_request_without_audio_has_no_metrics_of_audio_and_the_gaps_of_its_text() -> None:
    measured = request(texts=(101.0, 101.5))
    assert (measured.ttfa, measured.rtf, measured.underrun) == (None, None, None)
    assert list(measured.gaps) == [0.5]


FRAME_S, FIRST_S = 0.08, 0.057
"""A frame of audio, and what is made of the first one alone."""


def fed_request(
    *, late_s: tuple[float, ...], took_s: tuple[float, ...], frames_per_s: float = 12.5
) -> Measured:
    """A stage that is fed a frame at a time, so late, and takes so long for each."""
    trace = Trace(0, due_at=100.0, sent_at=100.0)
    for index, (late, took) in enumerate(zip(late_s, took_s, strict=True)):
        due_at = 100.0 + index / frames_per_s
        trace.fed.append(FedAmounts((index + 1) * FRAME_S, due_at, late))
        trace.audio.append((due_at + late + took, FRAME_S if index else FIRST_S))
    return trace.end(110.0)


def test_underrun_of_a_fed_stage_is_not_the_drivers_delay_nor_the_short_first_frame() -> None:
    punctual = fed_request(late_s=(0, 0, 0, 0), took_s=(0.01, 0.01, 0.01, 0.01))
    assert punctual.underrun == pytest.approx(0, abs=1e-9)
    late = fed_request(late_s=(0, 0.08, 0.02, 0), took_s=(0.01, 0.01, 0.01, 0.01))
    assert late.underrun == pytest.approx(0, abs=1e-9)
    assert late.fed_late_s == 0.08
    assert late.gap == pytest.approx(FRAME_S)


def test_underrun_of_a_fed_stage_is_what_the_stage_itself_takes_longer() -> None:
    slow = fed_request(late_s=(0, 0.08, 0, 0), took_s=(0.01, 0.01, 0.06, 0.01))
    assert slow.underrun == pytest.approx(0.05)
    # A feed that is ahead of the player leaves the stage that much time.
    ahead = fed_request(late_s=(0, 0, 0, 0), took_s=(0.01, 0.01, 0.06, 0.01), frames_per_s=25)
    assert ahead.underrun == 0


def test_delay_of_a_feed_is_the_drivers_until_it_has_caught_up_and_the_stages_from_then_on() -> (
    None
):
    delay = OwnDelay()
    delay.woke(0.2)
    assert [delay.of_send(late_s) for late_s in (0.2, 0.12, 0.04, -0.04)] == [0.2, 0.12, 0.04, 0]
    delay.woke(0.001)
    # The stage reads nothing for a second.
    assert [delay.of_send(late_s) for late_s in (0.001, 1.0, 0.9)] == [0.001] * 3


@pytest.mark.parametrize(
    ("count", "p90", "p99"), [(1, False, False), (10, True, False), (99, True, False),
    (100, True, True)],
)  # fmt: skip
def test_percentiles_take_enough_values(count: int, p90: bool, p99: bool) -> None:
    found = distribution(range(count))
    assert found is not None
    assert found.count == count
    assert (found.p90 is not None, found.p99 is not None) == (p90, p99)


def test_objective_is_met_up_to_its_limit() -> None:
    measured = request(texts=(101.0,))
    assert Objective.parse("ttft=1").met_by(measured)
    assert not Objective.parse("ttft=0.999").met_by(measured)


def test_objective_about_what_never_came_is_missed() -> None:
    assert not Objective("ttfa", 1000.0).met_by(request(texts=(101.0,)))


def test_failed_request_is_never_good() -> None:
    failed = request(texts=(101.0,), error="internal")
    assert not good(failed, ())
    assert not Objective("ttft", 5.0).met_by(failed)
    assert goodput([failed, request(), request(), request()], ()) == 0.75
    assert goodput([], ()) == 0.0


@pytest.mark.parametrize("text", ["ttfa", "ttfa=", "ttfa=x", "ttfa=-1", "speed=1", "ttfa=nan"])
def test_objective_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must have the form ttfa=0\.5"):
        Objective.parse(text)


def search(capacity: float, limits: CapacitySearch) -> CapacitySearch:
    """Run a search on a service that carries loads up to `capacity`."""
    while (load := limits.next_load()) is not None:
        limits.record(load, 100, 1.0 if load <= capacity else 0.5)
    return limits


@given(st.floats(min_value=0.01, max_value=1000), st.floats(min_value=0.1, max_value=100))
def test_capacity_is_found_within_the_resolution(capacity: float, start: float) -> None:
    found = search(capacity, CapacitySearch(start, resolution=0.05, max_trials=60))
    assert found.best is not None
    assert found.bounded
    assert found.best <= capacity <= found.best * 1.05
    assert len(found.trials) < 30


@given(st.integers(min_value=1, max_value=300), st.integers(min_value=1, max_value=64))
def test_capacity_in_sessions_is_exact_when_the_resolution_allows(
    capacity: int, start: int
) -> None:
    limits = CapacitySearch(float(start), resolution=0.001, max_trials=60, whole=True)
    assert search(capacity, limits).best == capacity


def test_capacity_is_unknown_when_nothing_is_carried() -> None:
    found = search(0.0, CapacitySearch(8, max_trials=5))
    assert [each.load for each in found.trials] == [8, 4, 2, 1, 0.5]
    assert found.best is None
    assert search(0.0, CapacitySearch(4, whole=True)).best is None


def test_capacity_is_unbounded_when_the_trials_end_before_it_is_reached() -> None:
    found = search(1e9, CapacitySearch(1, max_trials=4))
    assert found.best == 8
    assert not found.bounded


def test_capacity_is_below_every_load_that_failed_when_the_service_is_erratic() -> None:
    found = CapacitySearch(4, max_trials=3)
    for load, goodput_there in ((4, 1.0), (8, 1.0), (3, 0.0)):
        found.record(load, 100, goodput_there)
    assert found.best is None


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (figures.seconds, 0.0123, "12.3 ms"),
        (figures.seconds, 1.234, "1.23 s"),
        (figures.percent, 1.0, "100.0 %"),
        (figures.percent, 0.9999, "99.9 %"),
        (figures.size, 999, "999 B"),
        (figures.size, 1_500_000, "1.5 MB"),
        (figures.size, 12e12, "12000.0 GB"),
        (figures.count, 1234, "1,234"),
    ],
)
def test_figures_are_written_for_people(write: object, value: float, text: str) -> None:
    assert callable(write)
    assert write(value) == text
