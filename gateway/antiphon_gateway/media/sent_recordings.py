"""Tracks which recordings the stages of a session have already received, so that they don't have to
be sent again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from antiphon.values.chunk import Tensor
from antiphon.values.conversation import is_recording_key
from antiphon_gateway.media.pcm_recording import PcmRecording

MOST = 1024
"""The maximum number of recordings that are remembered. All other recordings are sent again."""


class RecordingName(NamedTuple):
    """Identifies a recording in a session by its path in the order, its size and its number. If the
    recording is replaced by another one, the number changes.
    """

    field: str
    size_bytes: int
    number: int


def name_of(field: str, recording: PcmRecording) -> RecordingName:
    """Return a recording's name. This doesn't read its samples."""
    return RecordingName(field, len(recording.pcm16), recording.number)


class SentRecordings:
    """Maps the name of each recording to the key that its samples have at the stage and to their
    number.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[RecordingName, bytes] = OrderedDict()
        self._samples: dict[bytes, int] = {}

    def find(self, name: RecordingName) -> Tensor | None:
        """Return a reference to a recording that the stage already has. Returns None if the stage
        doesn't have it.
        """
        if (key := self._sent.get(name)) is None:
            return None
        # Move recordings that are in use to the end, so that they aren't forgotten next.
        self._sent.move_to_end(name)
        return np.frombuffer(key, np.uint8)

    def note(self, name: RecordingName, key: bytes, samples: int) -> None:
        """Record that a stage is receiving or has received the samples of a recording."""
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
