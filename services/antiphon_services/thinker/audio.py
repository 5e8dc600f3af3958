"""Converts recordings to mel features, exactly like the families' own processors.

Some processors pad all recordings of a conversation to the length of the longest one. The padding
then affects the last frames of the shorter recordings, so all recordings must be passed to the
feature extractor in a single call. Other processors pad each recording to the maximum length with
silence, most of which is too far away to affect any frame. In this case, each recording is
processed separately, with only as much silence as the last frames can reach.
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
"""A recording, either as samples or as features from the cache."""

KNOWN_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class AudioFeatures:
    """The mel features of A recordings. The longest recording has F frames.

    `features` is float32 [mel bins, all real frames]. The recordings are concatenated, because
    padding would multiply the size of short recordings. `mask` (int32 [A, F]) is 1 for real frames.
    `positions` contains the number of prompt positions that each recording takes. `digests`
    contains a negative 64-bit number for each recording. If two recordings have the same digest,
    their encodings are equal.

    The tower pads its chunks to `padded` frames. If every recording is shorter than this, a silent
    recording that takes no positions is added at the front.
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
        """Combine the features of several recordings, each with shape [mel bins, frames]."""
        if all(each.shape[1] < padded for each in features):
            features = [np.zeros((len(features[0]), padded), np.float32), *features]
        frames = [each.shape[1] for each in features]
        mask = (np.arange(max(frames)) < np.array(frames)[:, None]).astype(np.int32)
        return cls(np.concatenate(features, axis=1), mask, positions, digests, padded)

    def each(self) -> list[Float32]:
        """Return the features of each recording as a separate array [mel bins, frames]."""
        ends = np.cumsum(self.mask.sum(-1))
        return np.split(self.features, ends[:-1], axis=1)[-len(self.positions) :]

    def behind(self, count: int) -> AudioFeatures:
        """Return the recordings without the first `count`. They are encoded as if the removed
        recordings were still present.
        """
        if not count:
            return self
        left = self.each()[count:]
        return self.of(left, self.positions[count:], self.digests[count:], self.padded)


class AudioWindow:
    """A piece of audio that the tower encodes independently: a window of a recording or, if the
    tower has no windows, the whole recording.

    `features` is float32 [mel bins, frames], and its encoding takes `positions` positions. The
    tower pads its chunks to `padded` frames.
    """

    __slots__ = ("_name", "features", "padded", "positions")

    def __init__(self, features: Float32, padded: int, positions: int) -> None:
        self.features = features
        self.padded = padded
        self.positions = positions
        self._name = ""

    @property
    def is_named(self) -> bool:
        """Whether `name` has already been computed."""
        return bool(self._name)

    @property
    def name(self) -> str:
        """A name for the encoding, which is computed on first access. Two encodings have the same
        name if and only if they are equal.
        """
        if not self._name:
            content = hashlib.blake2b(self.padded.to_bytes(8, "little"), digest_size=16)
            content.update(np.ascontiguousarray(self.features).data)
            self._name = content.hexdigest()
        return self._name


@dataclass(frozen=True, slots=True)
class AudioTower:
    """How a family's audio tower processes features.

    `positions` returns the number of positions for a given number of mel frames. Recordings of up
    to `shared_frames` frames are padded to the longest one among them, so their encodings depend on
    its length. If `shared_frames` is 0, recordings are independent, and each is followed by
    silence. Complete windows of `window_frames` frames are encoded independently. If
    `window_frames` is 0, the tower has no windows.
    """

    positions: Callable[[int], int]
    shared_frames: int = 0
    window_frames: int = 0


class AudioFrontEnd:
    """A checkpoint's feature extractor, with limits on its input."""

    def __init__(
        self,
        extractor: WhisperFeatureExtractor,
        tower: AudioTower,
        *,
        max_audio_s: float,
        known_bytes: int = KNOWN_BYTES,
    ) -> None:
        """Create the front end. `max_audio_s` limits the length of a recording in seconds, and
        `known_bytes` limits the size of the feature cache.
        """
        self.sample_rate_hz: int = extractor.sampling_rate
        self.max_audio_s = max_audio_s
        self._extractor = extractor
        self._tower = tower
        self.known = KnownRecordings(known_bytes)

    def recall(self, recordings: Sequence[Tensor]) -> list[Heard]:
        """Return the recordings, with each key replaced by the recording in the cache.

        Raises `NotFound` with the field name if a recording is no longer in the cache.
        """
        return [
            self.known.named(each.tobytes(), f"audio.{index}") if is_recording_key(each) else each
            for index, each in enumerate(recordings)
        ]

    def lengths(self, recordings: Sequence[Tensor]) -> list[int]:
        """Return the number of samples in each recording, or 0 for a key that is no longer in the
        cache.
        """
        lengths = []
        for each in recordings:
            heard = self.known.get(each.tobytes()) if is_recording_key(each) else each
            lengths.append(0 if heard is None else len(heard))
        return lengths

    @property
    def listens(self) -> bool:
        """Whether a recording can be processed window by window while the user is still
        speaking.
        """
        return self._tower.window_frames > 0 and not self._extractor.dither

    def growing(self) -> GrowingFeatures:
        """Return features that grow along with a recording in progress. They are computed in the
        same way as with `alone`.
        """
        tower = self._tower
        silent_end = not tower.shared_frames
        return GrowingFeatures(self._extractor, tower.window_frames, silent_end=silent_end)

    def windows(self, audio: AudioFeatures | None) -> list[list[AudioWindow]]:
        """Return the pieces of each recording that are encoded independently."""
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
        """Return the maximum number of windows if `recordings` recordings take a total of
        `positions` positions.
        """
        size = self._tower.window_frames
        return recordings + (positions // self._tower.positions(size) if size else 0)

    def positions_of(self, frames: int) -> int:
        """Return the number of positions for a given number of frames in the tower."""
        return self._tower.positions(frames)

    def how_encoded(self, frames: Iterable[int], *, company: bool) -> bytes:
        """Return a value that represents the conditions under which recordings of these lengths are
        encoded. Recordings with the same content and the same value have the same encoding.

        A tower may pad its chunks to the longest chunk and may choose the size of its attention
        windows based on it. If so, the encoding of a short recording depends on the longest
        recording in the conversation.
        """
        shared = self._tower.shared_frames
        longest = shared if company else min(max(frames), shared)
        return longest.to_bytes(8, "little")

    def depends(self, samples: Iterable[int]) -> bool:
        """Return whether the encodings of recordings with these lengths depend on each other's
        length.
        """
        shared = self._tower.shared_frames * self._extractor.hop_length
        return all(0 < each < shared for each in samples) and shared > 0

    def positions(self, recordings: Sequence[Heard], *, alone: bool = False) -> tuple[int, ...]:
        """Return the number of prompt positions for each recording, without extracting features.

        Raises `InvalidArgument` if a recording is too short or too long. The error message names
        the recording.
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
        """Return the features of all recordings (float32 mono at `sample_rate_hz`), or None if
        there are none.

        If `alone` is true, the features of each recording are extracted separately and added to the
        cache. Only recordings in the cache can be sent by key later. If `company` is true, the
        recordings are encoded as if the conversation contained another recording that is long
        enough to make them independent of each other.
        """
        if not recordings:
            return None
        if alone or not self._tower.shared_frames:
            known = [self._known(each, keep=alone) for each in recordings]
            real = [each.made.features() for each in known]
            # With `alone`, the encoding depends only on the samples and on how they are encoded.
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
        """Return a recording whose features were extracted separately. If `keep` is true, it is
        added to the cache.
        """
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
        """Combine the features of several recordings, or of several windows of one recording, for a
        single call to the tower.
        """
        tower = self._tower
        frames = [each.shape[1] for each in features]
        positions = tuple(map(tower.positions, frames))
        padded = min(tower.shared_frames if company else max(frames), tower.shared_frames)
        return AudioFeatures.of(features, positions, digests, padded)

    def _by_itself(self, recording: Float32) -> Float32:
        """Return the features of a single recording. If recordings are independent, it is followed
        by silence.
        """
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
        """Raise an error if a recording doesn't fill the extractor's window or exceeds the length
        limit.
        """
        field = f"audio.{index}"
        shortest = self._extractor.n_fft
        if samples < shortest:
            raise InvalidArgument(
                f"{field}: is too short: {samples} samples; the minimum is {shortest}",
                field=field,
            )
        self.check_longest(index, samples)

    def check_longest(self, index: int, samples: int) -> None:
        """Raise an error if a recording exceeds the length limit."""
        field = f"audio.{index}"
        if samples > self.max_audio_s * self.sample_rate_hz:
            raise InvalidArgument(
                f"{field}: is too long: {samples / self.sample_rate_hz:.1f} s; the maximum is "
                f"{self.max_audio_s:g} s",
                field=field,
            )


def digest(how: bytes, key: bytes) -> int:
    """Return a negative 64-bit number that identifies the recording with this key and its encoding.
    It can't be confused with an ID, because IDs are never negative.
    """
    both = hashlib.blake2b(key, digest_size=8)
    both.update(how)
    return int.from_bytes(both.digest(), "little", signed=True) | -(1 << 63)
