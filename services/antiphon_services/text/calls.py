"""Takes the calls of functions out of a reply, as its text comes.

Laws:
- A reply's text is what comes before its first call. What stands between calls and behind them
  is dropped, as vLLM's parser of this form does.
- Text is let go as soon as it cannot be the beginning of a call. The line break that a model puts
  before a call belongs to the call, because the chat template puts it there again.
- A call leaves in pieces as it is written (`written_call.py`). Its last piece leaves when it has
  ended and is one. Anything else fails the reply: what has left of it was no call then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from antiphon.wire.tool_calls import CallPiece
from antiphon_services.text.tool_format import CLOSE, OPEN
from antiphon_services.text.written_call import WrittenCall, malformed


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
        # What was not let go of the text, or the whole of the call that is being written.
        self._held = rules.begun.removeprefix(OPEN)
        self._call = WrittenCall(rules.functions) if self.begun else None

    def take(self, text: str, *, last: bool) -> tuple[str, list[CallPiece]]:
        """The text to show, and what leaves of calls, once this text has come.

        Raises `MalformedCall`.
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
        self.begun, self._call = True, WrittenCall(self._rules.functions)
        return shown

    def _doubtful(self) -> int:
        """How many characters at the end may belong to a call."""
        opener = _begun_at_end(self._held, OPEN)
        line_break = self._held.endswith("\n", 0, len(self._held) - opener)
        return opener + line_break

    def _next_piece(self) -> CallPiece | None:
        """What may leave next of a call."""
        if self._call is None:
            start = self._held.find(OPEN)
            if start < 0:
                # The end may begin a call; the rest is dropped.
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
    """How many characters at the end of the text may be the beginning of the tag."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
