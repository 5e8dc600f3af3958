"""Converts functions to and from the realtime API's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from antiphon.errors import InvalidArgument
from antiphon_gateway.conversations.settings import FUNCTION, ConversationSettings
from antiphon_gateway.endpoints.realtime.client_events import ResponseSettings, SessionSettings
from antiphon_gateway.orders.tools import read_functions

CHOICES = ("none", "auto", "required")


def with_tools(
    holds: ConversationSettings, asked: SessionSettings | ResponseSettings, where: str
) -> ConversationSettings:
    """Return the settings with a client's functions applied. Raises `InvalidArgument` if a function
    is invalid.

    If the function that must be called doesn't exist, this is reported only when an answer is
    requested, because clients can change one of the two settings before the other.
    """
    changed = holds
    if asked.tools is not None:
        changed = replace(changed, tools=_read(asked.tools, f"{where}.tools"))
    if asked.parallel_tool_calls is not None:
        changed = replace(changed, parallel_calls=asked.parallel_tool_calls)
    choice, field = asked.tool_choice, f"{where}.tool_choice"
    if isinstance(choice, str) and choice not in CHOICES:
        raise InvalidArgument(
            f"{field}: must be 'none', 'auto', 'required' or a function, got {choice!r}",
            field=field,
        )
    if isinstance(choice, str):
        return replace(changed, tool_choice=choice)
    if choice is None:
        return changed
    if choice.type != "function" or not choice.name:
        raise InvalidArgument(f"{field}: the name of the function is missing", field=field)
    return replace(changed, tool_choice=f"{FUNCTION}{choice.name}")


def tools_json(holds: ConversationSettings) -> dict[str, Any]:
    """Return the fields for functions in `session`."""
    choice: Any = holds.tool_choice
    if holds.tool_choice.startswith(FUNCTION):
        choice = {"type": "function", "name": holds.tool_choice.removeprefix(FUNCTION)}
    functions = (msgspec.json.decode(each)["function"] for each in holds.tools)
    return {
        "tools": [{"type": "function", **each} for each in functions],
        "tool_choice": choice,
        "parallel_tool_calls": holds.parallel_calls,
    }


def _read(tools: tuple[dict[str, Any], ...], field: str) -> tuple[str, ...]:
    functions = []
    for index, tool in enumerate(tools):
        if tool.get("type", "function") != "function":
            path = f"{field}[{index}].type"
            raise InvalidArgument(
                f"{path}: only tools of the type 'function' are supported", field=path
            )
        functions.append({name: value for name, value in tool.items() if name != "type"})
    return read_functions(functions, f"{field}[{{}}]")
