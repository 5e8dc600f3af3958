"""How likely the ids of one reply were, held until its text shows them.

Law: an id has an entry if and only if the answer's text shows at least the beginning of
its own: not a stop id nor any other special one, and nothing that a stop string cut off.
An entry leaves with the character that the id begins in, and entries leave in the order
of the ids. So the entries' bytes, joined and decoded, are the text, or begin with it
where a stop string has cut inside an id.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from antiphon.values.logprobs import TokenLogprob
from antiphon_services.text.detokenizer import Vocabulary


class ReplyLogprobs:
    """The entries of one reply. Made only for a segment that asks."""

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """`top` likeliest ids are wanted beside each."""
        self.top = top
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = 0
        self._released = 0
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def push(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """The next sampled id, then the likeliest ones in its place, with how likely they are."""
        data = self._vocabulary.token_bytes(ids[0])
        if not data:
            return
        start = self._begin(data)
        names = map(self._vocabulary.print_bytes, ids[1:])
        top = tuple(map(TokenLogprob, ids[1:], names, logprobs[1:]))
        self._held.append((start, TokenLogprob(ids[0], data, logprobs[0], top)))

    def release(self, text: str) -> list[TokenLogprob]:
        """The entries that leave with the next piece of the reply's text."""
        self._released += len(text)
        due: list[TokenLogprob] = []
        while self._held and self._held[0][0] < self._released:
            due.append(self._held.popleft()[1])
        return due

    def _begin(self, data: bytes) -> int:
        """The offset of the character that has the first of these bytes; takes them all."""
        self._end += len(self._decoder.decode(data[:1]))
        unfinished = bool(self._decoder.getstate()[0])
        start = self._end if unfinished else self._end - 1
        self._end += len(self._decoder.decode(data[1:]))
        return start
