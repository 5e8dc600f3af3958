"""A live segment's input: a conversation whose last recording is still being made.

Its prompt grows by each whole window of the audio tower. What is there is told as `HeardPrompt`s:
the first with the conversation up to the recording, the last with the rest of it and what
follows. Ids never change; where something louder comes, windows that were told before may have
other features, and everything from the first of them on has to be computed anew.

`LiveInput` is what has come, on the engine's thread; `Listener` makes features of it where prompts
are made, at most one job of a segment at a time. A recording that is over before anything of it
was begun, and every recording where that cannot be done, is prepared as if it had come whole.
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
"""Content of positions whose recording is not complete; none is like another."""


@dataclass(frozen=True, slots=True)
class HeardPrompt:
    """A prompt as far as it is known; the recording begins at position `start`.

    What was told of positions before `kept` still holds. `windows` are features from the first
    other position on, each with the position at which it begins; `digest` is what stands at the
    recording's positions once the prompt is no longer `is_open`.
    """

    prompt: PreparedPrompt
    start: int
    kept: int
    windows: tuple[tuple[int, AudioFeatures], ...]
    digest: int = UNKNOWN
    is_open: bool = True


class Listener:
    """Makes a prompt of a conversation, and of its last recording while that is made."""

    def __init__(self, prompts: PromptFactory, tensors: Mapping[str, Tensor], speaks: bool) -> None:
        self._prompts = prompts
        self._tensors = tensors
        self._speaks = speaks
        self._features = prompts.audio.growing()
        # A constant of the features, for any thread.
        self.samples_for = self._features.samples_for
        self._key = RecordingKey()
        self._head: PreparedPrompt | None = None
        self._start = self._recordings = 0

    def hear(self, samples: Float32, *, last: bool) -> HeardPrompt:
        """What the conversation and the next samples, or all that were left, add.

        Raises `InvalidArgument`, also for a conversation whose end is not open.
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
        """The recording is known from now on, to whoever tells its key."""
        features = self._features
        size = sum(features.lengths) * features.bins * np.dtype(np.float32).itemsize

        def make() -> Float32:
            return np.concatenate([features.window(at) for at in range(features.count)], axis=1)

        known = KnownRecording(self._key.key, self._key.samples, size, MadeOnce(make))
        self._prompts.audio.known.put(known)

    def _begin(self) -> PreparedPrompt:
        """The prompt in which the open recording has one position."""
        conversation = from_tensors(self._tensors, live=True)
        self._tensors = {}
        head = self._prompts.prepare(conversation, speaks=self._speaks, open_end=True)
        self._start = int(np.flatnonzero(head.ids == self._prompts.special.audio)[-1])
        self._recordings = len(conversation.recordings)
        return head


Job = Callable[[], "PreparedPrompt | HeardPrompt"]


class LiveInput:
    """What has come of a live segment's input, and what of it can be prepared next."""

    def __init__(self, prompts: PromptFactory, *, speaks: bool) -> None:
        self.finished = False
        self._opened = False
        self._prompts = prompts
        # Without it nothing is prepared before all has come.
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
        """Take a chunk's tensors in: the conversation first, and then samples.

        Raises `InvalidArgument` for what is neither, for too many samples, and for NaN.
        """
        rest = {name: each for name, each in tensors.items() if name != "samples"}
        if tensors and bool(rest) == self._opened:
            raise InvalidArgument(
                "input: the conversation comes once, in the first chunk; samples of its last "
                "recording follow",
                field="messages",
            )
        if rest:
            self._opened = True
            self._tensors = rest
            self._index = sum(name.startswith("audio.") for name in rest)
            # How one that shows something is laid out is only known as a whole.
            self._listens &= not any(name.startswith(("image.", "video.")) for name in rest)
        if len(samples := tensors.get("samples", np.empty(0, np.float32))):
            self._hear(samples)
        self.finished = self.finished or last

    def _hear(self, samples: Float32) -> None:
        field, audio = f"audio.{self._index}", self._prompts.audio
        self._samples += len(samples)
        audio.check_longest(self._index, self._samples)
        if not np.isfinite(samples).all():
            raise InvalidArgument(f"{field}: has NaN or Inf", field=field)
        # A copy: the chunk's bytes may belong to a transport, and hold more than this.
        self._pieces.append(np.array(samples))

    @property
    def began(self) -> bool:
        """Whether something was prepared before all had come."""
        return self._listener is not None

    def next_job(self) -> tuple[Job, int] | None:
        """What can be prepared next, and of how many bytes; None: nothing yet, or no more.

        Nothing is as long as nothing `began` and the input is finished: then it is prepared whole.
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
        """The conversation as if it had come whole."""
        return {**self._tensors, f"audio.{self._index}": self._taken()}

    @property
    def _can_begin(self) -> bool:
        """Whether it is known how the conversation's recordings are encoded."""
        if self.finished or not (self._listens and self._tensors):
            return False
        audio = self._prompts.audio
        said = [each for name, each in self._tensors.items() if name.startswith("audio.")]
        return not said or not audio.depends([*audio.lengths(said), max(self._samples, 1)])

    def _taken(self) -> Float32:
        """What has come and was not prepared."""
        pieces, self._pieces = self._pieces, []
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)
