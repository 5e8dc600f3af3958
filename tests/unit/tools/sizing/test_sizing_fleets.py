"""Laws that simulated fleets keep, whatever the load."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from antiphon_tools.sizing.measured import MeasuredPipeline
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.plan import simulated
from antiphon_tools.sizing.simulation.fluid import REPORT_S, FluidFleet
from antiphon_tools.sizing.simulation.outcome import ANSWERED, FleetOutcome
from antiphon_tools.sizing.simulation.steps import FleetSimulation
from tests.unit.tools.sizing.fleets import answering_fleet, calls_at, load, reading_fleet

GRANULARITIES = ("steps", "calls")


def run(
    measured: MeasuredPipeline, kind: str, rate: float, replicas: int = 1, **settings: Any
) -> FleetOutcome:
    counts = dict.fromkeys(measured.stages, replicas)
    return simulated(measured, load(rate, **settings), counts, kind)


@pytest.mark.parametrize("kind", GRANULARITIES)
def test_every_call_ends_once_when_many_are_refused(kind: str) -> None:
    measured = answering_fleet(max_waiting=8, queue_timeout_s=0.5)
    outcome = run(measured, kind, 25.0, seconds=8)
    assert len(outcome.calls) == len(list(load(25.0, 8).arrivals()))
    assert sum(outcome.outcomes.values()) == len(outcome.calls)
    assert {call.offered.number for call in outcome.calls} == set(range(len(outcome.calls)))
    assert set(outcome.outcomes) > {ANSWERED}
    assert "" not in outcome.outcomes
    for call in outcome.calls:
        assert (call.first_audio_at is not None) == (call.outcome == ANSWERED)
        assert call.ended_at is not None
        assert call.ended_at >= (call.first_audio_at or call.offered.at_s)
    assert all(0 < use.most_slots <= 1 for use in outcome.roles.values())


@pytest.mark.parametrize("kind", GRANULARITIES)
def test_run_is_repeated_exactly_when_the_seed_is_the_same(kind: str) -> None:
    measured = answering_fleet()
    times = [
        [
            (call.first_audio_at, call.ended_at)
            for call in run(measured, kind, 4.0, seed=seed, seconds=6).calls
        ]
        for seed in (3, 3, 4)
    ]
    assert times[0] == times[1]
    assert times[0] != times[2]


@pytest.mark.parametrize("kind", GRANULARITIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_first_audio_is_no_later_when_there_are_more_replicas(kind: str, seed: int) -> None:
    measured = answering_fleet()
    values = []
    for replicas in (1, 2, 4):
        value = run(measured, kind, 20.0, replicas, seed=seed, seconds=8).first_audio(95)
        assert value is not None
        values.append(value)
    assert values[1] <= values[0] * 1.02
    assert values[2] <= values[1] * 1.02
    assert values[2] < values[0] / 2


def test_both_granularities_agree_when_a_fleet_is_small() -> None:
    measured = answering_fleet()
    by_steps, by_calls = (run(measured, kind, 8.0, 2, seconds=40) for kind in GRANULARITIES)
    for percent in (50, 90, 95):
        steps, calls = by_steps.first_audio(percent), by_calls.first_audio(percent)
        assert steps is not None
        assert calls == pytest.approx(steps, rel=0.15)
    for role in measured.stages:
        assert by_calls.roles[role].slots == pytest.approx(by_steps.roles[role].slots, rel=0.15)


def test_work_waits_for_cores_when_all_stages_share_them() -> None:
    measured = answering_fleet()
    values = []
    for cores in (None, 4.0, 1.0):
        shared = type(measured)(stages=measured.stages, gateway=measured.gateway, cores=cores)
        values.append(run(shared, "steps", 2.0, seconds=10).first_audio(95))
    assert values[0] is not None
    assert values[1] == pytest.approx(values[0])
    assert values[2] is not None
    assert values[2] > 1.3 * values[0]


def test_load_is_even_when_gateways_pick_of_two() -> None:
    measured = answering_fleet()
    counts = dict.fromkeys(measured.stages, 8)
    outcome = simulated(measured, load(60.0, 10), counts, "calls", gateways=4)
    assert outcome.outcomes == {ANSWERED: len(outcome.calls)}
    assert outcome.picks_refused == 0


def test_replicas_report_until_the_last_call_when_the_fleet_was_idle_meanwhile() -> None:
    measured, told = answering_fleet(), list[float]()
    fleet = FluidFleet(
        measured, dict.fromkeys(measured.stages, 2), told=lambda now, calls: told.append(now)
    )
    outcome = fleet.run(calls_at(1.0, 20.0, 40.0))
    assert all(later - at == pytest.approx(REPORT_S) for at, later in pairwise(told))
    assert abs(told[-1] - outcome.ended_at) <= REPORT_S


def test_fleet_ends_when_no_call_comes_at_all() -> None:
    measured = answering_fleet()
    outcome = FluidFleet(measured, dict.fromkeys(measured.stages, 1)).run([])
    assert outcome.calls == ()


WARM_UP_S, ENDS_S = 5.0, 20.0


def use(measured: MeasuredPipeline, kind: str, calls: list[OfferedCall]) -> FleetOutcome:
    counts = dict.fromkeys(measured.stages, 4)
    if kind == "steps":
        return FleetSimulation(measured, counts).run(calls, WARM_UP_S, ENDS_S)
    return FluidFleet(measured, counts).run(calls, WARM_UP_S, ENDS_S)


@pytest.mark.parametrize("kind", GRANULARITIES)
def test_use_of_a_fleet_is_the_same_when_one_more_call_takes_ten_minutes(kind: str) -> None:
    measured = answering_fleet()
    calls = list(load(10.0, ENDS_S).calls(measured.frame_s))
    long = OfferedCall(len(calls), ENDS_S - 0.1, 50, 2400, 7500)
    without, beside = use(measured, kind, calls), use(measured, kind, [*calls, long])
    assert beside.ended_at > without.ended_at + 100
    for role, seen in without.roles.items():
        assert beside.roles[role].slots == pytest.approx(seen.slots, rel=0.03)
        assert beside.roles[role].busy == pytest.approx(seen.busy, rel=0.03)
    assert beside.gateway_busy == pytest.approx(without.gateway_busy, rel=0.03)


@pytest.mark.parametrize("kind", GRANULARITIES)
def test_use_of_a_fleet_does_not_count_the_warm_up_and_what_comes_after_the_end(kind: str) -> None:
    measured = answering_fleet()
    calls = calls_at(*(0.05 * number for number in range(20)), frames=12)
    outcome = use(measured, kind, calls)
    assert outcome.ended_at < WARM_UP_S
    for seen in outcome.roles.values():
        assert (seen.busy, seen.slots) == (0, 0)
        assert seen.most_slots > 0
    assert outcome.gateway_busy == 0


def test_both_granularities_tell_how_busy_a_gateway_and_its_engines_are() -> None:
    measured = answering_fleet(message_s=0.0005)
    calls = list(load(12.0, ENDS_S).calls(measured.frame_s))
    by_steps, by_calls = (use(measured, kind, calls) for kind in GRANULARITIES)
    assert by_calls.gateway_busy == pytest.approx(by_steps.gateway_busy, rel=0.15)
    for role, seen in by_steps.roles.items():
        # Of a stage that makes audio it is less exact: by calls chunks have one size.
        assert by_calls.roles[role].busy == pytest.approx(seen.busy, rel=0.15, abs=0.1), role


def test_slots_are_held_for_a_part_of_the_time_between_warm_up_and_end() -> None:
    # Each call holds its slot for 2 s: 1 s of the first and of the last are in the 30 s.
    outcome = FleetSimulation(reading_fleet(), {"speaker": 1, "decoder": 1}).run(
        calls_at(9.0, 20.0, 39.0), 10.0, 40.0
    )
    assert outcome.roles["speaker"].slots == pytest.approx((1 + 2 + 1) / 30)
    assert outcome.roles["speaker"].busy == pytest.approx((1 + 2 + 1) / 30)


@pytest.mark.parametrize("kind", GRANULARITIES)
def test_prompt_and_first_frame_take_one_step_when_nothing_else_is_waited_for(kind: str) -> None:
    (call,) = use(reading_fleet(), kind, calls_at(3.0)).calls
    assert call.first_audio_s is not None
    # By calls a chunk of audio waits for some of the decoder's step before it, too.
    assert 1.0 + 0.5 <= call.first_audio_s + 1e-9 <= 1.0 + 2 * 0.5
