"""Stores the texts of spoken answers, so that later turns can refer to an answer by its ID
(OpenAI's `audio: {id}`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

OVERHEAD_BYTES = 256
"""The overhead of an entry in bytes, in addition to its transcript."""


class SpokenAnswers:
    """The transcripts of spoken answers, by audio ID.

    If there is no room for an answer, it isn't stored. This ensures that no other answer expires
    earlier than `keep` has promised. Transcripts are kept in memory, so they are lost when the
    process ends.
    """

    def __init__(
        self, keep_s: float, limit_bytes: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._keep_s = int(keep_s)
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._held_bytes = 0
        # All transcripts are kept for the same time, so they expire in the order in which they were
        # added.
        self._kept: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def keep(self, audio_id: str, transcript: str) -> int:
        """Store an answer's transcript, and return when it expires, as a Unix time in seconds. If
        it can't be stored, this is the current time.
        """
        now = int(self._clock())
        self._forget_expired(now)
        size = _size_bytes(transcript)
        if not transcript or self._held_bytes + size > self._limit_bytes:
            return now
        self._held_bytes += size
        self._kept[audio_id] = (now + self._keep_s, transcript)
        return now + self._keep_s

    def transcript(self, audio_id: str) -> str:
        """Return an answer's text. If it has expired or is unknown, returns an empty string."""
        self._forget_expired(int(self._clock()))
        _, transcript = self._kept.get(audio_id, (0, ""))
        return transcript

    def _forget_expired(self, now: int) -> None:
        while self._kept:
            audio_id, (expires_at, transcript) = next(iter(self._kept.items()))
            if now < expires_at:
                return
            del self._kept[audio_id]
            self._held_bytes -= _size_bytes(transcript)


def _size_bytes(transcript: str) -> int:
    return OVERHEAD_BYTES + len(transcript.encode(errors="surrogatepass"))
