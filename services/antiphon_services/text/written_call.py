"""A function call that is released while it is being generated.

The following rules apply:

- If the function exists, its name is released when the arguments begin. The arguments are then
  released character by character as they are generated.
- If the parts of a call are in a different order, the whole call is released when it has ended.
- The last piece is released when the call has ended and is valid. A valid call is a JSON object
  with the name of an existing function and an object of arguments, which must be equal to the
  arguments already released.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from antiphon.errors import UnusableOutput, told
from antiphon.wire.tool_calls import CallPiece

EDGE = "tool_calls"
_HEAD = re.compile(
    r"""\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_-]{1,64})"\s*,\s*"arguments"\s*:\s*(?=\{)""", re.ASCII
)


class MalformedCall(UnusableOutput):
    """Raised if the model generates an invalid function call."""


class _DecodedCall(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw


_call_decoder = msgspec.json.Decoder(_DecodedCall)
_arguments_decoder = msgspec.json.Decoder(dict[str, object])


class WrittenCall:
    """A call of one of the given functions, while it is being generated."""

    def __init__(self, functions: Collection[str]) -> None:
        self._functions = functions
        # What has been released so far, which is the name, and the arguments from `_start` to
        # `_left`.
        self._name = ""
        self._start = self._left = 0
        self._depth = 0
        self._quoted = self._escaped = self._closed = False

    def more(self, written: str) -> CallPiece | None:
        """Return the text that can be released, or None if there isn't any. `written` is the call's
        text so far.

        Raises `MalformedCall` if the function is unknown.
        """
        name = ""
        if not self._name:
            if (head := _HEAD.match(written)) is None:
                return None
            name = self._name = head[1]
            self._check_function(name)
            self._start = self._left = head.end()
        first, self._left = self._left, self._end_of_arguments(written)
        return CallPiece(name, written[first : self._left]) if self._left > first else None

    def end(self, written: str) -> CallPiece:
        """Return the last piece of a complete call. Raises `MalformedCall` if the call is
        invalid.
        """
        try:
            call = _call_decoder.decode(written)
            _arguments_decoder.decode(call.arguments)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise malformed(str(error)) from error
        self._check_function(call.name)
        arguments = bytes(call.arguments).decode()
        if not self._name:
            return CallPiece(call.name, arguments, ends=True)
        left = written[self._start : self._left]
        if call.name != self._name or not arguments.startswith(left):
            raise malformed("it contains a name or arguments twice")
        return CallPiece("", arguments[len(left) :], ends=True)

    def _check_function(self, name: str) -> None:
        if name not in self._functions:
            raise malformed(f"unknown function {told(name)}")

    def _end_of_arguments(self, written: str) -> int:
        """Return the offset at which the arguments end in the text so far."""
        at = self._left
        while at < len(written) and not self._closed:
            self._read(written[at])
            at += 1
        return at

    def _read(self, character: str) -> None:
        """Process one character of the arguments, which form an object that ends with its closing
        brace.
        """
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._closed = self._depth == 0


def malformed(why: str) -> MalformedCall:
    """Return the error for an invalid call."""
    return MalformedCall(f"the model generated an invalid function call: {why}", edge=EDGE)
