"""Generates the `/v1/realtime` event reference from the page that a gateway serves at `/docs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_gateway.endpoints.realtime.event_reference import event_reference
from antiphon_gateway.endpoints.realtime.no_effect import NO_EFFECT
from antiphon_tools.reference.http_page import kind_table

_HEAD = """# Realtime events

The events of `/v1/realtime`, as the gateway reads and writes them.
[Realtime conversations](../docs/realtime.md) introduces them. Events whose types begin with
`antiphon.` are not part of OpenAI's API; clients request them in `session.antiphon`.
"""


async def realtime_page() -> str:
    """Return a page for both directions. Each event type has its fields or an example."""
    events = await event_reference()
    lines = [_HEAD, "## From the client\n"]
    for event in events.client:
        lines += [f"### {event.type}\n", f"{event.description}\n", *_example(event.example)]
        lines += kind_table(event.fields or {})
    lines.append("### Objects of client events\n")
    for name, fields in events.objects.items():
        lines += [f"#### {name}\n", f"{fields.get('description', '')}\n", *kind_table(fields)]
    lines.append("### Fields without effect\n")
    lines.append("The gateway accepts these fields of OpenAI's API, and they have no effect.\n")
    lines += [*(f"- `{path}`" for path in NO_EFFECT), ""]
    lines.append("## From the gateway\n")
    for event in events.server:
        lines += [f"### {event.type}\n", *_example(event.example)]
    return "\n".join(lines)


def _example(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"```json\n{json.dumps(event, indent=2)}\n```\n"
