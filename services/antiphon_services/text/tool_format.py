"""Determines how a chat template formats function calls by trying it out.

The only supported format is that of Qwen's and Hermes' models, which is a JSON object with `name`
and `arguments` between `<tool_call>` and `</tool_call>`. Templates differ in the type that they
expect for the arguments of earlier calls. If a template accepts text, it is given the original
text, so that the prompt contains exactly the characters that the model generated. If it would quote
text, it is given the object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"

Apply = Callable[[list[dict[str, Any]], list[Any]], str]
"""A function that renders messages and functions with a template."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form in which a template accepts calls."""

    arguments_as_text: bool

    def write(self, call: ToolCall) -> dict[str, Any]:
        """Return a call in the form that the template accepts. Raises `InvalidArgument` if its
        arguments are malformed.
        """
        arguments: Any = call.arguments
        if not self.arguments_as_text:
            try:
                arguments = json.loads(arguments)
                # An escape sequence can represent a lone surrogate, which tokenizers reject.
                json.dumps(arguments, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(
                    f"messages: the arguments of a call of {call.name} are not valid JSON: {error}",
                    field="messages",
                ) from error
        function = {"name": call.name, "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}


def find_tool_format(apply: Apply) -> ToolFormat | None:
    """Return the form in which a template accepts calls, or None if it doesn't support calls or
    uses a different format.
    """
    function = {"name": "tried", "description": "a trial", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    call = ToolCall("trial", "tried", '{"to": "see"}')
    for form in (ToolFormat(arguments_as_text=True), ToolFormat(arguments_as_text=False)):
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Try it."},
            {"role": "assistant", "content": "", "tool_calls": [form.write(call)]},
            {"role": "tool", "tool_call_id": "trial", "content": "it was tried"},
        ]
        try:
            rendered = apply(messages, tools)
        except (TemplateError, TypeError, ValueError):
            continue
        written = f'{OPEN}\n{{"name": "tried", "arguments": {call.arguments}}}\n{CLOSE}'
        if all(each in rendered for each in ("a trial", written, "it was tried")):
            return form
    return None
