"""Recordings to mel features, exactly as the families' processors make them.

Where a family's processor pads the recordings of a conversation to the longest, the padding
reaches into the last frames of the shorter ones, and all must go through one call of the feature
extractor. Where it pads each to the longest that there may be, the padding is silence beyond the
reach of a frame, and each goes through alone, with no more of it than that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import WhisperFeatureExtractor

from antiphon.errors import InvalidArgument

Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AudioFeatures:
    """Mel features of A recordings, of which the longest has F frames.

    `features` is float32 [mel bins, all real frames], one recording behind the other: padded to
    F each, a long recording would multiply the size of the short ones beside it. `mask` is
    int32 [A, F] with 1 at real frames, `positions` how many prompt positions each recording
    takes. Recordings with equal `digests` (negative numbers of 64 bits) are encoded alike.
    """

    features: Float32
    mask: Mask
    positions: tuple[int, ...]
    digests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AudioTower:
    """How a family's audio tower takes features.

    It makes `positions` of a number of mel frames. Recordings of up to `shared_frames` frames are
    encoded by the longest one beside them, and all are padded to the longest; 0: each is by
    itself.
    """

    positions: Callable[[int], int]
    shared_frames: int = 0


class AudioFrontEnd:
    """The checkpoint's feature extractor and the limits on what it is given."""

    def __init__(
        self, extractor: WhisperFeatureExtractor, tower: AudioTower, *, max_audio_s: float
    ) -> None:
        """`max_audio_s` bounds one recording."""
        self.sample_rate_hz: int = extractor.sampling_rate
        self.max_audio_s = max_audio_s
        self._extractor = extractor
        self._tower = tower

    def positions(self, recordings: Sequence[Float32]) -> tuple[int, ...]:
        """Prompt positions that each recording will take, found without extracting.

        Raises `InvalidArgument` naming the recording that is too short or too long.
        """
        for index, recording in enumerate(recordings):
            self._check_length(index, len(recording))
        hop = self._extractor.hop_length
        frames = [-(-len(each) // hop) for each in recordings]
        if self._tower.shared_frames:
            longest = max((len(each) for each in recordings), default=0) // hop
            frames = [min(each, longest) for each in frames]
        return tuple(self._tower.positions(each) for each in frames)

    def extract(self, recordings: Sequence[Float32]) -> AudioFeatures | None:
        """Features of all recordings (float32 mono at `sample_rate_hz`); None for none."""
        if not recordings:
            return None
        together = self._tower.shared_frames > 0
        features, mask = self._together(recordings) if together else self._alone(recordings)
        lengths: list[int] = mask.sum(-1).tolist()
        real = [each[:, :length] for each, length in zip(features, lengths, strict=True)]
        return AudioFeatures(
            np.concatenate(real, axis=1),
            mask,
            tuple(map(self._tower.positions, lengths)),
            self._digests(real, mask),
        )

    def _together(self, recordings: Sequence[Float32]) -> tuple[Sequence[Float32], Mask]:
        """Features of each, and the mask, of recordings that are padded to the longest."""
        features, mask = self._extract(recordings, padding="longest")
        return list(features), mask

    def _alone(self, recordings: Sequence[Float32]) -> tuple[Sequence[Float32], Mask]:
        """Features of each, and the mask, of recordings each of which has silence behind it."""
        hop = self._extractor.hop_length
        silence = -(-self._extractor.n_fft // hop)
        frames = [-(-len(each) // hop) for each in recordings]
        features = []
        mask = np.zeros((len(recordings), max(frames)), np.int32)
        for at, (recording, count) in enumerate(zip(recordings, frames, strict=True)):
            size = (count + silence) * hop
            made, _ = self._extract([recording], padding="max_length", max_length=size)
            features.append(made[0, :, :count])
            mask[at, :count] = 1
        return features, mask

    def _extract(self, recordings: Sequence[Float32], **padding: Any) -> tuple[Float32, Mask]:
        batch: Mapping[str, Any] = self._extractor(
            list(recordings),
            sampling_rate=self.sample_rate_hz,
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
            **padding,
        )
        return batch["input_features"], batch["attention_mask"]

    def _digests(self, features: Sequence[Float32], mask: Mask) -> tuple[int, ...]:
        """A number for each recording, of all that its encoding depends on.

        A tower that pads its chunks to the longest one, and sizes its attention windows by that,
        makes recordings that are all short depend on the longest.
        """
        longest = min(int(mask.sum(-1).max()), self._tower.shared_frames)
        return tuple(
            digest(longest.to_bytes(8, "little"), each[:, :length])
            for each, length in zip(features, mask.sum(-1).tolist(), strict=True)
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
        if samples > self.max_audio_s * self.sample_rate_hz:
            raise InvalidArgument(
                f"{field}: too long: {samples / self.sample_rate_hz:.1f} s, "
                f"at most {self.max_audio_s:g} s are allowed",
                field=field,
            )


def digest(how: bytes, values: npt.NDArray[np.float32]) -> int:
    """A negative number of 64 bits, as no id is, of values and how they are encoded."""
    heard = how + np.ascontiguousarray(values).tobytes()
    made = hashlib.blake2b(heard, digest_size=8).digest()
    return int.from_bytes(made, "little", signed=True) | -(1 << 63)
