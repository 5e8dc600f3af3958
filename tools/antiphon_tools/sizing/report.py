"""Formats plans and simulated runs as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon_tools.sizing.measured import MeasuredPipeline
from antiphon_tools.sizing.offered import OfferedLoad
from antiphon_tools.sizing.plan import CapacityPlan
from antiphon_tools.sizing.simulation.outcome import FleetOutcome

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def plan_lines(plan: CapacityPlan, measured: MeasuredPipeline) -> list[str]:
    """Return the lines of a plan for display."""
    goal = plan.goal
    rows = [
        [role, str(count), f"{measured.stages[role].gpus * count:g}", *_use(plan.outcome, role)]
        for role, count in plan.replicas.items()
    ]
    cost = [
        f"gateways {plan.gateways}, GPUs {plan.gpus}, "
        f"{plan.spoken_hours_per_hour:.1f} hours of speech per hour"
    ]
    if plan.cost_per_hour:
        cost.append(
            f"cost {plan.cost_per_hour:.2f} per hour, "
            f"{plan.cost_per_spoken_hour:.4f} per hour of speech"
        )
    return [
        (
            f"The cheapest fleet with p{goal.percent:g} first audio within "
            f"{goal.first_audio_s:g} s and {goal.answered:.2%} answered "
            f"({len(plan.attempts)} fleets were simulated, granularity: {plan.granularity}):"
        ),
        "",
        *table(["stage", "replicas", "GPUs", "busy", "slots held", "most"], rows),
        "",
        *cost,
        "",
        *outcome_lines(plan.outcome),
    ]


def outcome_lines(outcome: FleetOutcome) -> list[str]:
    """Return the lines that describe what users of a simulated fleet observe."""
    rows = [
        [name, *(_ms(read(percent)) for percent in PERCENTILES)]
        for name, read in (
            ("first audio", outcome.first_audio),
            ("wait for a slot", outcome.waited),
        )
    ]
    ended = ", ".join(f"{count} {name}" for name, count in outcome.outcomes.items())
    return [
        *table(["", *(f"p{percent:g}" for percent in PERCENTILES)], rows),
        "",
        (
            f"calls: {ended or 'none'}; maximum number of concurrent calls: "
            f"{outcome.most_in_flight}; selections of a full replica: {outcome.picks_refused}; "
            f"event loop of the busiest gateway: {outcome.gateway_busy:.0%} busy"
        ),
    ]


def fleet_lines(outcome: FleetOutcome) -> list[str]:
    """Return the lines that describe a simulated fleet by stage and what its users observe."""
    rows = [[role, str(use.replicas), *_use(outcome, role)] for role, use in outcome.roles.items()]
    return [
        *table(["stage", "replicas", "busy", "slots held", "most"], rows),
        "",
        *outcome_lines(outcome),
    ]


def plan_as_json(plan: CapacityPlan, load: OfferedLoad) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "replicas": dict(plan.replicas),
        "gateways": plan.gateways,
        "gpus": plan.gpus,
        "spoken_hours_per_hour": plan.spoken_hours_per_hour,
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_spoken_hour": plan.cost_per_spoken_hour,
        "granularity": plan.granularity,
        "goal": plan.goal,
        "load": load,
        "outcome": outcome_as_json(plan.outcome),
        "attempts": plan.attempts,
    }


def outcome_as_json(outcome: FleetOutcome) -> dict[str, Any]:
    """Return a simulated run as JSON values, without its calls."""
    return {
        "first_audio_s": {f"p{each:g}": outcome.first_audio(each) for each in PERCENTILES},
        "waited_s": {f"p{each:g}": outcome.waited(each) for each in PERCENTILES},
        "outcomes": outcome.outcomes,
        "answered": outcome.answered,
        "roles": dict(outcome.roles),
        "gateway_busy": outcome.gateway_busy,
        "most_in_flight": outcome.most_in_flight,
        "picks_refused": outcome.picks_refused,
        "events": outcome.events,
        "ended_at_s": outcome.ended_at,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table with aligned columns. The first column is left-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _use(outcome: FleetOutcome, role: str) -> list[str]:
    use = outcome.roles[role]
    return [f"{use.busy:.0%}", f"{use.slots:.0%}", f"{use.most_slots:.0%}"]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
