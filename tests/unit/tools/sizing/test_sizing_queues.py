"""Simulated queues whose answers are known exactly."""

from __future__ import annotations

import pytest

from antiphon_tools.sizing.curve import Curve
from antiphon_tools.sizing.measured import measured_of
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.simulation.clock import SimulatedClock
from antiphon_tools.sizing.simulation.outcome import ANSWERED, SimulatedCall
from antiphon_tools.sizing.simulation.processor import WEIGHT_PER_NICE, SerialThread, SharedCores
from antiphon_tools.sizing.simulation.shared_rate import SharedRateReplica
from antiphon_tools.sizing.simulation.steps import FleetSimulation
from tests.unit.tools.sizing.fleets import calls_at, load, reading_fleet

ONE_EACH = {"speaker": 1, "decoder": 1}
# A step with the prompt and the frame, and one that finds the end.
SERVICE_S = 2.0


def test_first_audio_is_the_sum_of_all_steps_when_one_call_comes() -> None:
    outcome = FleetSimulation(reading_fleet(), ONE_EACH).run(calls_at(10.0))
    (call,) = outcome.calls
    assert call.first_audio_s == pytest.approx(1.0 + 0.5)
    assert call.ended_at == pytest.approx(10 + SERVICE_S)
    assert call.outcome == ANSWERED


def test_frames_come_in_chunks_when_a_reply_has_many() -> None:
    fleet = reading_fleet()
    fleet = type(fleet)(
        stages=fleet.stages, gateway=fleet.gateway, network_s=0, chunk_frames=(1, 3)
    )
    (call,) = FleetSimulation(fleet, ONE_EACH).run(calls_at(0.0, frames=5)).calls
    # Frames at 1 to 5; the last chunk has only one, and leaves with the end at 6.
    assert call.first_audio_s == pytest.approx(1.5)
    assert call.ended_at == pytest.approx(6.5)


def test_every_wait_is_that_of_lindleys_recursion_when_service_takes_always_as_long() -> None:
    fleet = reading_fleet(queue_timeout_s=1e6, max_waiting=10_000)
    offered = load(0.25, seconds=1500, seed=5).arrivals()
    moments = list(offered)
    outcome = FleetSimulation(fleet, ONE_EACH).run(calls_at(*moments))
    wait_s, before, waits = 0.0, moments[0], []
    for moment in moments:
        wait_s = max(0.0, wait_s + SERVICE_S - (moment - before)) if waits else 0.0
        before = moment
        waits.append(wait_s)
    assert [call.waited_s for call in outcome.calls] == pytest.approx(waits)
    assert max(waits) > 5 * SERVICE_S


def test_utilisation_is_offered_work_when_nobody_is_refused() -> None:
    moments = [10.0 * number for number in range(20)]
    outcome = FleetSimulation(reading_fleet(), ONE_EACH).run(calls_at(*moments))
    assert outcome.roles["speaker"].busy * outcome.ended_at == pytest.approx(20 * SERVICE_S)
    assert outcome.roles["speaker"].slots * outcome.ended_at == pytest.approx(20 * SERVICE_S)


def test_engine_steps_all_sessions_together_when_it_has_slots_for_them() -> None:
    speaker = {"makes": "frames", "slots": 4, "step_s": {1: 1.0, 2: 1.5}}
    fleet = measured_of(
        {
            "network_s": 0, "chunk_frames": [1], "gateway": {"call_s": 0, "message_s": 0},
            "stages": {"speaker": speaker,
                       "decoder": {"makes": "audio", "slots": 4, "step_s": {1: 0.25}}},
        }
    )  # fmt: skip
    outcome = FleetSimulation(fleet, ONE_EACH).run(calls_at(0.0, 0.5))
    # The second joins at 1: a step of both takes 1.5; then it finds its end alone.
    first, second = outcome.calls
    assert first.first_audio_s == pytest.approx(1.0 + 0.25)
    assert second.first_audio_s == pytest.approx(2.5 - 0.5 + 0.25)
    assert outcome.ended_at == pytest.approx(3.5)


def test_jobs_share_cores_when_there_are_more_of_them() -> None:
    clock = SimulatedClock()
    cores = SharedCores(clock, 2)
    ends: list[float] = []
    for seconds in (1.0, 1.0, 2.0):
        cores.work(seconds, lambda: ends.append(clock.now))
    clock.run()
    # Two thirds of a core each until 1.5; then the last has one of its own.
    assert ends == pytest.approx([1.5, 1.5, 2.5])


def test_nicer_job_gets_less_when_a_core_is_shared() -> None:
    clock = SimulatedClock()
    cores = SharedCores(clock, 1)
    ends: dict[str, float] = {}
    cores.work(1.0, lambda: ends.setdefault("first", clock.now))
    cores.work(1.0, lambda: ends.setdefault("nice", clock.now), nice=3)
    clock.run()
    assert ends["first"] == pytest.approx(1 + WEIGHT_PER_NICE**-3)
    assert ends["nice"] == pytest.approx(2.0)


def test_thread_works_in_order_when_jobs_come_together() -> None:
    clock = SimulatedClock()
    thread = SerialThread(SharedCores(clock))
    ends: list[float] = []
    for seconds in (2.0, 1.0):
        thread.work(seconds, lambda: ends.append(clock.now))
    clock.run()
    assert ends == [2.0, 3.0]
    assert thread.busy_s == 3.0


def test_sessions_slow_each_other_down_when_they_share_a_rate() -> None:
    clock = SimulatedClock()
    ends: dict[int, float] = {}
    replica = SharedRateReplica(
        clock,
        Curve.of({1: 1.0, 2: 2.0}, "step_s"),
        lambda number: (ends.setdefault(number, clock.now), replica.close())[1],
    )
    replica.take()
    replica.begin(0, 4)
    clock.at(2.0, lambda: (replica.take(), replica.begin(1, 4))[1])
    clock.run()
    # Two positions alone, two together in 4 s; then the second one has two left, alone.
    assert ends == pytest.approx({0: 6.0, 1: 8.0})


def test_prompt_stops_everybody_when_rates_are_shared() -> None:
    clock = SimulatedClock()
    ends: list[float] = []
    replica = SharedRateReplica(
        clock, Curve.of({1: 1.0}, "step_s"), lambda _: ends.append(clock.now)
    )
    replica.take()
    replica.begin(0, 4)
    clock.at(1.0, lambda: (replica.prompt(2.5), None)[1])
    clock.run()
    assert ends == pytest.approx([6.5])


def test_call_ends_once_when_it_is_told_twice() -> None:
    (offered,) = calls_at(0.0)
    call = SimulatedCall(offered)
    call.end(1.0, ANSWERED)
    with pytest.raises(AssertionError, match="after its end"):
        call.end(2.0, "late")


def test_frame_waits_for_its_token_and_a_slot_is_free_when_its_stage_is_done() -> None:
    fleet = measured_of(
        {
            "network_s": 0, "chunk_frames": [1], "gateway": {"call_s": 0, "message_s": 0},
            "stages": {
                "writer": {"makes": "tokens", "slots": 1, "step_s": {1: 1.0}},
                "speaker": {"makes": "frames", "slots": 2, "step_s": {1: 0.25}},
                "decoder": {"makes": "audio", "slots": 2, "step_s": {1: 0.125}},
            },
        }
    )  # fmt: skip
    calls = [OfferedCall(number, at, 1, 2, 2) for number, at in enumerate((0.0, 0.5))]
    outcome = FleetSimulation(fleet, dict.fromkeys(fleet.stages, 1)).run(calls)
    # Tokens at 1 and 2; the writer finds its end at 3. The speaker then takes in the second's
    # prompt, and finds its end in the next step.
    first, second = outcome.calls
    assert first.first_text_at == pytest.approx(1.0)
    assert first.first_audio_at == pytest.approx(1.0 + 0.25 + 0.125)
    assert first.ended_at == pytest.approx(3.5)
    assert second.granted_at == pytest.approx(3.0)
    assert second.first_audio_at == pytest.approx(3.0 + 1.0 + 0.25 + 0.125)


def test_first_frame_is_made_with_the_prompt_when_its_token_is_there_before_that_step() -> None:
    fleet = measured_of(
        {
            "network_s": 0, "chunk_frames": [1], "gateway": {"call_s": 0, "message_s": 0},
            "stages": {
                "writer": {"makes": "tokens", "slots": 2, "step_s": {1: 0.25}},
                "speaker": {"makes": "frames", "slots": 2, "step_s": {1: 1.0}},
                "decoder": {"makes": "audio", "slots": 2, "step_s": {1: 0.125}},
            },
        }
    )  # fmt: skip
    outcome = FleetSimulation(fleet, dict.fromkeys(fleet.stages, 1)).run(calls_at(0.0, 1.25))
    # The first's token comes while the speaker takes in its prompt, so its frame is a step later.
    # The second's comes while the speaker makes that frame, and before it takes in the prompt.
    first, second = outcome.calls
    assert first.first_audio_at == pytest.approx(1.0 + 1.0 + 0.125)
    assert second.first_audio_at == pytest.approx(2.0 + 1.0 + 0.125)
