"""The log probabilities of a reply's IDs. They are held back until the text of the IDs is shown.

An ID has an entry if and only if at least the beginning of its text is part of the answer. There
are no entries for stop IDs, other special IDs, and IDs removed because of a stop string. Entries
are released in the order of IDs, each together with the character in which the ID's text begins.
Concatenating and decoding the bytes of all entries gives the answer's text or, if a stop string
ended in the middle of an ID, a text that begins with it.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from antiphon.values.logprobs import TokenLogprob
from antiphon_services.text.detokenizer import Vocabulary


class ReplyLogprobs:
    """The entries of a reply. This object only exists if the client requests log probabilities."""

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """Create an empty list of entries. `top` is the number of most likely IDs in each entry."""
        self.top = top
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0
        self._released = 0
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def push(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add the next sampled ID, and the most likely IDs at its position, with their log
        probabilities.
        """
        data = self._vocabulary.token_bytes(ids[0])
        if not data:
            return
        start = self._begin(data)
        names = map(self._vocabulary.print_bytes, ids[1:])
        top = tuple(map(TokenLogprob, ids[1:], names, logprobs[1:]))
        self._held.append((start, TokenLogprob(ids[0], data, logprobs[0], top)))

    def release(self, text: str) -> list[TokenLogprob]:
        """Return the entries to release together with the next piece of text."""
        self._released += len(text)
        due: list[TokenLogprob] = []
        while self._held and self._held[0][0] < self._released:
            due.append(self._held.popleft()[1])
        return due

    def _begin(self, data: bytes) -> int:
        """Consume bytes and return the offset of the character that contains the first of them."""
        self._end += len(self._decoder.decode(data[:1]))
        unfinished = bool(self._decoder.getstate()[0])
        start = self._end if unfinished else self._end - 1
        self._end += len(self._decoder.decode(data[1:]))
        return start
