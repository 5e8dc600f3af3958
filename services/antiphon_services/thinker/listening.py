"""Handles the input of a live segment, which is a conversation whose last recording is still in
progress.

The prompt grows by complete windows of the audio tower, and each stage of its growth is reported as
a `HeardPrompt`. The first one contains the conversation up to the recording. The last one contains
the remainder of the recording and everything after it. IDs never change once they have been
reported. However, if a louder frame arrives, the features of earlier windows may change, and
everything from the first changed window onwards has to be computed again.

`LiveInput` stores the input received so far and is used on the engine's thread. `Listener` computes
features on the threads that prepare prompts. There is at most one such job per segment at a time.
If a recording ends before its first job has started, or if the tower has no windows, the recording
is prepared as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import RecordingKey, from_tensors
from antiphon_services.thinker.audio import AudioFeatures, digest
from antiphon_services.thinker.known_recordings import KnownRecording, MadeOnce
from antiphon_services.thinker.prompt import PreparedPrompt, PromptFactory

Float32 = npt.NDArray[np.float32]

UNKNOWN = -1
"""The content of positions whose recording is incomplete. It never compares equal to other
content.
"""


@dataclass(frozen=True, slots=True)
class HeardPrompt:
    """The part of a prompt that is known so far. The recording begins at position `start`.

    Positions before `kept` haven't changed since the previous report. `windows` contains the
    features from the first changed position onwards, each with its first position. Once the prompt
    is no longer `is_open`, `digest` is the content of the recording's positions.
    """

    prompt: PreparedPrompt
    start: int
    kept: int
    windows: tuple[tuple[int, AudioFeatures], ...]
    digest: int = UNKNOWN
    is_open: bool = True


class Listener:
    """Prepares a prompt from a conversation, including its last recording while it is still in
    progress.
    """

    def __init__(self, prompts: PromptFactory, tensors: Mapping[str, Tensor], speaks: bool) -> None:
        self._prompts = prompts
        self._tensors = tensors
        self._speaks = speaks
        self._features = prompts.audio.growing()
        # This depends only on constants, so it can be called on any thread.
        self.samples_for = self._features.samples_for
        self._key = RecordingKey()
        self._head: PreparedPrompt | None = None
        self._start = self._recordings = 0

    def hear(self, samples: Float32, *, last: bool) -> HeardPrompt:
        """Return what the conversation and the next samples add to the prompt. Set `last` if no
        more samples follow.

        Raises `InvalidArgument` if the input is invalid or the conversation doesn't end with a live
        recording.
        """
        is_first = self._head is None
        head = self._head = self._head or self._begin()
        self._key.add(samples)
        prompts, start, features = self._prompts, self._start, self._features
        other = features.hear(samples)
        if last:
            prompts.audio.check_length(self._recordings, self._key.samples)
            other = min(other, features.finish())
        company = self._recordings > 0 or not prompts.audio.depends([self._key.samples])
        begins = start + np.cumsum([0, *map(prompts.audio.positions_of, features.lengths)])
        windows = tuple(
            (int(begins[index]), prompts.audio.together([features.window(index)], company=company))
            for index in range(other, features.count)
            if begins[index] < begins[index + 1]
        )
        heard = int(begins[-1]) - start
        ids = [head.ids[:start], np.full(heard, prompts.special.audio, np.int32)]
        if last:
            ids.append(head.ids[start + 1 :])
        begun = head.begun if last else 0
        prompt = replace(head, ids=np.concatenate(ids), listened=heard, begun=begun)
        prompts.check_room(prompt.ids)
        kept = 0 if is_first else int(begins[other])
        if not last:
            return HeardPrompt(prompt, start, kept, windows)
        how = prompts.audio.how_encoded([sum(features.lengths)], company=company)
        self._remember()
        return HeardPrompt(prompt, start, kept, windows, digest(how, self._key.key), is_open=False)

    def _remember(self) -> None:
        """Add the recording to the cache, so that the client can send it by key."""
        features = self._features
        size = sum(features.lengths) * features.bins * np.dtype(np.float32).itemsize

        def make() -> Float32:
            return np.concatenate([features.window(at) for at in range(features.count)], axis=1)

        known = KnownRecording(self._key.key, self._key.samples, size, MadeOnce(make))
        self._prompts.audio.known.put(known)

    def _begin(self) -> PreparedPrompt:
        """Return the prompt, in which the recording in progress takes a single position."""
        conversation = from_tensors(self._tensors, live=True)
        self._tensors = {}
        head = self._prompts.prepare(conversation, speaks=self._speaks, open_end=True)
        self._start = int(np.flatnonzero(head.ids == self._prompts.special.audio)[-1])
        self._recordings = len(conversation.recordings)
        return head


Job = Callable[[], "PreparedPrompt | HeardPrompt"]


class LiveInput:
    """The input received for a live segment, which determines the part that can be prepared
    next.
    """

    def __init__(self, prompts: PromptFactory, *, speaks: bool) -> None:
        self.finished = False
        self._opened = False
        self._prompts = prompts
        # If this is false, nothing is prepared until the whole input has been received.
        self._listens = prompts.audio.listens
        self._speaks = speaks
        self._tensors: Mapping[str, Tensor] = {}
        self._index = 0
        self._pieces: list[Float32] = []
        self._samples = 0
        self._listener: Listener | None = None
        self._windows = 0
        self._ended = False

    def take(self, tensors: Mapping[str, Tensor], *, last: bool) -> None:
        """Add a chunk's tensors. The first chunk contains the conversation, and all later chunks
        contain samples.

        Raises `InvalidArgument` if the chunk contains anything else, if there are too many samples,
        or if a sample is NaN.
        """
        rest = {name: each for name, each in tensors.items() if name != "samples"}
        if tensors and bool(rest) == self._opened:
            raise InvalidArgument(
                "input: the conversation must only be sent in the first chunk; later chunks "
                "contain samples of its last recording",
                field="messages",
            )
        if rest:
            self._opened = True
            self._tensors = rest
            self._index = sum(name.startswith("audio.") for name in rest)
            # If a prompt contains images or videos, its layout isn't known until the prompt is
            # complete.
            self._listens &= not any(name.startswith(("image.", "video.")) for name in rest)
        if len(samples := tensors.get("samples", np.empty(0, np.float32))):
            self._hear(samples)
        self.finished = self.finished or last

    def _hear(self, samples: Float32) -> None:
        field, audio = f"audio.{self._index}", self._prompts.audio
        self._samples += len(samples)
        audio.check_longest(self._index, self._samples)
        if not np.isfinite(samples).all():
            raise InvalidArgument(f"{field}: contains NaN or infinity", field=field)
        # Copy the samples, because the chunk's bytes may be part of a larger buffer that belongs to
        # the transport.
        self._pieces.append(np.array(samples))

    @property
    def began(self) -> bool:
        """Whether a job was started before the whole input had been received."""
        return self._listener is not None

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job and its size in bytes, or None if nothing can be prepared yet or
        everything has been prepared.

        If the input is complete and no job has been started, the result is also None, because the
        input is then prepared as a whole.
        """
        if self._ended or (self._listener is None and not self._can_begin):
            return None
        opening = self._listener is None
        listener = self._listener or Listener(self._prompts, self._tensors, self._speaks)
        windows = self._windows
        while self._samples >= listener.samples_for(self._windows + 1):
            self._windows += 1
        if not (opening or self.finished or self._windows > windows):
            return None
        self._listener, self._ended = listener, self.finished
        size = sum(each.nbytes for each in (*self._pieces, *self._tensors.values()))
        samples = self._taken()
        self._tensors = {}
        return partial(listener.hear, samples, last=self.finished), size

    def whole(self) -> dict[str, Tensor]:
        """Return the conversation with the complete recording."""
        return {**self._tensors, f"audio.{self._index}": self._taken()}

    @property
    def _can_begin(self) -> bool:
        """Return whether the encoding of the other recordings in the conversation can no longer
        change.
        """
        if self.finished or not (self._listens and self._tensors):
            return False
        audio = self._prompts.audio
        said = [each for name, each in self._tensors.items() if name.startswith("audio.")]
        return not said or not audio.depends([*audio.lengths(said), max(self._samples, 1)])

    def _taken(self) -> Float32:
        """Remove the samples that haven't been prepared yet and return them."""
        pieces, self._pieces = self._pieces, []
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)
