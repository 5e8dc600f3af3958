"""Computes a measurement file from load-test results and the duration of a single call.

If a stage is loaded by itself at full speed with a constant number of sessions, every step includes
all of the sessions. The duration of a step is then the step time for this number of sessions. The
overhead outside of stages, in event loops and the network, is the duration of a single call minus
the duration of its steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon_tools.launcher.plan import GATEWAY, NICE_PER_STEP
from antiphon_tools.load.content import AUDIO, TEXT
from antiphon_tools.load.result import Result
from antiphon_tools.sizing.measured import Made, MeasuredPipeline, MeasuredStage
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.run_figures import check_answered, of_edge, of_stage, positive
from antiphon_tools.sizing.simulation.steps import FleetSimulation

HOPS_AFTER_TEXT = 2
"""The number of messages between processes from the first text to the first audio, not counting the
one for the text.
"""
_ROUNDS = 3


def measured_from(runs: Sequence[Result], pipeline: Pipeline, *, slots: int) -> MeasuredPipeline:
    """Return the measurements of a pipeline's stages from load-test results.

    Raises `InvalidArgument` if a stage has no result or if a result is not suitable.
    """
    by_role: dict[str, list[Result]] = {role: [] for role in pipeline.roles}
    for run in runs:
        if run.service != GATEWAY:
            by_role.get(run.service, []).append(run)
    stages = {role: _stage(role, by_role[role], pipeline, slots=slots) for role in pipeline.roles}
    frames = next(each.rate_hz for each in pipeline.edges if each.rate_hz)
    return MeasuredPipeline(
        stages=stages, frame_s=1 / frames, about="from results of python -m antiphon_tools.load"
    )


def calibrated(
    measured: MeasuredPipeline,
    offered: OfferedCall,
    first_text_s: float | None,
    first_audio_s: float,
    rest_s: float | None = None,
) -> MeasuredPipeline:
    """Set `gateway.call_s` and `network_s` so that a single call takes as long as was measured.

    `rest_s` is the time from the first audio to the end of the call. If the simulated steps take
    less time than this, the steps of the stage that generates frames are lengthened, because an
    engine's loop also takes time between two steps.
    """
    for _ in range(_ROUNDS):
        (call,) = FleetSimulation(measured, dict.fromkeys(measured.stages, 1)).run([offered]).calls
        assert call.first_audio_s is not None
        assert call.ended_at is not None
        if rest_s is not None:
            late_s = rest_s - (call.ended_at - offered.at_s - call.first_audio_s)
            measured = _with_longer_frames(measured, late_s / offered.frames)
        missing_s = first_audio_s - call.first_audio_s
        text_s = 0.0
        if first_text_s is not None and call.first_text_at is not None:
            text_s = first_text_s - (call.first_text_at - offered.at_s)
        gateway = msgspec.structs.replace(
            measured.gateway, call_s=max(0.0, measured.gateway.call_s + text_s)
        )
        hop_s = (missing_s - text_s) / HOPS_AFTER_TEXT
        measured = msgspec.structs.replace(
            measured, gateway=gateway, network_s=max(0.0, measured.network_s + hop_s)
        )
    return measured


def _with_longer_frames(measured: MeasuredPipeline, by_s: float) -> MeasuredPipeline:
    stages = {
        role: msgspec.structs.replace(
            stage, step_s={x: y + max(by_s, 0.0) for x, y in stage.step_s.items()}
        )
        if stage.makes == "frames"
        else stage
        for role, stage in measured.stages.items()
    }
    return msgspec.structs.replace(measured, stages=stages)


def calibrated_by(
    measured: MeasuredPipeline, alone: Result, runs: Iterable[Result]
) -> MeasuredPipeline:
    """Call `calibrated` with the measurements of a run against the gateway with a single
    session.
    """
    check_answered(alone)
    text, audio = alone.metrics.get("ttft"), alone.metrics.get("ttfa")
    if audio is None:
        raise InvalidArgument(
            "--run: metrics.ttfa: the gateway's run with one session has no audio; measure "
            "again with a model that speaks",
            field="metrics.ttfa",
        )
    frames = max(1, round(alone.audio_s_per_s / alone.requests_per_s / measured.frame_s))
    tokens = [
        of_stage(run, run.service).output_positions / run.requests.succeeded
        for run in runs
        if run.service in measured.stages and measured.stages[run.service].makes == "tokens"
    ]
    rows = int(alone.settings.get("prompt_length") or 1)
    offered = OfferedCall(0, 0.0, rows, max(1, round(max(tokens, default=frames))), frames)
    whole = alone.metrics.get("duration")
    rest_s = whole.mean - audio.mean if whole else None
    return calibrated(measured, offered, text.p50 if text else None, audio.p50, rest_s)


def _stage(role: str, runs: Iterable[Result], pipeline: Pipeline, *, slots: int) -> MeasuredStage:
    points: dict[float, float] = {}
    rows: dict[float, float] = {}
    edges = {edge.name: edge for edge in pipeline.outputs(role)}
    makes: Made = "audio" if AUDIO in edges else "tokens" if TEXT in edges else "frames"
    for run in sorted(runs, key=_sessions):
        check_answered(run)
        sessions, times = _sessions(run), of_stage(run, role).times
        if not sessions:
            raise InvalidArgument(
                f"--run: a run of {role} used a rate; measure steps with --sessions N --pace flat"
            )
        if makes == "audio":
            step_s, row_s = _chunk_steps(run, role, sessions, rows)
            points[sessions], rows = step_s, row_s
            continue
        made = of_stage(run, role).output_positions / run.requests.succeeded
        points[sessions] = times["busy_s"].mean * sessions / (made + 1)
        if not rows:
            before = times["first_output_s"].p50 - times["first_input_s"].p50
            steps = 1 if makes == "tokens" else 2
            length = float(run.settings.get("prompt_length", 1)) or 1.0
            rows = {length: max(0.0, before - steps * points[sessions])}
    if not points:
        raise InvalidArgument(
            f"--run: there is no run of {role}; add python -m antiphon_tools.load {role} "
            "--sessions 1 --pace flat --json FILE, and some runs with more sessions"
        )
    pace_s = max((edge.pace_s for edge in edges.values()), default=0.0)
    return MeasuredStage(
        makes=makes,
        slots=slots,
        step_s=_rising(points),
        row_s=rows,
        pace_s=pace_s,
        nice=NICE_PER_STEP * pipeline.steps_to_client(role),
    )


def _sessions(run: Result) -> int:
    return int(run.settings.get("sessions") or 0)


def _chunk_steps(
    run: Result, role: str, sessions: int, known: Mapping[float, float]
) -> tuple[float, dict[float, float]]:
    """Return the duration of a step with this many sessions and the additional time per frame.

    With a single session, the first step has one frame, and the remaining frames are split equally
    among the other steps.
    """
    times = of_stage(run, role).times
    frames = positive(run, "settings.frames", run.settings.get("frames"))
    steps = of_edge(run, AUDIO).messages / run.requests.succeeded
    busy_s = times["busy_s"].mean * sessions
    if not known:
        first_s = times["first_output_s"].p50 - times["first_input_s"].p50
        row_s = max(0.0, (busy_s - steps * first_s) / max(frames - steps, 1.0))
        known = {32.0: 32 * row_s}
    row_s = next(iter(known.values())) / next(iter(known))
    return max(1e-6, busy_s / steps - row_s * sessions * frames / steps), dict(known)


def _rising(points: Mapping[float, float]) -> dict[float, float]:
    """Make the points non-decreasing by replacing neighbours that are in the wrong order with their
    mean.
    """
    groups: list[list[tuple[float, float]]] = []
    for point in sorted(points.items()):
        groups.append([point])
        while len(groups) > 1 and _mean(groups[-2]) > _mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    return {x: _mean(group) for group in groups for x, _ in group}


def _mean(group: Sequence[tuple[float, float]]) -> float:
    return statistics.fmean(y for _, y in group)
