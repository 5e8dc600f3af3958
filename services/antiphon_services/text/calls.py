"""Extracts the function calls from a reply while its text is being generated.

Invariants:

- The text of a reply is the part that precedes its first call. Text between calls and after them is
  dropped, as in vLLM's parser for this format.
- Text is released as soon as it cannot be the beginning of a call. The line break that a model
  generates before a call belongs to the call, because the chat template inserts it again.
- A call is sent in pieces as it is generated (`written_call.py`). Its last piece is sent when the
  call has ended and is valid. If a call is invalid, the reply fails, even if pieces of the call
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
    """Determines which functions a reply may call, and how many calls it may contain.

    `begun` is the text with which the reply is forced to begin, including the start of a call. If
    `parallel` is false, the reply ends after its first call.
    """

    functions: Collection[str]
    begun: str = ""
    parallel: bool = True

    @classmethod
    def forcing(cls, functions: Collection[str], name: str, *, parallel: bool) -> CallRules:
        """Return the rules for a reply that begins with a call of the function `name`. If `name` is
        empty, any function may be called.
        """
        begun = f'{OPEN}\n{{"name": "{name}", "arguments":' if name else OPEN
        return cls(functions, begun, parallel)


class ReplyCalls:
    """The calls of one reply.

    `speakable` is the length of the text, in characters, that certainly does not belong to a call.
    It no longer changes once the first call has `begun`.
    """

    def __init__(self, rules: CallRules) -> None:
        self.begun = bool(rules.begun)
        self.speakable = 0
        self.complete = False
        self._rules = rules
        # The text that has not been released yet, or the whole call that is being generated.
        self._held = rules.begun.removeprefix(OPEN)
        self._call = WrittenCall(rules.functions) if self.begun else None

    def take(self, text: str, *, last: bool) -> tuple[str, list[CallPiece]]:
        """Return the text to show and the pieces of calls to send after this text.

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
        """Release the text that does not belong to a call, and detect the start of a call."""
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
        """Return the number of characters at the end that may belong to a call."""
        opener = _begun_at_end(self._held, OPEN)
        line_break = self._held.endswith("\n", 0, len(self._held) - opener)
        return opener + line_break

    def _next_piece(self) -> CallPiece | None:
        """Return the next piece of a call that may be sent."""
        if self._call is None:
            start = self._held.find(OPEN)
            if start < 0:
                # The end of the text may be the beginning of a call. Everything else is dropped.
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
    """Return the number of characters at the end of the text that may be the beginning of
    the tag.
    """
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
