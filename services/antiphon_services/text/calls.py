"""Extracts function calls from a reply while its text is being generated.

The following rules apply:

- A reply's text ends where its first call begins. Any text between or after calls is dropped, as in
  vLLM's parser for this format.
- Text is released as soon as it can't be the beginning of a call. If a model generates a line break
  before a call, it belongs to the call, because the chat template inserts it again.
- A call is sent in pieces while it is generated (`written_call.py`). The last piece is sent once
  the call has ended and is valid. An invalid call makes the reply fail, even if pieces of the call
  have already been sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from antiphon.wire.tool_calls import CallPiece
from antiphon_services.text.tool_format import CLOSE, OPEN
from antiphon_services.text.written_call import WrittenCall, malformed


@dataclass(frozen=True, slots=True)
class CallRules:
    """The rules that state which functions a reply may call and how many calls it may contain.

    `begun` is text that the reply is forced to begin with, including the start of a call. If
    `parallel` is false, the reply ends after its first call.
    """

    functions: Collection[str]
    begun: str = ""
    parallel: bool = True

    @classmethod
    def forcing(cls, functions: Collection[str], name: str, *, parallel: bool) -> CallRules:
        """Return rules that force the reply to begin with a call of the function `name`, or of any
        function if `name` is empty.
        """
        begun = f'{OPEN}\n{{"name": "{name}", "arguments":' if name else OPEN
        return cls(functions, begun, parallel)


class ReplyCalls:
    """The calls in one reply.

    `speakable` is the length, in characters, of the text that is certain not to belong to a call.
    Once the first call has `begun`, it doesn't change any more.
    """

    def __init__(self, rules: CallRules) -> None:
        self.begun = bool(rules.begun)
        self.speakable = 0
        self.complete = False
        self._rules = rules
        # Text that hasn't been released yet or, during a call, the whole call so far.
        self._held = rules.begun.removeprefix(OPEN)
        self._call = WrittenCall(rules.functions) if self.begun else None

    def take(self, text: str, *, last: bool) -> tuple[str, list[CallPiece]]:
        """Return the text to show, and the call pieces to send after it.

        Raises `MalformedCall` if a call is invalid.
        """
        self._held += text
        shown = "" if self.begun else self._show(last=last)
        pieces: list[CallPiece] = []
        while self.begun and not self.complete and (piece := self._next_piece()) is not None:
            pieces.append(piece)
            self.complete = piece.ends and not self._rules.parallel
        if last and self._call is not None:
            raise malformed("it does not end")
        return shown, pieces

    def _show(self, *, last: bool) -> str:
        """Release text that doesn't belong to a call and detect the start of a call."""
        start = self._held.find(OPEN)
        if start < 0:
            count = len(self._held) if last else len(self._held) - self._doubtful()
            self.speakable += count
            shown, self._held = self._held[:count], self._held[count:]
            return shown
        self.speakable += start
        shown = self._held[:start].removesuffix("\n")
        self._held = self._held[start + len(OPEN) :]
        self.begun, self._call = True, WrittenCall(self._rules.functions)
        return shown

    def _doubtful(self) -> int:
        """Return the number of characters at the end of the text that may belong to a call."""
        opener = _begun_at_end(self._held, OPEN)
        line_break = self._held.endswith("\n", 0, len(self._held) - opener)
        return opener + line_break

    def _next_piece(self) -> CallPiece | None:
        """Return the next piece of a call that can be sent."""
        if self._call is None:
            start = self._held.find(OPEN)
            if start < 0:
                # The end of the text may be the beginning of a call, so keep it. Drop everything
                # before it.
                self._held = self._held[-len(OPEN) + 1 :]
                return None
            self._held = self._held[start + len(OPEN) :]
            self._call = WrittenCall(self._rules.functions)
        written, ended, rest = self._held.partition(CLOSE)
        if not ended:
            return self._call.more(written[: len(written) - _begun_at_end(written, CLOSE)])
        call, self._call, self._held = self._call, None, rest
        return call.end(written)


def _begun_at_end(text: str, tag: str) -> int:
    """Return the number of characters at the end of the text that could be the beginning of the
    tag.
    """
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
