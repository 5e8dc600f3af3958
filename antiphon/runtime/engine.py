"""The interface between the runtime and the engine of a model.

An engine is single-threaded. The runtime calls it on one dedicated thread, and never on the event
loop. It passes each chunk exactly once and in order. The engine owns the accelerator memory of its
segments, but has no sockets, clocks or sessions.

The runtime makes the following calls for each segment. First, `admit` registers the segment without
allocating accelerator memory. Then `accept` is called any number of times, and `step` whenever
`awaited_edge` is None. Finally, `release` is called exactly once. The same key is never admitted
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from msgspec import Struct

from antiphon.errors import AntiphonError
from antiphon.values.chunk import Tensors
from antiphon.values.history import History
from antiphon.values.options import Option, OptionValue
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """The settings of a segment for one stage.

    The `seed` in `sampling` is derived for this stage and this answer. `outputs` are the output
    edges of this stage that have a destination. An engine may skip the work for all other edges.
    `options` are the request's options after they have been validated against the description of
    the stage. If the segment is `live`, its input arrives while it is being recorded. `history` is
    the beginning of the output. It contains only the parts from which the stage can continue.
    `whole_inputs` are the input edges that use whole delivery. `asked` contains the sampling
    settings that the request itself sets, for engines whose defaults depend on the input.
    """

    voice: str
    sampling: Sampling
    outputs: frozenset[str]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    live: bool = False
    history: History | None = None
    whole_inputs: frozenset[str] = frozenset()
    asked: SamplingRequest = field(default_factory=SamplingRequest)


class InputChunk(Struct, frozen=True):
    """A chunk on an input edge of an admitted segment. Chunks are passed in order and exactly once.

    If `prime` is true, the chunk only prepares the segment's state, and the resulting output is
    dropped. Priming chunks come before all others, at position 0, and only on edges that are
    declared as `primed`.
    """

    edge: str
    position: int
    tensors: Tensors
    segment_finished: bool = False
    finish_reason: FinishReason | None = None
    prime: bool = False


class Emitted(Struct, frozen=True):
    """Output of a segment on one edge. `position` is the position of its first element.

    Each output edge in `SegmentSettings.outputs` must end with exactly one `Emitted` that has a
    `finish_reason`, which may be empty otherwise. If `prime` is true, the output prepares the
    consumer's state, for example with the frames of a reference voice. Priming output comes before
    all other output on its edge, at position 0, and the edge must be declared as `primed`. It is
    not counted, needs no credit, is sent immediately for any delivery, and has no `finish_reason`.
    """

    key: SegmentKey
    edge: str
    position: int
    tensors: Tensors = {}
    finish_reason: FinishReason | None = None
    prime: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """All output edges of the segment have ended. The runtime will release the segment."""

    key: SegmentKey
    finish_reason: FinishReason
    input_positions: int
    output_positions: int
    input_audio_positions: int = 0
    input_image_positions: int = 0
    input_cached_positions: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The segment has failed, but other segments are not affected. The runtime will release the
    segment.
    """

    key: SegmentKey
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class Advanced:
    """The progress of a segment, which has completed `done` of `due` steps.

    This event is optional, and an engine may return one per step. The stage reports progress at
    most once every `StageLimits.steps_s` seconds, and when `done == due`. The segment fails unless
    1 <= `done` <= `due`.
    """

    key: SegmentKey
    done: int
    due: int


EngineEvent = Emitted | Advanced | Completed | Failed


class Engine(Protocol):
    """A model that processes many segments concurrently."""

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment. Raises `AntiphonError` to refuse it."""

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store a chunk of input. This must be cheap. Raises `AntiphonError` if the chunk is
        invalid.
        """

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the input edge on which the segment is waiting, or None if it can step.

        A segment can also step if work is in progress that a later step will complete.
        """

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Advance every segment that can step by one step, except for the segments in `held`.

        This is only called if at least one segment can step. A segment is held while its output on
        a governed edge has no credit, and must not use any engine time while it is held. If a
        single segment fails, return a `Failed` event for it. Raising an exception means that the
        state of the engine is unknown, and fails all segments.
        """

    def release(self, key: SegmentKey) -> None:
        """Free all resources of the segment. This may be called at any time after `admit`."""


@runtime_checkable
class CountingEngine(Engine, Protocol):
    """An engine that can report the counts of a segment that is not complete yet."""

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the current counts, with the finish reason `CANCELLED`."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that prepares the first step of a segment on another thread.

    During the preparation, `awaited_edge` is None, and the segment does not take part in steps. If
    there is no other work, `step` waits until a segment has been prepared.
    """

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment is currently being prepared."""

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the preparation of a segment is complete. It may be called on any
        thread.
        """

    def close(self) -> None:
        """Stop the preparation. No further methods are called after this."""


@runtime_checkable
class DetachedEngine(Engine, Protocol):
    """An engine whose model runs in separate processes, which can crash and be restarted.

    Its `step` blocks until a result arrives. When the processes go down, all segments in the engine
    fail, and `admit` raises `Unavailable` until they are back.
    """

    def interrupt(self) -> None:
        """Unblock the current call to `step`, or otherwise the next one. This may be called on any
        thread.
        """

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Call `changed` with an error when the engine goes down, and with None when it is back.

        The function may be called on any thread. If the engine is already down, it is called
        immediately.
        """

    def close(self) -> None:
        """Stop the engine's processes. No further methods are called after this."""


class PendingCopies(Protocol):
    """Asynchronous copies of output to the host, which may still be in progress when a step
    ends.
    """

    def seal(self) -> Callable[[], None] | None:
        """Return a function that waits for all copies that have been started so far, or None if
        they are complete.
        """
        ...


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The part of `Describe` that depends on the loaded model. The runtime adds the remaining
    fields.

    Rates are in Hz, limits are in positions, the length of audio is in seconds, and the size of
    text is in UTF-8 bytes of a whole conversation. A value of 0 or an empty value means that the
    field does not apply. `frame_dtype` is the type of the `code_groups` values in a frame. They are
    codes or "float32". `constrains_text` is true if `Sampling.json_schema` is enforced.
    `keeps_recordings` is true if recordings can be sent as keys. `goes_on_from` lists the parts of
    a `History` from which the stage can continue. Each option in `options` replaces the option of
    the pipeline that has the same name, because a checkpoint may define an option more precisely,
    for example its languages.
    """

    model: str
    checkpoint_fingerprint: str
    engine: str
    default_sampling: Sampling
    voices: tuple[str, ...] = ()
    sample_rate_hz: int = 0
    samples_per_frame: int = 0
    code_groups: int = 0
    code_entries: int = 0
    frame_dtype: str = "uint16"
    context_limit: int = 0
    input_kinds: tuple[str, ...] = ()
    input_sample_rate_hz: int = 0
    max_input_audio_s: float = 0.0
    max_input_images: int = 0
    max_input_videos: int = 0
    max_input_text_bytes: int = 0
    options: tuple[Option, ...] = ()
    constrains_text: bool = False
    keeps_recordings: bool = False
    goes_on_from: tuple[str, ...] = ()


def never_fatal(error: Exception) -> bool:
    """Return False. Use this as `is_fatal` for an engine without a device that an error could
    corrupt.
    """
    return False


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A loaded model, as returned by the `load` function of a stage."""

    engine: Engine
    facts: StageFacts
    # The asynchronous copies from the engine to the host, if there are any.
    copies: PendingCopies | None = None
    # Returns whether an exception of the engine requires the process to be restarted.
    is_fatal: Callable[[Exception], bool] = never_fatal
