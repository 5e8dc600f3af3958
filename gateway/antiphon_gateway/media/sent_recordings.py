"""Tracks the recordings that the stages of a session have received, so that they need not be sent
again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from antiphon.values.chunk import Tensor
from antiphon.values.conversation import is_recording_key
from antiphon_gateway.media.pcm_recording import PcmRecording

MOST = 1024
"""The maximum number of recordings that are remembered. The samples of all others are sent
again.
"""


class RecordingName(NamedTuple):
    """Identifies a recording among those of a session by its path in the order, its size and its
    number. The number differs if another recording has replaced it.
    """

    field: str
    size_bytes: int
    number: int


def name_of(field: str, recording: PcmRecording) -> RecordingName:
    """Return the name of a recording without reading its samples."""
    return RecordingName(field, len(recording.pcm16), recording.number)


class SentRecordings:
    """Maps the name of a recording to the key of its samples at the stage and to their number."""

    def __init__(self) -> None:
        self._sent: OrderedDict[RecordingName, bytes] = OrderedDict()
        self._samples: dict[bytes, int] = {}

    def find(self, name: RecordingName) -> Tensor | None:
        """Return the reference to a recording that the stage already has, or None."""
        if (key := self._sent.get(name)) is None:
            return None
        # Recordings that are in use must not be the next ones to be forgotten.
        self._sent.move_to_end(name)
        return np.frombuffer(key, np.uint8)

    def note(self, name: RecordingName, key: bytes, samples: int) -> None:
        """Record that a stage receives, or has received, the samples of a recording."""
        self._sent[name] = key
        self._samples[key] = samples
        if len(self._sent) > MOST:
            _, oldest = self._sent.popitem(last=False)
            if oldest not in self._sent.values():
                del self._samples[oldest]

    def length(self, recording: Tensor) -> int:
        """Return the number of samples of a recording in a conversation."""
        if is_recording_key(recording):
            return self._samples[recording.tobytes()]
        return len(recording)
