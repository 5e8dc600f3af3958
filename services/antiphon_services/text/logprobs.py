"""Log probabilities of a reply's ids, held until the text shows them.

Invariant: an id has an entry if and only if the answer's text shows at least the beginning of its
own. Stop ids, other special ids and ids cut off by a stop string have none. An entry is released
with the character in which the id begins, in the order of ids. So the entries' bytes, concatenated
and decoded, are the text, or begin with it if a stop string cut inside an id.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from antiphon.values.logprobs import TokenLogprob
from antiphon_services.text.detokenizer import Vocabulary


class ReplyLogprobs:
    """The entries of one reply. Created only for a segment that requests them."""

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """`top` is the number of most likely ids per entry."""
        self.top = top
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0
        self._released = 0
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def push(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add the next sampled id and the most likely ones in its place, with their log
        probabilities."""
        data = self._vocabulary.token_bytes(ids[0])
        if not data:
            return
        start = self._begin(data)
        names = map(self._vocabulary.print_bytes, ids[1:])
        top = tuple(map(TokenLogprob, ids[1:], names, logprobs[1:]))
        self._held.append((start, TokenLogprob(ids[0], data, logprobs[0], top)))

    def release(self, text: str) -> list[TokenLogprob]:
        """Return the entries released with the next piece of text."""
        self._released += len(text)
        due: list[TokenLogprob] = []
        while self._held and self._held[0][0] < self._released:
            due.append(self._held.popleft()[1])
        return due

    def _begin(self, data: bytes) -> int:
        """Consume the bytes and return the offset of the character that contains the first one."""
        self._end += len(self._decoder.decode(data[:1]))
        unfinished = bool(self._decoder.getstate()[0])
        start = self._end if unfinished else self._end - 1
        self._end += len(self._decoder.decode(data[1:]))
        return start
