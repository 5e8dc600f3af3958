"""Converts recordings to mel features, exactly as the families' processors do.

Some processors pad the recordings of a conversation to the longest. Padding then affects the last
frames of shorter ones, so all must go through one call of the feature extractor. Others pad each to
the maximum length. Padding is then silence beyond the reach of a frame, so each recording is
processed separately with only as much silence as a frame reaches.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import WhisperFeatureExtractor

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import is_recording_key, recording_key
from antiphon_services.thinker.growing_features import GrowingFeatures
from antiphon_services.thinker.known_recordings import KnownRecording, KnownRecordings, MadeOnce

Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.int32]
Heard = Float32 | KnownRecording
"""A recording: its samples, or cached features."""

KNOWN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class AudioFeatures:
    """Mel features of A recordings; the longest has F frames.

    `features` is float32 [mel bins, all real frames], concatenated, since padding to F would
    multiply the size of short recordings. `mask` is int32 [A, F] with 1 at real frames. `positions`
    is the number of prompt positions of each recording. Recordings with equal `digests` (negative
    64-bit numbers) are encoded alike. The tower pads its chunks to `padded` frames. If all
    recordings are shorter, a silent recording without positions precedes them.
    """

    features: Float32
    mask: Mask
    positions: tuple[int, ...]
    digests: tuple[int, ...]
    padded: int

    @classmethod
    def of(
        cls,
        features: Sequence[Float32],
        positions: tuple[int, ...],
        digests: tuple[int, ...],
        padded: int,
    ) -> AudioFeatures:
        """Return features of recordings [mel bins, frames]."""
        if all(each.shape[1] < padded for each in features):
            features = [np.zeros((len(features[0]), padded), np.float32), *features]
        frames = [each.shape[1] for each in features]
        mask = (np.arange(max(frames)) < np.array(frames)[:, None]).astype(np.int32)
        return cls(np.concatenate(features, axis=1), mask, positions, digests, padded)

    def each(self) -> list[Float32]:
        """Return the recordings, [mel bins, frames]."""
        ends = np.cumsum(self.mask.sum(-1))
        return np.split(self.features, ends[:-1], axis=1)[-len(self.positions) :]

    def behind(self, count: int) -> AudioFeatures:
        """Return the recordings without the first `count`, to be encoded as if those were
        present."""
        if not count:
            return self
        left = self.each()[count:]
        return self.of(left, self.positions[count:], self.digests[count:], self.padded)


class AudioWindow:
    """A part that the tower encodes independently: a window of a recording, or, without windows,
    all of it.

    `features` are float32 [mel bins, frames] and take `positions`. The tower pads its chunks to
    `padded` frames.
    """

    __slots__ = ("_name", "features", "padded", "positions")

    def __init__(self, features: Float32, padded: int, positions: int) -> None:
        self.features = features
        self.padded = padded
        self.positions = positions
        self._name = ""

    @property
    def is_named(self) -> bool:
        """Whether `name` is already computed."""
        return bool(self._name)

    @property
    def name(self) -> str:
        """Name of the encoding: equal exactly for equal encodings. Computed on first access."""
        if not self._name:
            content = hashlib.blake2b(self.padded.to_bytes(8, "little"), digest_size=16)
            content.update(np.ascontiguousarray(self.features).data)
            self._name = content.hexdigest()
        return self._name


@dataclass(frozen=True, slots=True)
class AudioTower:
    """How a family's audio tower processes features.

    `positions` returns the positions of a number of mel frames. The encoding of recordings up to
    `shared_frames` frames depends on the longest one among them, and all are padded to it; 0 means
    that each is independent, followed by silence. Whole windows of `window_frames` are encoded
    independently; 0 means none.
    """

    positions: Callable[[int], int]
    shared_frames: int = 0
    window_frames: int = 0


class AudioFrontEnd:
    """The checkpoint's feature extractor, with limits on its input."""

    def __init__(
        self,
        extractor: WhisperFeatureExtractor,
        tower: AudioTower,
        *,
        max_audio_s: float,
        known_bytes: int = KNOWN_BYTES,
    ) -> None:
        """`max_audio_s` bounds one recording, `known_bytes` the cached features."""
        self.sample_rate_hz: int = extractor.sampling_rate
        self.max_audio_s = max_audio_s
        self._extractor = extractor
        self._tower = tower
        self.known = KnownRecordings(known_bytes)

    def recall(self, recordings: Sequence[Tensor]) -> list[Heard]:
        """Return the recordings, with keys replaced by cached recordings.

        Raises `NotFound` with the field if one is no longer cached.
        """
        return [
            self.known.named(each.tobytes(), f"audio.{index}") if is_recording_key(each) else each
            for index, each in enumerate(recordings)
        ]

    def lengths(self, recordings: Sequence[Tensor]) -> list[int]:
        """Return the samples of recordings; 0 for a key that is no longer cached."""
        lengths = []
        for each in recordings:
            heard = self.known.get(each.tobytes()) if is_recording_key(each) else each
            lengths.append(0 if heard is None else len(heard))
        return lengths

    @property
    def listens(self) -> bool:
        """Whether a recording can be processed window by window while it is in progress."""
        return self._tower.window_frames > 0 and not self._extractor.dither

    def growing(self) -> GrowingFeatures:
        """Return incremental features of a recording in progress, as if `alone`."""
        tower = self._tower
        silent_end = not tower.shared_frames
        return GrowingFeatures(self._extractor, tower.window_frames, silent_end=silent_end)

    def windows(self, audio: AudioFeatures | None) -> list[list[AudioWindow]]:
        """Return the independently encoded parts of each recording."""
        if audio is None:
            return []
        tower, heard = self._tower, []
        for recording in audio.each():
            length = recording.shape[1]
            cuts = [*range(0, length, tower.window_frames or length), length]
            pieces = [recording[:, at:to] for at, to in itertools.pairwise(cuts)]
            counted = [(each, tower.positions(each.shape[1])) for each in pieces]
            windows = [AudioWindow(each, audio.padded, count) for each, count in counted if count]
            heard.append(windows)
        return heard

    def most_windows(self, recordings: int, positions: int) -> int:
        """Return the most windows of `recordings` recordings that take `positions` in total."""
        size = self._tower.window_frames
        return recordings + (positions // self._tower.positions(size) if size else 0)

    def positions_of(self, frames: int) -> int:
        """Return the tower's positions for a number of frames."""
        return self._tower.positions(frames)

    def how_encoded(self, frames: Iterable[int], *, company: bool) -> bytes:
        """Return what the encoding of recordings of these lengths depends on, besides themselves.

        A tower that pads its chunks to the longest one, and sizes its attention windows
        accordingly, makes short recordings depend on the longest.
        """
        shared = self._tower.shared_frames
        longest = shared if company else min(max(frames), shared)
        return longest.to_bytes(8, "little")

    def depends(self, samples: Iterable[int]) -> bool:
        """Return whether the encoding of recordings of these lengths depends on each other's
        lengths."""
        shared = self._tower.shared_frames * self._extractor.hop_length
        return all(0 < each < shared for each in samples) and shared > 0

    def positions(self, recordings: Sequence[Heard], *, alone: bool = False) -> tuple[int, ...]:
        """Return the prompt positions of each recording, without extracting features.

        Raises `InvalidArgument` with the recording that is too short or too long.
        """
        for index, recording in enumerate(recordings):
            self.check_length(index, len(recording))
        hop = self._extractor.hop_length
        frames = [-(-len(each) // hop) for each in recordings]
        if self._tower.shared_frames and alone:
            frames = [len(each) // hop for each in recordings]
        elif self._tower.shared_frames:
            longest = max((len(each) for each in recordings), default=0) // hop
            frames = [min(each, longest) for each in frames]
        return tuple(self._tower.positions(each) for each in frames)

    def extract(
        self, recordings: Sequence[Heard], *, alone: bool = False, company: bool = False
    ) -> AudioFeatures | None:
        """Return features of all recordings (float32 mono at `sample_rate_hz`); None if there are
        none.

        With `alone` each is extracted separately and cached; only these may be sent by key later.
        With `company` they are encoded as if together with a recording long enough to be
        independent.
        """
        if not recordings:
            return None
        if alone or not self._tower.shared_frames:
            known = [self._known(each, keep=alone) for each in recordings]
            real = [each.made.features() for each in known]
            # With `alone`, the encoding follows from its samples and how it is encoded.
            told = [each.key for each in known]
        else:
            whole = [each for each in recordings if not isinstance(each, KnownRecording)]
            features, mask = self._extract(whole, padding="longest")
            lengths = mask.sum(-1).tolist()
            real = [each[:, :length] for each, length in zip(features, lengths, strict=True)]
            told = [recording_key(each) for each in real]
        how = self.how_encoded([each.shape[1] for each in real], company=company)
        return self.together(real, tuple(digest(how, each) for each in told), company=company)

    def _known(self, recording: Heard, *, keep: bool) -> KnownRecording:
        """Return a recording with its separate features, cached if `keep`."""
        if isinstance(recording, KnownRecording):
            return recording
        key = recording_key(recording)
        known = self.known.get(key) if keep else None
        if known is None:
            made = self._by_itself(recording)
            known = KnownRecording(key, len(recording), made.nbytes, MadeOnce(lambda: made))
            if keep:
                self.known.put(known)
        return known

    def together(
        self, features: Sequence[Float32], digests: tuple[int, ...] = (), *, company: bool = False
    ) -> AudioFeatures:
        """Return features of recordings, or of windows of one, for a single tower call."""
        tower = self._tower
        frames = [each.shape[1] for each in features]
        positions = tuple(map(tower.positions, frames))
        padded = min(tower.shared_frames if company else max(frames), tower.shared_frames)
        return AudioFeatures.of(features, positions, digests, padded)

    def _by_itself(self, recording: Float32) -> Float32:
        """Return features of a recording followed by nothing, or by silence."""
        if self._tower.shared_frames:
            made, _ = self._extract([recording], padding="longest")
            whole: Float32 = made[0]
            return whole
        hop = self._extractor.hop_length
        count = -(-len(recording) // hop)
        size = (count - (-self._extractor.n_fft // hop)) * hop
        made, _ = self._extract([recording], padding="max_length", max_length=size)
        heard: Float32 = made[0, :, :count]
        return heard

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

    def check_length(self, index: int, samples: int) -> None:
        """Raise unless a recording fills the extractor's window and is within the limit."""
        field = f"audio.{index}"
        shortest = self._extractor.n_fft
        if samples < shortest:
            raise InvalidArgument(
                f"{field}: too short: {samples} samples, at least {shortest} are needed",
                field=field,
            )
        self.check_longest(index, samples)

    def check_longest(self, index: int, samples: int) -> None:
        """Raise for a recording longer than the limit."""
        field = f"audio.{index}"
        if samples > self.max_audio_s * self.sample_rate_hz:
            raise InvalidArgument(
                f"{field}: too long: {samples / self.sample_rate_hz:.1f} s, "
                f"at most {self.max_audio_s:g} s are allowed",
                field=field,
            )


def digest(how: bytes, key: bytes) -> int:
    """Return a negative 64-bit number, unlike any id, for a recording's key and its encoding."""
    both = hashlib.blake2b(key, digest_size=8)
    both.update(how)
    return int.from_bytes(both.digest(), "little", signed=True) | -(1 << 63)
