"""Searches for the cheapest fleet that meets a goal.

The search starts with the minimum number of replicas that the offered work requires and scales all
roles up together until the goal is met. Each role is then reduced as far as the goal allows,
starting with the most expensive one. In the resulting plan, reducing any single role would miss the
goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_tools.sizing.measured import MeasuredPipeline, MeasuredStage
from antiphon_tools.sizing.offered import OfferedCall, OfferedLoad
from antiphon_tools.sizing.simulation.fluid import FluidFleet, messages_of
from antiphon_tools.sizing.simulation.outcome import FleetOutcome
from antiphon_tools.sizing.simulation.steps import FleetSimulation

LARGEST_GROWTH = 64
"""The maximum scaling factor. If this many times the minimum is not enough, adding replicas doesn't
help.
"""
GATEWAY_BUSY = 0.6
"""The maximum utilization of a gateway's event loop, which can only use a single core."""
GATEWAY_DEVIATIONS = 3.0
"""A gateway must have capacity for the average number of calls plus this many standard
deviations.
"""
STEPS_MOST_EVENTS = 2_000_000
"""If there are more events than this, calls are simulated without individual steps, because
simulating the steps would take several minutes each time.
"""

Granularity = str
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal that a given percentile of answered calls starts to speak within a time limit.

    In addition, at least a given fraction of all calls must be answered.
    """

    first_audio_s: float
    percent: float = 95.0
    answered: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.first_audio_s < math.inf:
            raise InvalidArgument(
                f"--first-audio: must be above 0 seconds, got {self.first_audio_s:g}",
                field="first_audio",
            )
        if not 0 < self.percent < 100 or not 0 < self.answered <= 1:
            raise InvalidArgument("--percentile must be in (0, 100), and --answered in (0, 1]")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A fleet that was simulated."""

    replicas: Mapping[str, int]
    first_audio_s: float | None
    answered: float
    kept: bool


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The cheapest fleet that was found, its performance and its costs. Prices are per hour."""

    replicas: Mapping[str, int]
    gateways: int
    gpus: int
    spoken_hours_per_hour: float
    cost_per_hour: float
    cost_per_spoken_hour: float
    granularity: Granularity
    goal: Goal
    outcome: FleetOutcome
    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Planner:
    """Simulates fleets with the same load. Each fleet is only simulated once."""

    measured: MeasuredPipeline
    load: OfferedLoad
    granularity: Granularity = "auto"
    gateways: int = 0
    told: Told = lambda line: None
    attempts: dict[tuple[int, ...], FleetOutcome] = field(default_factory=dict)

    def plan(self, goal: Goal, gpu_hour: float = 0.0) -> CapacityPlan:
        """Return the cheapest fleet. Raises `FailedPrecondition` if no fleet meets the goal."""
        tried: list[Attempt] = []

        def keeps(replicas: Mapping[str, int]) -> bool:
            known = tuple(replicas.values()) in self.attempts
            outcome = self.simulate(replicas)
            kept = outcome.keeps(goal.percent, goal.first_audio_s, goal.answered)
            if not known:
                value = outcome.first_audio(goal.percent)
                tried.append(Attempt(dict(replicas), value, outcome.answered, kept))
                self.told(in_words(tried[-1], goal))
            return kept

        least = least_replicas(self.measured, self.load)
        replicas = self._grown(least, keeps)
        stages = self.measured.stages
        for role in sorted(stages, key=lambda each: -stages[each].gpus):
            replicas = _shrunk(replicas, role, keeps)
        outcome = self.simulate(replicas)
        gpus = math.ceil(sum(stages[role].gpus * count for role, count in replicas.items()))
        spoken = _spoken_hours_per_hour(outcome, self.measured, self.load)
        cost = gpus * gpu_hour
        return CapacityPlan(
            replicas=replicas,
            gateways=self.gateway_count,
            gpus=gpus,
            spoken_hours_per_hour=spoken,
            cost_per_hour=cost,
            cost_per_spoken_hour=cost / spoken if spoken else math.inf,
            granularity=self.kind,
            goal=goal,
            outcome=outcome,
            attempts=tuple(tried),
        )

    def simulate(self, replicas: Mapping[str, int]) -> FleetOutcome:
        """Simulate a fleet with the load."""
        key = tuple(replicas.values())
        if key not in self.attempts:
            self.attempts[key] = simulated(
                self.measured, self.load, replicas, self.kind, self.gateway_count, self._progress
            )
        return self.attempts[key]

    def _progress(self, now: float, calls: int) -> None:
        ends_s = self.load.ends_s
        what = f"{now:.0f} of {ends_s:.0f} s" if now < ends_s else f"{now:.0f} s, to the last call,"
        self.told(f"    {what} simulated, {calls} calls")

    @property
    def kind(self) -> Granularity:
        """The type of simulation, which is `steps` or `calls`."""
        if self.granularity != "auto":
            return self.granularity
        small = expected_events(self.measured, self.load) <= STEPS_MOST_EVENTS
        return "steps" if small and self.gateway_count == 1 else "calls"

    @property
    def gateway_count(self) -> int:
        """The given number of gateways, or the number that their event loops and `max_calls`
        require.
        """
        return self.gateways or gateways_needed(self.measured, self.load)

    def _grown(
        self, least: Mapping[str, int], keeps: Callable[[Mapping[str, int]], bool]
    ) -> dict[str, int]:
        factor = 1.0
        while factor <= LARGEST_GROWTH:
            replicas = {role: math.ceil(count * factor) for role, count in least.items()}
            if keeps(replicas):
                return replicas
            factor *= 1.5
        raise FailedPrecondition(
            f"no fleet meets the goal: it is missed even with {LARGEST_GROWTH} times the "
            "capacity that the load requires. Either a single call takes too long (to check "
            "this, use `simulate` with a small --rate), or there are too few gateways "
            "(--gateways, or gateway.max_calls in --measured)"
        )


def simulated(
    measured: MeasuredPipeline,
    load: OfferedLoad,
    replicas: Mapping[str, int],
    granularity: Granularity,
    gateways: int = 1,
    progress: Callable[[float, int], None] = lambda now, calls: None,
    known: Iterable[OfferedCall] | None = None,
) -> FleetOutcome:
    """Simulate a fleet with the `known` calls, or with the calls of the load if there are none.

    Raises `InvalidArgument` if the replicas do not match the stages.
    """
    for role in measured.stages:
        if replicas.get(role, 0) < 1:
            raise InvalidArgument(
                f"--replicas: {role} requires at least 1, such as {role}=1", field="replicas"
            )
    for role in replicas:
        if role not in measured.stages:
            raise InvalidArgument(
                f"--replicas: unknown stage {role}; use one of: {', '.join(measured.stages)}",
                field="replicas",
            )
    ordered = {role: replicas[role] for role in measured.stages}
    calls = known or load.calls(measured.frame_s)
    if granularity == "steps":
        if gateways > 1:
            raise InvalidArgument(
                "--detail steps only supports one gateway; use --detail calls, or --gateways 1",
                field="gateways",
            )
        return FleetSimulation(measured, ordered, load.seed).run(calls, load.warm_up_s, load.ends_s)
    fleet = FluidFleet(measured, ordered, gateways=gateways, seed=load.seed, told=progress)
    return fleet.run(calls, load.warm_up_s, load.ends_s)


def least_replicas(measured: MeasuredPipeline, load: OfferedLoad) -> dict[str, int]:
    """Return the minimum number of replicas of each stage, assuming that all slots are always
    full.
    """
    return {
        role: max(1, math.ceil(load.rate * _work_s(stage, measured, load)))
        for role, stage in measured.stages.items()
    }


def gateways_needed(measured: MeasuredPipeline, load: OfferedLoad) -> int:
    """Return the number of gateways that are required for the load.

    No gateway may be busier than `GATEWAY_BUSY`, and the gateways must have capacity for all calls.
    """
    work = load.rate * gateway_work_s(measured, load)
    calls = load.rate * call_time_s(measured, load)
    return max(
        1,
        math.ceil(work / GATEWAY_BUSY),
        math.ceil(calls / _mean_calls(measured.gateway.max_calls, load.burstiness)),
    )


def gateway_work_s(measured: MeasuredPipeline, load: OfferedLoad) -> float:
    """Return the number of seconds for which an average call occupies a gateway's event loop."""
    sample = _sample(measured, load)
    messages = sum(messages_of(call, measured) for call in sample) / max(len(sample), 1)
    return measured.gateway.call_s + messages * measured.gateway.message_s


def call_time_s(measured: MeasuredPipeline, load: OfferedLoad) -> float:
    """Return the duration of an average call in seconds, assuming that all slots are always
    full.
    """
    sample = _sample(measured, load)
    count = max(len(sample), 1)
    rows_s = made_s = 0.0
    for stage in measured.stages.values():
        if stage.makes != "audio":
            step_s = stage.step_curve(stage.slots)
            made = sum(c.tokens if stage.makes == "tokens" else c.frames for c in sample) / count
            rows_s += sum(stage.row_curve(call.prompt_rows) for call in sample) / count + step_s
            # All stages generate output at the same time, so the slowest one determines the
            # duration.
            made_s = max(made_s, made * step_s)
    return rows_s + made_s


def expected_events(measured: MeasuredPipeline, load: OfferedLoad) -> float:
    """Return the approximate number of events in a simulation of individual steps."""
    frames = load.speech_s.mean / measured.frame_s
    tokens = load.speech_s.mean * load.tokens_per_s
    return load.rate * load.ends_s * (3 * tokens + 4 * frames)


def in_words(attempt: Attempt, goal: Goal) -> str:
    """Format an attempt as a line of progress."""
    fleet = ", ".join(f"{role} {count}" for role, count in attempt.replicas.items())
    value = "none" if attempt.first_audio_s is None else f"{attempt.first_audio_s:.3f} s"
    verdict = "met" if attempt.kept else "missed"
    return (
        f"  {fleet}: p{goal.percent:g} first audio {value}, {attempt.answered:.2%} answered: "
        f"{verdict}"
    )


def _mean_calls(max_calls: int, burstiness: float) -> float:
    """Return the average number of calls for which `max_calls` is sufficient.

    `max_calls` is `GATEWAY_DEVIATIONS` standard deviations above this average. If calls arrive
    independently, the variance is equal to the mean. Bursts increase the standard deviation.
    """
    half = GATEWAY_DEVIATIONS * max(1.0, burstiness) / 2
    return float((math.sqrt(half**2 + max_calls) - half) ** 2)


def _sample(measured: MeasuredPipeline, load: OfferedLoad) -> list[OfferedCall]:
    return [call for call, _ in zip(load.calls(measured.frame_s), range(2000), strict=False)]


def _work_s(stage: MeasuredStage, measured: MeasuredPipeline, load: OfferedLoad) -> float:
    """Return the engine time of an average call in seconds, assuming that all slots are full."""
    sample = _sample(measured, load)
    count = max(len(sample), 1)
    step, row, full = stage.step_curve, stage.row_curve, stage.slots
    if stage.makes == "audio":
        steady = measured.chunk_policy.steady
        together = max(1.0, min(full, stage.rows_per_step / steady))
        chunk_s = (step(together) + row(together * steady)) / together
        return sum(call.frames for call in sample) / count / steady * chunk_s
    best_s = min(step(n) / n for n in (*stage.step_s, float(full)) if n <= full)
    rows_s = sum(row(call.prompt_rows) for call in sample) / count
    made = sum(c.tokens if stage.makes == "tokens" else c.frames for c in sample) / count
    return made * best_s + rows_s


def _shrunk(
    replicas: Mapping[str, int], role: str, keeps: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return the replicas with the smallest number of one role that meets the goal.

    The given replicas must meet the goal.
    """
    least, most = 0, replicas[role]
    while most - least > 1:
        middle = (least + most) // 2
        if keeps({**replicas, role: middle}):
            most = middle
        else:
            least = middle
    return {**replicas, role: most}


def _spoken_hours_per_hour(
    outcome: FleetOutcome, measured: MeasuredPipeline, load: OfferedLoad
) -> float:
    answered = [call for call in outcome.counted if call.first_audio_at is not None]
    return sum(call.offered.frames for call in answered) * measured.frame_s / load.seconds
