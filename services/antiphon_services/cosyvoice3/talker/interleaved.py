"""The prompt of an utterance whose text arrives while it is spoken, turn by turn.

    sos | text of the prompt up to its end | 5 of text, 15 codes | ... | rest of the text | task

Mirrors `inference_bistream` of the vendor. The codes of the prompt come first between the text,
which begins with the text of the prompt's recording. After them, the talker samples up to 15 codes
for every 5 text ids. It samples fewer codes if it samples `FILL`, which asks for more text. If
fewer than 5 ids are left and the text is complete, all of them follow at once, and the talker may
sample `END`.

The rows depend on the text ids and the draws, not on arrival times or on the pieces of the text:
ids are processed one by one, as in the vendor's code. This module does not import torch.
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
"""An id, and whether the id is a speech id."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The prompt before a text in pieces: a voice, the ids of the prompt up to its end, and the
    text and codes of the voice's recording. The utterance has at most `most_codes` draws."""

    voice: Voice
    head: Sequence[int]
    heard: Sequence[int]
    codes: Sequence[int]
    most_codes: int
    least_codes: float


@dataclass(frozen=True, slots=True)
class MixRatio:
    """The pace of a text in pieces: `codes` codes for `text` ids."""

    text: int
    codes: int


class InterleavedText:
    """The text that has arrived, and its turns in `voice`; positions end at `context_limit`."""

    def __init__(self, opening: Opening, mix: MixRatio, context_limit: int) -> None:
        self.voice = opening.voice
        self._mix = mix
        self._most_codes, self._context_limit = opening.most_codes, context_limit
        self._least_codes = opening.least_codes
        # Ids that arrived and were not processed; and processed ids that are in no row yet.
        self._come: deque[int] = deque()
        self._text = deque(opening.heard)
        self._codes = deque(opening.codes)
        self._rows: list[Row] = [(SOS, True), *_words(opening.head)]
        # The rows of the vendor's last forward pass, which are repeated with the rest of the text.
        self._again: list[Row] = []
        self._first_draws = mix.codes - len(opening.codes) % mix.codes
        self._begun = self._finished = False
        self._ids = self._forced = 0

    def add(self, ids: Sequence[int], *, last: bool) -> None:
        """Add ids of the text, which is complete after the `last` ids."""
        self._come += ids
        self._ids += len(ids)
        self._finished = last

    def next_turn(self, before: UtterancePrompt | None, drawn: int) -> UtterancePrompt | None:
        """Return the turn after the turn `before` and `drawn` draws in total, or None if it lacks
        text.

        A turn without draws has no positions left.
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
        """End a turn whose last code, if any, was `code`. A `forced` end has not appended the
        code."""
        if code is not None:
            self._again = [(code, True)]
        self._rows = list(self._again) if forced else []
        self._forced += forced

    def _turn(
        self, before: UtterancePrompt | None, drawn: int, draws: int, *, last: bool = False
    ) -> UtterancePrompt:
        """Return the turn with the current `_rows`."""
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
