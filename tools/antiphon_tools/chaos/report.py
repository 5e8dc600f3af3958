"""Reports the cost of kills as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from antiphon_tools.chaos.kills import Kill
from antiphon_tools.load.player import plays_on
from antiphon_tools.load.statistics import percentile

BUFFER_S = 0.2
"""The number of seconds of audio that a player buffers before it starts."""
_HEAD = (
    "| killed | kills | missed | completed | equal | gone on | added p50, ms | p95 | most "
    f"| heard with {1000 * BUFFER_S:.0f} ms of buffer | slots p50, ms | p95 |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
_HEAD_OF_ERRORS = (
    "| killed | kills | errors | error p50, s | p95 | most | codes | back p50, s | most "
    "| then answered p50, s | most |\n|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|"
)


def line(number: int, most: int, kill: Kill) -> str:
    """Return a line that describes a kill."""
    of = f" of {most}" if most else ""
    how = "greedy" if kill.greedy else "seeded"
    if kill.error:
        outcome = (
            f"{kill.error} after {kill.error_after_s:.2f} s, "
            f"back after {kill.back_after_s:.2f} s, answered {kill.answered_after_s:.2f} s later"
        )
    else:
        outcome = (
            f"equal, {1000 * kill.added_s:.0f} ms added, slots after "
            f"{1000 * kill.continued_after_s:.0f} ms"
        )
    return (
        f"{number:4}{of} {kill.target:12} {how} at {kill.at_s:4.1f} s: "
        f"{f'WRONG: {kill.found}; {kill.error}' if kill.found else outcome}"
    )


def table(kills: Sequence[Kill], missed: Mapping[str, int]) -> str:
    """Return a table with one row per stage. Kills that ended with an error have a second table."""
    told = _by_stage(kills, missed)
    lines = [_HEAD]
    for stage, each in told.items():
        added, slots = each["added_ms"], each["continued_after_ms"]
        lines.append(
            f"| {stage} | {each['kills']} | {each['missed']} | {each['completed']} "
            f"| {each['equal']} | {each['continued']} | {added['p50']:.0f} | {added['p95']:.0f} "
            f"| {added['most']:.0f} | {each['heard_gap']} | {slots['p50']:.0f} "
            f"| {slots['p95']:.0f} |"
        )
    if any(kill.error for kill in kills):
        lines += ["", _HEAD_OF_ERRORS]
        for stage, each in told.items():
            error, back = each["error_after_s"], each["back_after_s"]
            again, codes = each["answered_after_s"], ", ".join(each["errors"])
            lines.append(
                f"| {stage} | {each['kills']} | {sum(each['errors'].values())} "
                f"| {error['p50']:.2f} | {error['p95']:.2f} | {error['most']:.2f} | {codes} "
                f"| {back['p50']:.1f} | {back['most']:.1f} | {again['p50']:.2f} "
                f"| {again['most']:.2f} |"
            )
    return "\n".join(lines)


def as_json(kills: Sequence[Kill], missed: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """Return all results as JSON, including each kill."""
    content = {
        "settings": settings,
        "stages": _by_stage(kills, missed),
        "kills": [asdict(kill) for kill in kills],
    }
    return json.dumps(content, indent=1)


def _by_stage(kills: Sequence[Kill], missed: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    found = {}
    for stage in missed:
        own = [kill for kill in kills if kill.stage == stage]
        ended = [kill for kill in own if kill.error]
        whole = [kill for kill in own if kill.completed]
        errors: dict[str, int] = {}
        for kill in ended:
            code = kill.error.partition(":")[0]
            errors[code] = errors.get(code, 0) + 1
        found[stage] = {
            "kills": len(own),
            "missed": missed[stage],
            "greedy": sum(kill.greedy for kill in own),
            "completed": len(whole),
            "equal": sum(not kill.found for kill in whole),
            "continued": sum(kill.continued > 0 for kill in own),
            "added_ms": _spread(whole, lambda kill: 1000 * kill.added_s),
            "heard_gap": sum(not plays_on(kill.underrun_s, BUFFER_S) for kill in whole),
            "continued_after_ms": _spread(
                [kill for kill in own if kill.continued], lambda kill: 1000 * kill.continued_after_s
            ),
            "errors": errors,
            "error_after_s": _spread(ended, lambda kill: kill.error_after_s),
            "back_after_s": _spread(own, lambda kill: kill.back_after_s),
            "answered_after_s": _spread(ended, lambda kill: kill.answered_after_s),
        }
    return found


def _spread(kills: Sequence[Kill], value: Callable[[Kill], float]) -> dict[str, float]:
    """Return percentiles of a value. They are 0 if there are no kills."""
    values = sorted(map(value, kills)) or [0.0]
    return {"p50": percentile(values, 50), "p95": percentile(values, 95), "most": values[-1]}
