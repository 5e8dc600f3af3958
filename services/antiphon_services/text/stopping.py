"""Determines when a reply ends and which part of it can already be shown and spoken.

The following rules apply:

- A reply ends with a stop ID, with a stop string, or after `limit` IDs. If several of these apply
  at the same time, the first one in this list takes precedence. The reply's text ends just before
  the earliest stop string.
- Text is released as soon as it can't be the beginning of a stop string.
- Every ID except the last one has a row, because Hugging Face uses ID n as the input for ID n + 1.
  The last ID is therefore never spoken, whether it is a stop ID or the ID at which the length limit
  was reached. Any other ID can be spoken immediately.
- If there are stop strings, an ID is only spoken once its text has been released. It is never
  spoken if its text ends after the start of the stop string. For this rule, an ID that ends in the
  middle of a character is treated as if it ended after the character's first byte.
- If the reply may contain function calls, `calls.py` removes them from the text that the previous
  rules release. An ID is only spoken once it is certain that its text isn't part of a call. No ID
  is spoken after the start of the first call.

Offsets are counted in characters from the beginning of the text.
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
    """What can be output after one more ID: text to show, IDs to speak, pieces of calls, and the
    finish reason.

    `speech_finish` is set exactly once, together with the last ID to speak. This can happen before
    the end of the reply.
    """

    text: str
    spoken: tuple[int, ...]
    finish: FinishReason | None
    speech_finish: FinishReason | None = None
    calls: tuple[CallPiece, ...] = ()


class ReplyText:
    """The IDs sampled for a segment. This class applies the rules that the module's docstring
    describes.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_ids: frozenset[int],
        stop_strings: Sequence[str],
        limit: int,
        calls: ReplyCalls | None = None,
    ) -> None:
        """Create an empty reply. `limit` is the maximum number of IDs that can be sampled and must
        be at least 1.
        """
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
        """Add the next sampled ID. Don't call this again after the result has contained a
        `finish`.
        """
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
        """Return the finish reason if this ID, or the number of IDs, ends the reply, or None
        otherwise.
        """
        if id_ in self._stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.ids) == self.limit else None

    def _end(self) -> int:
        """Return the offset at which the latest ID's text ends."""
        return self._released + len(self._held) + self._detokenizer.inside_character

    def _find_stop_string(self) -> int | None:
        """Return the offset of the earliest stop string in the held text, or None if there is
        none.
        """
        starts = [self._held.find(stop) for stop in self._stop_strings]
        return min((start for start in starts if start >= 0), default=None)

    def _doubtful(self) -> int:
        """Return the number of characters at the end of the held text that could be the beginning
        of a stop string.
        """
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
        """Release the first `count` held characters, and the IDs whose text ends within them."""
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
        """Return the finish reason if speech ends with this release, or None if speech continues or
        has already ended.
        """
        if self._calls is not None and self._calls.begun:
            self._unspoken.clear()
            finish = FinishReason.STOP
        if self._speech_ended or finish is None:
            return None
        self._speech_ended = True
        return finish

    def _may_be_spoken(self, end: int) -> bool:
        """Return whether an ID whose text ends at `end` is neither part of a stop string nor part
        of a call.
        """
        if self._calls is not None:
            return end <= self._calls.speakable
        return not self._stop_strings or end <= self._released
