"""The interface between the runtime and a model's engine.

Engines are single-threaded. The runtime calls an engine on one dedicated thread and never on the
event loop. Every chunk is passed exactly once and in order. The engine owns the accelerator memory
of its segments, but doesn't deal with sockets, clocks or sessions.

For each segment, the runtime makes the following calls. First, `admit` registers the segment,
without allocating accelerator memory. After that, `accept` is called any number of times, and
`step` is called whenever `awaited_edge` is None. Finally, `release` is called exactly once. Keys
are never reused.
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

    The `seed` in `sampling` has been derived for this particular stage and answer. `outputs`
    contains the stage's output edges that have a destination. The engine may skip the work for any
    other edge. `options` contains the request's options, which have been validated against the
    stage's description. If the segment is `live`, its input arrives while it is still being
    recorded. `history` is the beginning of the output, limited to the parts from which the stage
    can continue. `whole_inputs` contains the input edges with whole delivery. `asked` contains the
    sampling settings that were set in the request itself. It is needed by engines whose defaults
    depend on the input.
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

    If `prime` is true, the chunk only prepares the segment's state, and any output that results
    from it is dropped. Priming chunks precede all other chunks, have position 0, and only occur on
    edges that are declared as `primed`.
    """

    edge: str
    position: int
    tensors: Tensors
    segment_finished: bool = False
    finish_reason: FinishReason | None = None
    prime: bool = False


class Emitted(Struct, frozen=True):
    """Output of a segment on one edge. `position` is the position of the first element.

    Each output edge in `SegmentSettings.outputs` must end with exactly one `Emitted` that has a
    `finish_reason`. Apart from that, it may be empty. If `prime` is true, the output prepares the
    consumer's state, for example with the frames of a reference voice. Priming output precedes all
    other output on its edge, at position 0, and the edge must be declared as `primed`. It isn't
    counted, doesn't need credit, is sent immediately with any delivery, and has no `finish_reason`.
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
    """The segment has failed. Other segments aren't affected. The runtime will release
    the segment.
    """

    key: SegmentKey
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class Advanced:
    """The progress of a segment that has completed `done` out of `due` steps.

    This event is optional and can be returned for every step. The stage passes it on at most once
    every `StageLimits.steps_s` seconds, and when `done == due`. If 1 <= `done` <= `due` doesn't
    hold, the segment fails.
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
        """Return the input edge that the segment is waiting for, or None if the segment can step.

        A segment also counts as able to step if it has work in progress that a later step will
        complete.
        """

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Perform one step for every segment that can step, except for those in `held`.

        This is called only if there is at least one such segment. A segment is held while its
        output on a governed edge has no credit. It must not use any engine time during that period.
        If a single segment fails, return a `Failed` event for it. Raise an exception only if the
        state of the engine is unknown, because this fails all segments.
        """

    def release(self, key: SegmentKey) -> None:
        """Free all resources of the segment. This can be called at any time after `admit`."""


@runtime_checkable
class CountingEngine(Engine, Protocol):
    """An engine that can report a segment's counts before the segment is complete."""

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the current counts, with the finish reason `CANCELLED`."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that prepares the first step of a segment on a separate thread.

    While a segment is being prepared, its `awaited_edge` is None, and it doesn't take part in
    steps. If there is nothing else to do, `step` waits until a segment is ready.
    """

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment is currently being prepared."""

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a segment has been prepared. It can be called from any thread."""

    def close(self) -> None:
        """Stop the preparation. No further methods are called after this."""


@runtime_checkable
class DetachedEngine(Engine, Protocol):
    """An engine whose model runs in separate processes, which can crash and restart.

    `step` blocks until there is a result. When the processes go down, all segments in the engine
    fail, and `admit` raises `Unavailable` until the processes are back.
    """

    def interrupt(self) -> None:
        """Unblock the current call of `step`, or the next one if there is none. This can be called
        from any thread.
        """

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Call `changed` with an error when the engine goes down, and with None when it is back.

        `changed` can be called from any thread. If the engine is already down, it is called
        immediately.
        """

    def close(self) -> None:
        """Stop the engine's processes. No further methods are called after this."""


class PendingCopies(Protocol):
    """Asynchronous copies of output to the host. They may still be in progress when a step ends."""

    def seal(self) -> Callable[[], None] | None:
        """Return a function that waits for all copies started so far, or None if they are already
        complete.
        """
        ...


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The part of a `Describe` response that depends on the loaded model. The runtime adds the
    rest.

    Rates are in Hz, limits are in positions, audio lengths are in seconds, and text sizes are in
    UTF-8 bytes of the whole conversation. A field that doesn't apply is 0 or empty. `frame_dtype`
    describes the `code_groups` values in a frame, which are either codes or "float32".
    `constrains_text` states whether `Sampling.json_schema` is enforced, and `keeps_recordings`
    states whether recordings can be sent as keys. `goes_on_from` lists the parts of a `History`
    from which the stage can continue. An entry in `options` replaces the pipeline's option of the
    same name, because a checkpoint may define an option more precisely. For example, it may list
    the supported languages.
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
    """Return False. Use this as `is_fatal` for engines without a device that an error could
    corrupt.
    """
    return False


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A loaded model, as returned by a stage's `load` function."""

    engine: Engine
    facts: StageFacts
    # The engine's asynchronous copies to the host, if there are any.
    copies: PendingCopies | None = None
    # Returns whether an exception raised by the engine requires a restart of the process.
    is_fatal: Callable[[Exception], bool] = never_fatal
