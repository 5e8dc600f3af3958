"""The functions that a model may call and the calls that it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from antiphon.client.checks import listed, of_type, unicode_text, wrong_type
from antiphon.errors import InvalidArgument
from antiphon.v1 import functions_pb2
from antiphon.values.answer import FunctionCall


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call. `parameters` is a JSON schema for its arguments.

    >>> Function(
    ...     "set_light",
    ...     "Switches the light of a room.",
    ...     {"type": "object", "properties": {"room": {"type": "string"}}},
    ... )
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None


FunctionChoice = Literal["auto", "none", "required"] | Function
"""Determines whether the model calls a function.

With "auto", the model decides. With "none", it never calls a function. With "required", it calls at
least one function. If a `Function` is given, the model calls that function.
"""


def function_to_proto(field: str, function: Function) -> str:
    """Return a function as JSON. Raises `InvalidArgument` if the function is invalid."""
    described: dict[str, Any] = {"name": unicode_text(f"{field}.name", function.name)}
    if function.description:
        described["description"] = unicode_text(f"{field}.description", function.description)
    if function.parameters is not None:
        if not isinstance(function.parameters, Mapping):
            raise wrong_type(f"{field}.parameters", "a mapping", function.parameters)
        described["parameters"] = function.parameters
    try:
        return json.dumps(described, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{field}.parameters: {error}", field=f"{field}.parameters") from None


def functions_to_proto(functions: Sequence[Function]) -> list[str]:
    """Return each function as JSON."""
    return [
        function_to_proto(f"functions[{index}]", each)
        for index, each in enumerate(listed("functions", functions, Function))
    ]


def choice_to_proto(choice: FunctionChoice, *, parallel: bool) -> functions_pb2.FunctionChoice:
    """Return the function choice as a proto message."""
    alone = not of_type("parallel_calls", parallel, bool)
    if isinstance(choice, Function):
        name = unicode_text("function_choice", choice.name)
        return functions_pb2.FunctionChoice(mode="required", name=name, one_call=alone)
    if choice not in ("auto", "none", "required"):
        raise wrong_type("function_choice", "'auto', 'none', 'required' or a Function", choice)
    return functions_pb2.FunctionChoice(mode=choice, one_call=alone)


def call_to_proto(field: str, call: FunctionCall) -> functions_pb2.FunctionCall:
    """Return a call from an earlier answer as a proto message."""
    return functions_pb2.FunctionCall(
        id=unicode_text(f"{field}.id", call.id),
        name=unicode_text(f"{field}.name", call.name),
        arguments=unicode_text(f"{field}.arguments", call.arguments),
    )


def call_from_proto(proto: functions_pb2.FunctionCall) -> FunctionCall:
    """Convert a function call."""
    return FunctionCall(proto.id, proto.name, proto.arguments)
