"""The functions of a request, regardless of its protocol. This module parses functions, applies
limits to them, and determines the rules for calling them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import (
    FUNCTION_NAME,
    ConversationMessage,
    ToolChoice,
    function_names,
)
from antiphon_gateway.orders.order import Order

KIND = "tools"
"""The input type that a stage reports if it supports functions."""

_arguments = msgspec.json.Decoder(dict[str, Any])


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function. Any other fields sent by the client are passed to the model unchanged.

    `strict` has no effect, because the model's output is validated rather than constrained.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def read_functions(functions: Sequence[Mapping[str, Any]], field: str) -> tuple[str, ...]:
    """Convert functions to the form used in `Conversation.tools`.

    `field` is the path of a function, with `{}` in place of its number. Raises `InvalidArgument` if
    a function is invalid.
    """
    read: dict[str, str] = {}
    for index, function in enumerate(functions):
        path = field.format(index)
        try:
            name = msgspec.convert(function, FunctionDefinition).name
            text = msgspec.json.encode({"type": "function", "function": function}).decode()
        except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidArgument(f"{path}: {error}", field=path) from error
        if FUNCTION_NAME.fullmatch(name) is None or name in read:
            why = (
                ("another function has this name")
                if name in read
                else "must be 1 to 64 letters, digits, _ or -"
            )
            raise InvalidArgument(f"{path}.name: {why}", field=f"{path}.name")
        read[name] = text
    return tuple(read.values())


def read_function_texts(texts: Sequence[str], field: str) -> tuple[str, ...]:
    """Like `read_functions`, but for functions whose JSON is given as text."""
    functions: list[Mapping[str, Any]] = []
    for index, text in enumerate(texts):
        path = field.format(index)
        try:
            functions.append(_arguments.decode(text))
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArgument(f"{path}: must be a JSON object: {error}", field=path) from error
    return read_functions(functions, field)


def read_arguments(arguments: str, path: str) -> str:
    """Validate the arguments of an earlier call, which must be a JSON object. An empty string means
    that there are no arguments.

    Raises `InvalidArgument` if the arguments are invalid.
    """
    try:
        _arguments.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidArgument(f"{path}: must be a JSON object: {error}", field=path) from error
    return arguments or "{}"


def choose_tools(
    tools: tuple[str, ...],
    choice: str | None,
    name: str,
    *,
    parallel: bool | None,
    field: str = "tool_choice",
) -> tuple[tuple[str, ...], ToolChoice]:
    """Return the functions that the model can call and the rules for calling them.

    `choice` is "none", "auto" (the default), "required", or "function", for which `name` must be
    set. With "none", the prompt doesn't contain any functions. If the choice is invalid,
    `InvalidArgument` is raised with the `field`.
    """
    together = parallel is not False
    if choice in (None, "auto"):
        return tools, ToolChoice(parallel=together)
    if choice == "none":
        return (), ToolChoice()
    if choice not in ("required", "function"):
        raise InvalidArgument(
            f"{field}: must be 'none', 'auto', 'required' or a function, got {choice!r}",
            field=field,
        )
    names = function_names(tools)
    if not names:
        raise InvalidArgument(f"{field}: is only allowed if the request has functions", field=field)
    if choice == "function" and name not in names:
        raise InvalidArgument(
            f"{field}: unknown function {name!r}; use one of: {', '.join(names)}",
            field=field,
        )
    return tools, ToolChoice(name if choice == "function" else "", parallel=together)


def check_tools(order: Order, reader: stage_pb2.DescribeResponse, config: GatewayConfig) -> None:
    """Raise the errors of `check_offered`. If the messages contain function calls but the stage
    doesn't support them, raise `NotImplementedYet`.
    """
    takes = KIND in reader.input_kinds
    check_offered(order.tools, config, takes=takes)
    if not takes and (field := _called_at(order.messages)):
        raise _no_place(field)


def check_offered(tools: Sequence[str], config: GatewayConfig, *, takes: bool) -> None:
    """Raise `InvalidArgument` if there are too many functions or if they are too large, and
    `NotImplementedYet` if the model doesn't support functions.
    """
    if len(tools) > config.limits.max_tools:
        raise InvalidArgument(
            f"tools: must have at most {config.limits.max_tools} entries "
            "(gateway.limits.max_tools)",
            field="tools",
        )
    for index, tool in enumerate(tools):
        if len(tool.encode()) > config.limits.max_tool_bytes:
            path = f"tools[{index}]"
            raise InvalidArgument(
                f"{path}: has more than {config.limits.max_tool_bytes} bytes "
                "(gateway.limits.max_tool_bytes)",
                field=path,
            )
    if tools and not takes:
        raise _no_place("tools")


def _no_place(field: str) -> NotImplementedYet:
    return NotImplementedYet(
        f"{field}: this model doesn't support tools, because its chat template has no place for "
        "them; leave them out",
        field=field,
    )


def _called_at(messages: Sequence[ConversationMessage]) -> str:
    """Return the path of the first message with a function call or a result. Returns an empty
    string if there is none.
    """
    for index, message in enumerate(messages):
        if message.tool_calls or message.role == "tool":
            return f"messages[{index}]"
    return ""
