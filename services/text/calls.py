"""Takes the calls of functions out of a reply, as its text comes.

Laws:
- A reply's text is what comes before its first call. What stands between calls and behind them
  is dropped, as vLLM's parser of this form does.
- Text is let go as soon as it cannot be the beginning of a call. The line break that a model puts
  before a call belongs to the call, because the chat template puts it there again.
- A call is let go when it has ended and is one: a JSON object with the name of a function that
  there is, and an object of arguments. Anything else fails the reply, and nothing of it leaves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from antiphon.conversation import ToolCall
from antiphon.errors import Internal, told
from services.text.tool_format import CLOSE, OPEN

EDGE = "tool_calls"


class MalformedCall(Internal):
    """The model has written a call that cannot be carried out."""


class _WrittenCall(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw


_call_decoder = msgspec.json.Decoder(_WrittenCall)
_arguments_decoder = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class CallRules:
    """What calls a reply may have: of which functions, and how many.

    `begun` is the text that the reply has been made to begin with, up to and including the
    beginning of a call. A reply that is not `parallel` ends behind its first call.
    """

    functions: Collection[str]
    begun: str = ""
    parallel: bool = True

    @classmethod
    def forcing(cls, functions: Collection[str], name: str, *, parallel: bool) -> CallRules:
        """The reply begins with a call: of that function, or of any with an empty name."""
        begun = f'{OPEN}\n{{"name": "{name}", "arguments":' if name else OPEN
        return cls(functions, begun, parallel)


class ReplyCalls:
    """The calls of one reply. `speakable` is how much of its text, in characters, belongs to no
    call for sure; it stands still from the first call on, when `begun`."""

    def __init__(self, rules: CallRules) -> None:
        self.begun = bool(rules.begun)
        self.speakable = 0
        self.complete = False
        self._rules = rules
        # What was not let go: of the text, or of the call that is being written.
        self._held = rules.begun.removeprefix(OPEN)
        self._inside = self.begun

    def take(self, text: str, *, last: bool) -> tuple[str, list[ToolCall]]:
        """The text to show, and the calls that have ended, once this text has come.

        Raises `MalformedCall`.
        """
        self._held += text
        shown = "" if self.begun else self._show(last=last)
        calls: list[ToolCall] = []
        while self.begun and not self.complete and (call := self._next_call()) is not None:
            calls.append(call)
            self.complete = not self._rules.parallel
        if last and self._inside and not self.complete:
            raise _malformed("it does not end")
        return shown, calls

    def _show(self, *, last: bool) -> str:
        """Let go of the text that belongs to no call; note where a call begins."""
        start = self._held.find(OPEN)
        if start < 0:
            count = len(self._held) if last else len(self._held) - self._doubtful()
            self.speakable += count
            shown, self._held = self._held[:count], self._held[count:]
            return shown
        self.speakable += start
        shown = self._held[:start].removesuffix("\n")
        self._held = self._held[start + len(OPEN) :]
        self.begun = self._inside = True
        return shown

    def _doubtful(self) -> int:
        """How many characters at the end may belong to a call."""
        opener = next(
            (n for n in range(min(len(OPEN) - 1, len(self._held)), 0, -1)
             if self._held.endswith(OPEN[:n])), 0
        )  # fmt: skip
        line_break = self._held.endswith("\n", 0, len(self._held) - opener)
        return opener + line_break

    def _next_call(self) -> ToolCall | None:
        """The next call, if it has ended."""
        if not self._inside:
            start = self._held.find(OPEN)
            if start < 0:
                # The end may begin a call; the rest is dropped.
                self._held = self._held[-len(OPEN) + 1 :]
                return None
            self._held, self._inside = self._held[start + len(OPEN) :], True
        written, ended, rest = self._held.partition(CLOSE)
        if not ended:
            return None
        self._held, self._inside = rest, False
        return self._read(written)

    def _read(self, written: str) -> ToolCall:
        """The call that was written."""
        try:
            call = _call_decoder.decode(written)
            _arguments_decoder.decode(call.arguments)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise _malformed(str(error)) from error
        if call.name not in self._rules.functions:
            raise _malformed(f"there is no function {told(call.name)}")
        return ToolCall("", call.name, bytes(call.arguments).decode())


def _malformed(why: str) -> MalformedCall:
    return MalformedCall(f"the model has written a call that is none: {why}", edge=EDGE)
