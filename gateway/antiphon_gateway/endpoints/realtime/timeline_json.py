"""Reports when each stage worked on a response. OpenAI's API doesn't have this event, so it is sent
only to clients that request it.
"""

from __future__ import annotations

from typing import Any

from antiphon_gateway.conversations.events import Response


def timeline_json(response: Response) -> list[dict[str, Any]]:
    """Return the event for a completed response. If the client hasn't requested the event, or the
    response never reached the stages, the list is empty.

    Times are in seconds since a stage received the turn. If something didn't happen, its time is 0.
    """
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
