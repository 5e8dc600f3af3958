"""Plans: the least that keeps a goal, what goes in, and what is told of mistakes."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_tools.sizing.__main__ import main
from antiphon_tools.sizing.curve import Curve
from antiphon_tools.sizing.measured import measured_of
from antiphon_tools.sizing.offered import Lengths
from antiphon_tools.sizing.plan import Goal, Planner, gateways_needed
from tests.unit.tools.sizing.fleets import answering_fleet, load

SPEAKER = {"makes": "frames", "slots": 4, "step_s": {1: 0.02}}
WRITER = {"makes": "tokens", "slots": 4, "step_s": {1: 0.02}}
DECODER = {"makes": "audio", "slots": 4, "step_s": {1: 0.01}}


def test_plan_keeps_the_goal_and_needs_all_of_its_replicas() -> None:
    measured, goal = answering_fleet(), Goal(0.25)
    planner = Planner(measured, load(25.0, 8.0), "calls")
    plan = planner.plan(goal, gpu_hour=2.0)
    assert plan.outcome.keeps(goal.percent, goal.first_audio_s, goal.answered)
    for role, count in plan.replicas.items():
        if count > 1:
            fewer = planner.simulate({**plan.replicas, role: count - 1})
            assert not fewer.keeps(goal.percent, goal.first_audio_s, goal.answered)
    assert max(plan.replicas.values()) > 1
    wanted = 2 * plan.replicas["writer"] + plan.replicas["speaker"] + plan.replicas["decoder"] / 2
    assert plan.gpus - 1 < wanted <= plan.gpus
    assert plan.cost_per_hour == 2.0 * plan.gpus
    assert plan.cost_per_spoken_hour == pytest.approx(
        plan.cost_per_hour / plan.spoken_hours_per_hour
    )


def test_plan_is_refused_when_one_call_alone_takes_longer() -> None:
    with pytest.raises(FailedPrecondition, match="a single call takes too long"):
        Planner(answering_fleet(), load(2.0, seconds=5), "calls").plan(Goal(0.01))


def test_gateways_grow_with_their_work_when_calls_cost_more() -> None:
    cheap, dear = answering_fleet(call_s=0.001), answering_fleet(call_s=0.1)
    assert gateways_needed(cheap, load(30.0)) == 1
    assert gateways_needed(dear, load(30.0)) == pytest.approx(30 * 0.1 / 0.6, abs=1.5)


def test_gateways_have_room_for_all_calls_when_replies_are_long() -> None:
    measured = answering_fleet(max_calls=16)
    offered = load(12.0, 12.0, warm_up_s=12.0, speech_s=Lengths("fixed", 29.0))
    plan = Planner(measured, offered, "calls").plan(Goal(0.4))
    assert plan.outcome.most_in_flight > 64
    assert plan.gateways * 16 > plan.outcome.most_in_flight
    # One gateway could pass on all messages; a fleet is found with many, not with three.
    assert gateways_needed(answering_fleet(max_calls=10_000), offered) == 1
    assert plan.gateways < 3 * plan.outcome.most_in_flight / 16


@pytest.mark.parametrize(
    ("lengths", "rel"),
    [("fixed:7", 1e-9), ("exponential:7", 0.05), ("lognormal:7:1.5", 0.1), ("pareto:7:2.5", 0.1)],
)
def test_lengths_have_their_mean_whatever_their_tail(lengths: str, rel: float) -> None:
    source, drawn = random.Random(1), Lengths.parse(lengths, "--speech")
    values = [drawn.draw(source) for _ in range(20_000)]
    assert sum(values) / len(values) == pytest.approx(7.0, rel=rel)


def test_no_length_is_above_the_most_when_the_tail_is_heavy() -> None:
    source, heavy = random.Random(1), Lengths("pareto", 7.0, 1.2, most=30.0)
    assert max(heavy.draw(source) for _ in range(5000)) == 30.0


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 2.0])
def test_gaps_deviate_as_told_when_calls_come_in_bursts(burstiness: float) -> None:
    moments = list(load(10.0, seconds=2000, burstiness=burstiness).arrivals())
    gaps = [later - at for at, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.06)
    assert deviation / mean == pytest.approx(burstiness, rel=0.06)


def test_curve_is_straight_between_points_and_never_falls_beyond_them() -> None:
    curve = Curve.of({1: 1.0, 3: 2.0, 5: 1.0}, "step_s")
    assert [curve(x) for x in (0, 1, 2, 3, 4, 9)] == pytest.approx([1, 1, 1.5, 2, 1.5, 1])
    assert Curve.of({1: 1.0, 3: 2.0}, "step_s")(5) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stages": {"speaker": {**SPEAKER, "slots": 0}, "decoder": DECODER}}, "slots"),
        ({"stages": {"speaker": {**SPEAKER, "speed": 1}, "decoder": DECODER}}, "speed"),
        ({"stages": {"speaker": {**SPEAKER, "step_s": {}}, "decoder": DECODER}}, "speaker.step_s"),
        ({"stages": {"speaker": {**SPEAKER, "step_s": {0: 1}}, "decoder": DECODER}}, "remove 0"),
        ({"stages": {"decoder": DECODER, "speaker": SPEAKER}}, "in its order"),
        ({"stages": {"speaker": SPEAKER}}, "stages"),
        ({"cores": -1}, "cores"),
        ({"stages": {"decoder": DECODER}}, "frames"),
        ({"stages": {"writer": WRITER, "decoder": DECODER}}, "frames"),
    ],
)
def test_error_names_the_field_when_measurements_make_no_sense(
    change: dict[str, Any], field: str
) -> None:
    content = {"stages": {"speaker": SPEAKER, "decoder": DECODER}, **change}
    with pytest.raises(InvalidArgument, match=field):
        measured_of(content)


@pytest.mark.parametrize("text", ["pareto:5:1", "lognormal:5", "normal:3:1", "fixed:x", "fixed:-1"])
def test_error_tells_the_forms_when_lengths_have_another(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--speech .*pareto:MEAN:ALPHA"):
        Lengths.parse(text, "--speech")


@pytest.mark.parametrize("name", ["rate", "seconds", "burstiness"])
def test_error_names_the_setting_when_a_load_has_none(name: str) -> None:
    settings: dict[str, Any] = {"rate": 1.0, name: 0.0}
    with pytest.raises(InvalidArgument, match=name):
        load(**settings)


@pytest.fixture
def measured_file(tmp_path: Path) -> Path:
    path = tmp_path / "measured.yaml"
    path.write_bytes(msgspec.yaml.encode(msgspec.to_builtins(answering_fleet())))
    return path


def test_file_says_what_was_measured_when_it_is_read_again(measured_file: Path) -> None:
    content = msgspec.yaml.decode(measured_file.read_bytes())
    assert measured_of(content) == answering_fleet()


def test_command_prints_and_saves_a_plan(
    measured_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "plan", "--measured", str(measured_file), "--rate", "2", "--first-audio", "0.5",
        "--seconds", "5", "--warm-up", "0", "--gpu-hour", "3", "--json", str(tmp_path / "o" / "p"),
    ]  # fmt: skip
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "per hour of speech" in told.out
    assert ": met" in told.err
    saved = json.loads((tmp_path / "o" / "p").read_text())
    assert saved["replicas"] == {"writer": 1, "speaker": 1, "decoder": 1}
    assert saved["cost_per_hour"] == 3.0 * saved["gpus"] == 12.0
    assert saved["load"]["rate"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "singer=2"], "one of writer, speaker, decoder"),
        (["--replicas", "speaker=0"], "speaker=0"),
        (["--rate", "0"], "rate: must be above 0"),
        (["--detail", "steps", "--gateways", "2"], "--detail calls"),
    ],
)
def test_command_fails_with_the_remedy_when_an_argument_is_wrong(
    measured_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    given = ["simulate", "--measured", str(measured_file), "--rate", "1", *arguments]
    assert main(given) == 1
    assert words in capsys.readouterr().err
