"""Recordings to mel features, exactly as `Qwen3OmniMoeProcessor` makes them.

All recordings of a conversation go through one call of the feature extractor, for
they are padded to the longest: the padding reaches into the last frames of the
shorter ones, so extracting them one by one would give other features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import WhisperFeatureExtractor

from antiphon.errors import InvalidArgument

POSITIONS_PER_CHUNK = 13

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AudioFeatures:
    """Mel features of A recordings, padded to F frames.

    `features` is float32 [A, mel bins, F], `mask` int32 [A, F] with 1 at real
    frames, `positions` how many prompt positions each recording takes. Recordings
    with equal `digests` (negative numbers of 64 bits) are encoded alike.
    """

    features: Float32
    mask: npt.NDArray[np.int32]
    positions: tuple[int, ...]
    digests: tuple[int, ...]


class AudioFrontEnd:
    """The checkpoint's feature extractor and the limits on what it is given."""

    def __init__(
        self, extractor: WhisperFeatureExtractor, *, n_window: int, max_audio_s: float
    ) -> None:
        """`n_window` is the audio encoder's; `max_audio_s` bounds one recording."""
        self.sample_rate_hz: int = extractor.sampling_rate
        self._extractor = extractor
        self._n_window = n_window
        self._max_audio_s = max_audio_s

    def positions(self, recordings: Sequence[Float32]) -> tuple[int, ...]:
        """Prompt positions that each recording will take, found without extracting.

        Raises `InvalidArgument` naming the recording that is too short or too long.
        """
        for index, recording in enumerate(recordings):
            self._check_length(index, len(recording))
        hop = self._extractor.hop_length
        longest = max((len(each) for each in recordings), default=0) // hop
        frames = (min(-(-len(each) // hop), longest) for each in recordings)
        return tuple(encoder_positions(each, self._n_window) for each in frames)

    def extract(self, recordings: Sequence[Float32]) -> AudioFeatures | None:
        """Features of all recordings (float32 mono at `sample_rate_hz`); None for none."""
        if not recordings:
            return None
        batch: Mapping[str, Any] = self._extractor(
            list(recordings),
            sampling_rate=self.sample_rate_hz,
            padding="longest",
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
        )
        mask = batch["attention_mask"]
        frames = mask.sum(-1).tolist()
        positions = tuple(encoder_positions(each, self._n_window) for each in frames)
        features = batch["input_features"]
        return AudioFeatures(features, mask, positions, self._digests(features, mask))

    def _digests(self, features: Float32, mask: npt.NDArray[np.int32]) -> tuple[int, ...]:
        """A number for each recording, of all that its encoding depends on.

        The audio tower pads its chunks to the longest one, and sizes its attention
        windows by that: so recordings that are all short depend on the longest.
        """
        longest = min(int(mask.sum(-1).max()), 2 * self._n_window)
        return tuple(
            _digest(longest, each[:, present.astype(bool)])
            for each, present in zip(features, mask, strict=True)
        )

    def _check_length(self, index: int, samples: int) -> None:
        """Raise unless a recording fills the extractor's window and keeps the limit."""
        field = f"audio.{index}"
        shortest = self._extractor.n_fft
        if samples < shortest:
            raise InvalidArgument(
                f"{field}: too short: {samples} samples, at least {shortest} are needed",
                field=field,
            )
        if samples > self._max_audio_s * self.sample_rate_hz:
            raise InvalidArgument(
                f"{field}: too long: {samples / self.sample_rate_hz:.1f} s, "
                f"at most {self._max_audio_s:g} s are allowed",
                field=field,
            )


def _digest(longest: int, features: Float32) -> int:
    """A negative number of 64 bits."""
    heard = longest.to_bytes(8, "little") + np.ascontiguousarray(features).tobytes()
    digest = hashlib.blake2b(heard, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) | -(1 << 63)


def encoder_positions(frames: int, n_window: int) -> int:
    """Positions that the audio encoder makes of mel frames.

    Mirrors `_get_feat_extract_output_lengths`: 13 for each whole chunk of
    `2 * n_window` frames, and the rest halved three times, rounding up.
    """
    chunks, rest = divmod(frames, 2 * n_window)
    for _ in range(3):
        rest = (rest + 1) // 2
    return POSITIONS_PER_CHUNK * chunks + rest
