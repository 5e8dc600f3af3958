"""Generates a page of session states from the table that the stages use."""

from __future__ import annotations

from antiphon.runtime.session.states import ENDED, TRANSITIONS, Event, State


def session_page() -> str:
    """Return a table with one row per state and one column per event."""
    lines = [
        "# States of a session",
        "",
        "A session on a stage follows this table. Any other move is an error.",
        "Bold states are final.",
        "[Sessions](../docs/concepts/sessions.md) explains them.",
        "",
        "| state | " + " | ".join(f"`{event.value}`" for event in Event) + " |",
        "|---" * (len(Event) + 1) + "|",
    ]
    for state in State:
        moves = (TRANSITIONS.get((state, event)) for event in Event)
        lines.append(f"| {_name(state)} | " + " | ".join(map(_name, moves)) + " |")
    return "\n".join([*lines, ""])


def _name(state: State | None) -> str:
    if state is None:
        return "-"
    return f"**{state.value}**" if state in ENDED else state.value
