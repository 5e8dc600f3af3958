"""Recordings that the stages of a session were brought, so that they need not be again."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from antiphon.values.chunk import Tensor
from antiphon.values.conversation import is_recording_key
from antiphon_gateway.media.pcm_recording import PcmRecording

MOST = 1024
"""Recordings that are remembered; of others the samples are sent again."""


class RecordingName(NamedTuple):
    """Identifies a recording among those of a session: its path in the order, its size, and its
    number, which differs if another recording has taken its place."""

    field: str
    size_bytes: int
    number: int


def name_of(field: str, recording: PcmRecording) -> RecordingName:
    """The name of a recording, without reading its samples."""
    return RecordingName(field, len(recording.pcm16), recording.number)


class SentRecordings:
    """By a recording's name: the key that its samples have at the stage, and how many there are."""

    def __init__(self) -> None:
        self._sent: OrderedDict[RecordingName, bytes] = OrderedDict()
        self._samples: dict[bytes, int] = {}

    def find(self, name: RecordingName) -> Tensor | None:
        """Return the reference to a recording that the stage already has."""
        if (key := self._sent.get(name)) is None:
            return None
        # What is in use is not what is forgotten next.
        self._sent.move_to_end(name)
        return np.frombuffer(key, np.uint8)

    def note(self, name: RecordingName, key: bytes, samples: int) -> None:
        """A stage gets, or has got, the samples of a recording."""
        self._sent[name] = key
        self._samples[key] = samples
        if len(self._sent) > MOST:
            _, oldest = self._sent.popitem(last=False)
            if oldest not in self._sent.values():
                del self._samples[oldest]

    def length(self, recording: Tensor) -> int:
        """How many samples a recording of a conversation has."""
        if is_recording_key(recording):
            return self._samples[recording.tobytes()]
        return len(recording)
