"""The prompt of an utterance whose text arrives while it is being spoken.

The rows of the utterance have the following layout:

    sos | prompt text up to its end | 5 text tokens, 15 codes | ... | remaining text | task

This module mirrors the vendor's `inference_bistream`. At first, the codes of the prompt are
interleaved with the text, which starts with the transcript of the prompt's recording. After that,
the talker samples up to 15 codes for every 5 text tokens. It samples fewer if it samples `FILL`,
which requests more text. If the text is complete and fewer than 5 tokens remain, all of them are
added at once, and the talker may sample `END`.

The rows depend only on the text tokens and the draws. They do not depend on arrival times or on how
the text is split, because tokens are processed one by one, as in the vendor's code. This module
does not import torch.
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
"""A token ID, and whether it is the ID of a speech token."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The prompt that precedes streamed text.

    `head` contains the prompt tokens up to the end of the prompt. `heard` and `codes` are the
    transcript and the codes of the voice's recording. `most_codes` is the maximum number of draws
    in the utterance.
    """

    voice: Voice
    head: Sequence[int]
    heard: Sequence[int]
    codes: Sequence[int]
    most_codes: int
    least_codes: float


@dataclass(frozen=True, slots=True)
class MixRatio:
    """The ratio of streamed text to speech. There are `codes` codes for every `text` text
    tokens.
    """

    text: int
    codes: int


class InterleavedText:
    """The text received so far, and the turns that have been created from it.

    `context_limit` is the maximum number of positions.
    """

    def __init__(self, opening: Opening, mix: MixRatio, context_limit: int) -> None:
        self.voice = opening.voice
        self._mix = mix
        self._most_codes, self._context_limit = opening.most_codes, context_limit
        self._least_codes = opening.least_codes
        # `_come` contains tokens that have arrived but have not been processed. `_text` and
        # `_codes` contain processed tokens that are not part of a row yet.
        self._come: deque[int] = deque()
        self._text = deque(opening.heard)
        self._codes = deque(opening.codes)
        self._rows: list[Row] = [(SOS, True), *_words(opening.head)]
        # The rows of the vendor's last forward pass. They are repeated before the remaining text.
        self._again: list[Row] = []
        self._first_draws = mix.codes - len(opening.codes) % mix.codes
        self._begun = self._finished = False
        self._ids = self._forced = 0

    def add(self, ids: Sequence[int], *, last: bool) -> None:
        """Add text tokens. `last` is true if the text is complete."""
        self._come += ids
        self._ids += len(ids)
        self._finished = last

    def next_turn(self, before: UtterancePrompt | None, drawn: int) -> UtterancePrompt | None:
        """Return the turn after `before`, or None if there is not enough text.

        `drawn` is the total number of draws so far. If the turn has no draws, there are no
        positions left.
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
        """End a turn. `code` is the last code of the turn, or None if it has none.

        If the end was `forced`, the code has not been appended yet.
        """
        if code is not None:
            self._again = [(code, True)]
        self._rows = list(self._again) if forced else []
        self._forced += forced

    def _turn(
        self, before: UtterancePrompt | None, drawn: int, draws: int, *, last: bool = False
    ) -> UtterancePrompt:
        """Create a turn from the current `_rows`."""
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
