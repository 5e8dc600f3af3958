"""Decides when a reply ends, and what of it may be shown and spoken so far.

Invariants:

- A reply ends with a stop id, with a stop string, or after `limit` ids, in this order of
  precedence. Its text ends right before the earliest stop string.
- Text is released as soon as it cannot be the beginning of a stop string.
- There is a row for every id but the last sampled one (HF feeds id n to get id n+1), so the last
  sampled id is never spoken, be it a stop id or the id at a length limit. Any other id may be
  spoken at once.
- With stop strings, an id is spoken once its text is released, and never if its text ends after the
  start of the stop string. For this rule, an id that ends inside a character ends after that
  character's first byte.
- If the reply may call functions, `calls.py` removes the calls from what the rules above release.
  An id is spoken once its text belongs to no call, and none from the first call on.

Offsets count characters of the whole text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.values.segment import FinishReason
from antiphon.wire.tool_calls import CallPiece
from antiphon_services.text.calls import ReplyCalls
from antiphon_services.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class ReleasedText:
    """What one more id releases: text to show, ids to speak, pieces of calls, and the finish.

    `speech_finish` is set once, with the last id to speak, which may precede the reply's end.
    """

    text: str
    spoken: tuple[int, ...]
    finish: FinishReason | None
    speech_finish: FinishReason | None = None
    calls: tuple[CallPiece, ...] = ()


class ReplyText:
    """The ids sampled for one segment, with the rules above applied."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_ids: frozenset[int],
        stop_strings: Sequence[str],
        limit: int,
        calls: ReplyCalls | None = None,
    ) -> None:
        """`limit` is the most ids that may be sampled, at least 1."""
        self.ids: list[int] = []
        self.limit = limit
        self._detokenizer = detokenizer
        self._stop_ids = stop_ids
        self._stop_strings = stop_strings
        self._calls = calls
        self._speech_ended = False
        self._released = 0
        self._held = ""
        self._unspoken: deque[tuple[int, int]] = deque()

    def push(self, id_: int) -> ReleasedText:
        """Add the next sampled id. Must not be called after a release with `finish`."""
        self.ids.append(id_)
        finish = self._finish_after(id_)
        self._held += self._detokenizer.push(id_)
        if finish is None:
            self._unspoken.append((id_, self._end()))
        else:
            self._held += self._detokenizer.flush()
        stop = self._find_stop_string()
        if stop is not None:
            return self._release(stop, FinishReason.STOP)
        if finish is not None:
            return self._release(len(self._held), finish)
        return self._release(len(self._held) - self._doubtful(), None)

    def _finish_after(self, id_: int) -> FinishReason | None:
        """Return how the id itself, or the number of ids, ends the reply; None if not."""
        if id_ in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.ids) == self.limit else None

    def _end(self) -> int:
        """Return the offset at which the text of the latest id ends."""
        return self._released + len(self._held) + self._detokenizer.inside_character

    def _find_stop_string(self) -> int | None:
        """Return where in the held text the earliest stop string starts."""
        starts = [self._held.find(stop) for stop in self._stop_strings]
        return min((start for start in starts if start >= 0), default=None)

    def _doubtful(self) -> int:
        """Return how many characters at the end of the held text may begin a stop string."""
        return max(
            (
                count
                for stop in self._stop_strings
                for count in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:count])
            ),
            default=0,
        )

    def _release(self, count: int, finish: FinishReason | None) -> ReleasedText:
        """Release the first `count` held characters, and the ids that end within them."""
        text, self._held = self._held[:count], self._held[count:]
        self._released += count
        calls: list[CallPiece] = []
        if self._calls is not None:
            text, calls = self._calls.take(text, last=finish is not None)
            if self._calls.complete:
                finish = FinishReason.STOP
        spoken: list[int] = []
        while self._unspoken and self._may_be_spoken(self._unspoken[0][1]):
            spoken.append(self._unspoken.popleft()[0])
        return ReleasedText(text, tuple(spoken), finish, self._speech_finish(finish), tuple(calls))

    def _speech_finish(self, finish: FinishReason | None) -> FinishReason | None:
        """Return how speech ends with this release; None if it continues or has ended."""
        if self._calls is not None and self._calls.begun:
            self._unspoken.clear()
            finish = FinishReason.STOP
        if self._speech_ended or finish is None:
            return None
        self._speech_ended = True
        return finish

    def _may_be_spoken(self, end: int) -> bool:
        """Return whether an id whose text ends at `end` is part of no stop string and no call."""
        if self._calls is not None:
            return end <= self._calls.speakable
        return not self._stop_strings or end <= self._released
