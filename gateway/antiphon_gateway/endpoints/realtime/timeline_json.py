"""When each stage worked on a response: an event of antiphon's own, for those who ask for it."""

from __future__ import annotations

from typing import Any

from antiphon_gateway.conversations.events import Response


def timeline_json(response: Response) -> list[dict[str, Any]]:
    """The event of a response that is over, if its conversation wants it and it has reached the
    stages. Times are seconds since a stage was given the turn; 0 where the thing did not happen."""
    if not response.settings.timeline or not response.reports:
        return []
    by_output = sorted(response.reports.items(), key=lambda each: each[1].first_output_s)
    stages = [
        {
            "role": role,
            "first_input_s": report.first_input_s,
            "first_output_s": report.first_output_s,
            "last_output_s": report.last_output_s,
            "busy_s": report.busy_s,
            "input_positions": report.input_positions,
            "input_cached_positions": report.input_cached_positions,
            "output_positions": report.output_positions,
        }
        for role, report in by_output
    ]
    kind = "antiphon.response.timeline"
    return [{"type": kind, "response_id": response.id, "stages": stages}]
