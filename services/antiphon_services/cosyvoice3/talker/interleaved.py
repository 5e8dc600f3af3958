"""An utterance whose text comes while it is spoken: what the talker is given, turn by turn.

    sos | text of the prompt up to its end | 5 of text, 15 codes | ... | rest of the text | task

Mirrors `inference_bistream` of the vendor. First the codes of the prompt stand between the text, of
which what the prompt's recording says comes first. Then the talker draws codes, up to 15 behind
every 5 ids of text, or fewer when it draws `FILL`, which asks for more text. When fewer than 5 ids
are left and the text has ended, they go in at once, and `END` may be drawn.

The rows depend on the ids of the text and on the draws, not on when the text comes or how it is
cut: ids are taken in one by one, as the vendor's front end gives them to its talker. No torch here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon_services.cosyvoice3.talker.prompt import (
    DRAWS_OF_A_TEXT_ID,
    SOS,
    TASK,
    UtterancePrompt,
    Voice,
)

Row = tuple[int, bool]
"""An id, and whether it is a speech id."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What stands before a text that comes in pieces: a voice, the ids of the prompt up to its
    end, and the text and the codes of the voice's recording. At most `most_codes` may be drawn."""

    voice: Voice
    head: Sequence[int]
    heard: Sequence[int]
    codes: Sequence[int]
    most_codes: int
    least_codes: float


@dataclass(frozen=True, slots=True)
class MixRatio:
    """So many ids of `text` go with so many `codes`."""

    text: int
    codes: int


class InterleavedText:
    """The text that has come, and the turns that it makes in `voice`; positions end at
    `context_limit`."""

    def __init__(self, opening: Opening, mix: MixRatio, context_limit: int) -> None:
        self.voice = opening.voice
        self._mix = mix
        self._most_codes, self._context_limit = opening.most_codes, context_limit
        self._least_codes = opening.least_codes
        # What has come and was not taken in; what was, and is in no row.
        self._come: deque[int] = deque()
        self._text = deque(opening.heard)
        self._codes = deque(opening.codes)
        self._rows: list[Row] = [(SOS, True), *_words(opening.head)]
        # The rows of the vendor's last forward, which go in again with the rest of the text.
        self._again: list[Row] = []
        self._first_draws = mix.codes - len(opening.codes) % mix.codes
        self._begun = self._finished = False
        self._ids = self._forced = 0

    def add(self, ids: Sequence[int], *, last: bool) -> None:
        """More of the text has come, and all of it with the `last` ids."""
        self._come += ids
        self._ids += len(ids)
        self._finished = last

    def next_turn(self, before: UtterancePrompt | None, drawn: int) -> UtterancePrompt | None:
        """What follows the turn `before`, and `drawn` draws in all; None if text is missing for it.

        One without draws has no room.
        """
        while self._come:
            self._text.append(self._come.popleft())
            if self._begun:
                if len(self._text) >= self._mix.text:
                    self._again = self._take_text()
                    self._rows += self._again
                    return self._turn(before, drawn, self._mix.codes)
                continue
            while self._codes and len(self._text) >= self._mix.text:
                self._rows += [*self._take_text(), *self._take_codes()]
            if not self._codes:
                self._begun, self._again = True, self._rows
                return self._turn(before, drawn, self._first_draws)
        if not self._finished:
            return None
        self._rows += [*self._again, *_words(self._text), (TASK, True)]
        self._text.clear()
        return self._turn(before, drawn, DRAWS_OF_A_TEXT_ID * self._ids, last=True)

    def end_turn(self, code: int | None, *, forced: bool) -> None:
        """A turn has ended whose last `code`, if it had one, was this. One that was `forced` to end
        has not put it in."""
        if code is not None:
            self._again = [(code, True)]
        self._rows = list(self._again) if forced else []
        self._forced += forced

    def _turn(
        self, before: UtterancePrompt | None, drawn: int, draws: int, *, last: bool = False
    ) -> UtterancePrompt:
        """The turn of `_rows`."""
        first = 0 if before is None else before.first + len(before.ids) - 1
        ids = np.array([id_ for id_, _ in self._rows], np.int64)
        speech = np.array([of_speech for _, of_speech in self._rows], np.bool_)
        room = self._context_limit - (first + len(ids) - 1) - drawn
        most = drawn + max(min(draws, self._most_codes - drawn, room), 0)
        return UtterancePrompt(
            ids,
            speech,
            most_draws=most,
            early_draws=0 if last else most,
            least_draws=math.ceil(self._least_codes * self._ids) if last else 0,
            first=first,
            drawn=drawn,
            forced=self._forced,
            asks=not last and most == drawn + draws,
        )

    def _take_text(self) -> list[Row]:
        return _words([self._text.popleft() for _ in range(self._mix.text)])

    def _take_codes(self) -> list[Row]:
        count = min(self._mix.codes, len(self._codes))
        return [(self._codes.popleft(), True) for _ in range(count)]


def _words(ids: Iterable[int]) -> list[Row]:
    return [(each, False) for each in ids]
