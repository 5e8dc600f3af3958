"""What load tests tell of stages, and predictions beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_tools.load.result import EdgeTotals, RequestCounts, RequestPoint, Result, StageSummary
from antiphon_tools.load.statistics import Distribution, distribution
from antiphon_tools.sizing.__main__ import main
from antiphon_tools.sizing.calibration import calibrated, measured_from
from antiphon_tools.sizing.comparison import (
    Comparison,
    compared,
    comparison_lines,
    offered_by,
    pooled,
)
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.simulation.steps import FleetSimulation
from tests.unit.tools.sizing.fleets import answering_fleet

MODEL = Path(__file__).parents[4] / "models" / "antiphon-demo"
FRAMES, TOKENS, CHUNKS = 100, 20, 5
STEP_S = {"thinker": {1: 0.010, 8: 0.020}, "talker": {1: 0.020, 16: 0.030}}
CHUNK_S = {1: 0.004, 8: 0.009}
ROW_S = 0.001


def always(value: float) -> Distribution:
    """A distribution of one value."""
    found = distribution([value])
    assert found is not None
    return found


def result(service: str, **fields: Any) -> Result:
    """A result of the load test; what is not given is empty."""
    empty: dict[str, Any] = {
        "started_at": "", "settings": {}, "warm_up_s": 0.0, "measured_s": 10.0,
        "interrupted": False, "requests": RequestCounts(10, 10, 0, 0), "requests_per_s": 1.0,
        "audio_s_per_s": 8.0, "goodput": 1.0, "good_per_s": 1.0, "objectives": (), "metrics": {},
        "gaps": None, "continuity": {}, "sent_late": None, "fed_late": None, "errors": {},
        "edges": {}, "stages": {}, "processes": {}, "links": {}, "left_open": {},
    }  # fmt: skip
    return Result(service=service, **{**empty, **fields})


def stage_run(role: str, sessions: int) -> Result:
    """What a stage would tell whose steps take what the constants say."""
    settings = {"sessions": sessions, "prompt_length": 40, "frames": FRAMES}
    edges = {"audio": EdgeTotals(10 * CHUNKS, 1, 1.0)} if role == "code2wav" else {}
    if role == "code2wav":
        made = FRAMES
        first_s = CHUNK_S[1] + ROW_S
        spent_s = CHUNKS * CHUNK_S[sessions] + sessions * FRAMES * ROW_S
    else:
        made = TOKENS if role == "thinker" else FRAMES
        step_s = STEP_S[role][sessions]
        first_s = (1 if role == "thinker" else 2) * step_s + 0.005
        spent_s = (made + 1) * step_s
    times = {
        "first_input_s": always(0.0),
        "first_output_s": always(first_s),
        "busy_s": always(spent_s / sessions),
    }
    stage = StageSummary(times=times, output_positions=10 * made, output_positions_per_s=1.0)
    return result(role, settings=settings, edges=edges, stages={role: stage})


ALL_RUNS = [
    *(stage_run(role, sessions) for role, steps in STEP_S.items() for sessions in steps),
    *(stage_run("code2wav", sessions) for sessions in CHUNK_S),
]


def test_steps_are_found_again_when_stages_were_loaded_alone() -> None:
    measured = measured_from(ALL_RUNS, PIPELINE, slots=8)
    for role, steps in STEP_S.items():
        assert measured.stages[role].step_s == pytest.approx(steps)
        assert measured.stages[role].row_s == pytest.approx({40.0: 0.005})
    decoder = measured.stages["code2wav"]
    assert decoder.step_s == pytest.approx(CHUNK_S)
    assert decoder.row_curve(FRAMES) == pytest.approx(FRAMES * ROW_S)
    assert [stage.makes for stage in measured.stages.values()] == ["tokens", "frames", "audio"]
    assert measured.stages["thinker"].pace_s == PIPELINE.edge("tokens").pace_s
    assert measured.frame_s == pytest.approx(0.08)


def test_noise_never_makes_a_step_shorter_for_more_sessions() -> None:
    noisy = [stage_run("talker", 1), stage_run("talker", 16)]
    noisy[0] = replace(noisy[0], settings={**noisy[0].settings, "sessions": 16})
    noisy[1] = replace(noisy[1], settings={**noisy[1].settings, "sessions": 1})
    others = [run for run in ALL_RUNS if run.service != "talker"]
    steps = measured_from([*noisy, *others], PIPELINE, slots=8).stages["talker"].step_s
    assert steps[1] <= steps[16]


@pytest.mark.parametrize("role", ["thinker", "talker", "code2wav"])
def test_error_tells_which_run_is_missing(role: str) -> None:
    with pytest.raises(InvalidArgument, match=f"antiphon_tools.load {role} --sessions 1"):
        measured_from([run for run in ALL_RUNS if run.service != role], PIPELINE, slots=8)


def test_event_loops_and_network_are_found_again_from_a_call_alone() -> None:
    real = answering_fleet(call_s=0.012)
    real = msgspec.structs.replace(real, network_s=0.004)
    offered = OfferedCall(0, 0.0, 50, 30, 60)
    (call,) = FleetSimulation(real, dict.fromkeys(real.stages, 1)).run([offered]).calls
    assert call.first_text_at is not None
    assert call.first_audio_s is not None
    guess = answering_fleet(call_s=0.0)
    found = calibrated(guess, offered, call.first_text_at, call.first_audio_s)
    (again,) = FleetSimulation(found, dict.fromkeys(real.stages, 1)).run([offered]).calls
    assert again.first_audio_s == pytest.approx(call.first_audio_s, abs=2e-3)
    assert again.first_text_at == pytest.approx(call.first_text_at, abs=2e-3)


def test_time_between_two_steps_is_found_again_from_a_call_alone() -> None:
    guess, offered = answering_fleet(), OfferedCall(0, 0.0, 50, 30, 60)
    speaker = guess.stages["speaker"]
    between_s = 0.003
    longer = {sessions: step_s + between_s for sessions, step_s in speaker.step_s.items()}
    speaker = msgspec.structs.replace(speaker, step_s=longer)
    real = msgspec.structs.replace(guess, stages={**guess.stages, "speaker": speaker})
    (call,) = FleetSimulation(real, dict.fromkeys(real.stages, 1)).run([offered]).calls
    assert call.first_text_at is not None
    assert call.first_audio_s is not None
    assert call.ended_at is not None
    rest_s = call.ended_at - call.first_audio_s
    found = calibrated(guess, offered, call.first_text_at, call.first_audio_s, rest_s)
    assert found.stages["speaker"].step_s == pytest.approx(longer, abs=1e-4)
    assert found.stages["writer"] == guess.stages["writer"]
    # Steps are never taken to be shorter than they were measured.
    quicker = calibrated(guess, offered, call.first_text_at, call.first_audio_s, rest_s / 2)
    assert quicker.stages["speaker"] == guess.stages["speaker"]


def gateway_run(slower: float, seed: int = 4, longer: float = 1.0) -> Result:
    """A run whose first audio takes so many times what is predicted of it.

    Its replies are so many times as long as a load test of its rate and seed would draw them.
    """
    settings = {"rate": 3.0, "seconds": 20.0, "seed": seed, "prompt_length": 200}
    run = result("gateway", settings=settings)
    measured = answering_fleet()
    offered = [
        replace(call, frames=round(call.frames * longer), tokens=round(call.frames * longer * 0.32))
        for call in offered_by(run, 4.0).calls(measured.frame_s)
    ]
    calls = FleetSimulation(measured, dict.fromkeys(measured.stages, 1)).run(offered)
    points = tuple(
        RequestPoint(
            call.offered.at_s + 1e-9,
            None,
            slower * (call.first_audio_s or 0),
            None,
            None,
            1,
            "",
            call.offered.frames * measured.frame_s,
        )
        for call in calls.calls
    )
    return replace(run, points=points)


def compared_once(run: Result, phases: int = 1) -> Comparison:
    """A run beside its calls as they came."""
    measured = answering_fleet()
    return compared(measured, run, dict.fromkeys(measured.stages, 1), 4.0, phases)


def test_prediction_is_about_the_same_when_calls_come_at_other_moments_of_a_step() -> None:
    run = gateway_run(1.0)
    once, often = compared_once(run), compared_once(run, 3)
    assert [len(made) for _, made in often.calls] == [3] * len(once.calls)
    assert often.error(95) == pytest.approx(0, abs=0.1)
    assert often.predicted != once.predicted


@pytest.mark.parametrize("slower", [1.0, 1.25])
def test_error_is_what_the_prediction_misses(slower: float) -> None:
    comparison = compared_once(gateway_run(slower))
    for percent in comparison.measured:
        assert comparison.error(percent) == pytest.approx(1 / slower - 1, abs=0.03)
    assert f"({1 / slower - 1:+.0%})" in "\n".join(comparison_lines([comparison]))


def test_calls_are_simulated_as_long_as_they_were_when_a_run_tells_it() -> None:
    run = gateway_run(1.0, longer=3.0)
    assert compared_once(run).interval == pytest.approx((0, 0), abs=1e-6)
    untold = replace(run, points=tuple(replace(point, audio_s=0.0) for point in run.points))
    assert compared_once(untold).error(95) < -0.05


def test_runs_of_one_rate_are_compared_together_and_the_interval_holds_their_error() -> None:
    singles = [compared_once(gateway_run(slower, seed)) for seed, slower in ((4, 0.8), (5, 1.25))]
    (both,) = pooled(singles)
    assert both.calls == (*singles[0].calls, *singles[1].calls)
    assert singles[0].error(95) == pytest.approx(0.25)
    assert singles[1].error(95) == pytest.approx(-0.2)
    low, high = both.interval
    assert -0.21 < low < both.error(95) < high < 0.26
    assert high - low > 0.05


def test_comparison_is_refused_when_a_run_has_no_rate() -> None:
    with pytest.raises(InvalidArgument, match="--rate R"):
        offered_by(result("gateway", settings={"sessions": 2}), 4.0)


NOTHING: dict[str, Any] = {
    "requests": RequestCounts(10, 0, 10, 0), "requests_per_s": 0.0, "audio_s_per_s": 0.0,
    "metrics": {"ttft": None, "ttfa": None}, "edges": {}, "stages": {},
}  # fmt: skip
ALONE = {"sessions": 1, "prompt_length": 10}
RATE = {"rate": 1.0, "seconds": 10.0, "seed": 0}


@pytest.mark.parametrize(
    ("command", "broken", "field"),
    [
        ("measured", replace(stage_run("thinker", 1), **NOTHING), "requests.succeeded"),
        ("measured", replace(stage_run("talker", 16), **NOTHING), "requests.succeeded"),
        ("measured", replace(stage_run("code2wav", 1), **NOTHING), "requests.succeeded"),
        ("measured", result("gateway", settings=ALONE, **NOTHING), "requests.succeeded"),
        ("measured", replace(stage_run("talker", 1), stages={}), "stages.talker"),
        ("measured", replace(stage_run("code2wav", 8), edges={}), "edges.audio"),
        ("compare", result("gateway", settings=RATE, **NOTHING), "requests.succeeded"),
        ("compare", result("gateway", settings=RATE, audio_s_per_s=0.0), "audio_s_per_s"),
        ("simulate", {"decoder": "audio"}, "stages"),
        ("simulate", {"writer": "tokens", "decoder": "audio"}, "stages"),
    ],
)
def test_command_names_the_field_when_a_file_lacks_what_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, broken: Any, field: str
) -> None:
    content = msgspec.to_builtins(answering_fleet())
    if command == "simulate":
        stages = {
            role: {"makes": makes, "slots": 2, "step_s": {1: 0.01}}
            for role, makes in broken.items()
        }
        content = {**content, "stages": stages}
    measured = tmp_path / "measured.yaml"
    measured.write_bytes(msgspec.yaml.encode(content))
    arguments = {
        "simulate": ["--measured", str(measured), "--rate", "1", "--detail", "calls"],
        "compare": ["--measured", str(measured)],
        "measured": ["--model", str(MODEL), "--out", str(tmp_path / "out.yaml")],
    }[command]
    runs: dict[str, list[Any]] = {"compare": [broken], "measured": [*ALL_RUNS, broken]}
    for number, run in enumerate(runs.get(command, [])):
        path = tmp_path / f"{number}.json"
        path.write_bytes(msgspec.json.encode(run))
        arguments += ["--run", str(path)]
    assert main([command, *arguments]) == 1
    assert field in capsys.readouterr().err
