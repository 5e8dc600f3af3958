"""The log probabilities of the IDs in a reply. They are held back until the text of the IDs is
shown.

Invariant: an ID has an entry if and only if the text of the answer contains at least the beginning
of its text. Stop IDs, other special IDs and IDs that a stop string removed have no entry. An entry
is released together with the character in which the text of the ID begins, in the order of IDs. If
the bytes of all entries are concatenated and decoded, they are equal to the text. If a stop string
ended within an ID, they begin with the text.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from antiphon.values.logprobs import TokenLogprob
from antiphon_services.text.detokenizer import Vocabulary


class ReplyLogprobs:
    """The entries of one reply. This object is only created if a segment requests log
    probabilities.
    """

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """Create the entries. `top` is the number of most likely IDs in each entry."""
        self.top = top
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0
        self._released = 0
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def push(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add the next sampled ID and the most likely IDs at its position, with their log
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
        """Return the entries that are released together with the next piece of text."""
        self._released += len(text)
        due: list[TokenLogprob] = []
        while self._held and self._held[0][0] < self._released:
            due.append(self._held.popleft()[1])
        return due

    def _begin(self, data: bytes) -> int:
        """Consume the bytes and return the offset of the character that contains the first byte."""
        self._end += len(self._decoder.decode(data[:1]))
        unfinished = bool(self._decoder.getstate()[0])
        start = self._end if unfinished else self._end - 1
        self._end += len(self._decoder.decode(data[1:]))
        return start
