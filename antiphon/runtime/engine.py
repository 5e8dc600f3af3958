"""The interface between the runtime and a model's engine.

An engine is single-threaded. The runtime calls it on one engine thread, never on the event loop,
and passes it only chunks in order and exactly once. The engine owns the accelerator memory of its
segments and nothing else: no sockets, clocks or sessions.

The life of a segment: `admit` (no accelerator memory yet), any number of `accept`, `step` while
`awaited_edge` is None, `release` exactly once. After `release` the key is forgotten. The same key
is never admitted again.
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
    """Settings of a segment that concern one stage.

    The `seed` of `sampling` is derived for this stage and this answer. `outputs` are the output
    edges of this stage that have a destination; an engine may skip the work for others. `options`
    are the request's, checked against the stage's description. The input of a `live` segment
    arrives while it is recorded. `history` is the beginning of the output, reduced to the parts
    that the stage can continue from. `whole_inputs` are the input edges that are delivered whole.
    `asked` is the part of `sampling` that the request sets, for an engine whose defaults depend on
    its input.
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
    """A chunk of an input edge of an admitted segment, in order and exactly once.

    Output that results from a `prime` chunk is dropped: it only warms up the segment's state.
    Priming chunks come first, at position 0, and only on edges declared `primed`.
    """

    edge: str
    position: int
    tensors: Tensors
    segment_finished: bool = False
    finish_reason: FinishReason | None = None
    prime: bool = False


class Emitted(Struct, frozen=True):
    """Output of a segment on one edge. `position` is that of its first element.

    Each output edge in `SegmentSettings.outputs` ends with exactly one `Emitted` that has a
    `finish_reason`, which may carry no tensors. Output with `prime`, such as the frames of a
    reference voice, primes the consumer. It comes first on its edge, at position 0, and the edge
    must be declared `primed`. It is not counted, needs no credit, is sent at once whatever the
    delivery, and has no `finish_reason`.
    """

    key: SegmentKey
    edge: str
    position: int
    tensors: Tensors = {}
    finish_reason: FinishReason | None = None
    prime: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """All output edges of the segment have ended. The runtime will release it."""

    key: SegmentKey
    finish_reason: FinishReason
    input_positions: int
    output_positions: int
    input_audio_positions: int = 0
    input_image_positions: int = 0
    input_cached_positions: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The segment has failed; others are unaffected. The runtime will release it."""

    key: SegmentKey
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class Advanced:
    """Steps of the segment's generation: `done` so far, `due` in total.

    Optional. An engine may return one per step; the stage sends at most `StageLimits.steps_s` apart
    and always the one with `done == due`. 1 <= `done` <= `due`, else the segment fails.
    """

    key: SegmentKey
    done: int
    due: int


EngineEvent = Emitted | Advanced | Completed | Failed


class Engine(Protocol):
    """A model that advances many segments."""

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment. Raises `AntiphonError` to refuse it."""

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store input; must be cheap. Raises `AntiphonError` if the chunk is unusable."""

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the input edge that the segment waits for; None when it can step.

        It can also step when work is in progress that a later step will return.
        """

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Advance every segment that can step and is not `held`, by one step.

        Called only when there is such a segment. A segment is held while its output on a governed
        edge has no credit; it must cost nothing then. A fault of one segment is a `Failed` event.
        An exception means that the engine's state is unknown, and fails every segment.
        """

    def release(self, key: SegmentKey) -> None:
        """Free everything that the segment holds. May be called at any point of its life."""


@runtime_checkable
class CountingEngine(Engine, Protocol):
    """An engine that reports a segment's counts before it is complete."""

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the counts so far, with the finish reason `CANCELLED`."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that prepares a segment's first step on another thread.

    During preparation `awaited_edge` is None, and the runtime does not step for the segment. A
    `step` without other work waits until a segment is prepared.
    """

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment is being prepared."""

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake`, on any thread, whenever a segment is prepared."""

    def close(self) -> None:
        """Stop preparing. Nothing is called after this."""


@runtime_checkable
class DetachedEngine(Engine, Protocol):
    """An engine whose model runs in its own processes, which may die and be restarted.

    Its `step` blocks until a result arrives. While the processes are down, `admit` raises
    `Unavailable`, and the segments that the engine had fail.
    """

    def interrupt(self) -> None:
        """Make the blocked or the next `step` return. May be called on any thread."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Call `changed` with the reason when the engine goes down, and with None when it is up.

        It is called on any thread, and immediately if the engine is down now.
        """

    def close(self) -> None:
        """Stop the engine's processes. Nothing is called after this."""


class PendingCopies(Protocol):
    """Asynchronous copies of outputs to the host, which a step may leave in progress."""

    def seal(self) -> Callable[[], None] | None:
        """Return a function that waits for the copies started so far; None if they are complete."""
        ...


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A loaded model's part of `Describe`; the runtime adds the rest.

    Rates are in Hz, limits in positions, audio length in seconds, text in UTF-8 bytes of a whole
    conversation. 0 or empty means not applicable. `frame_dtype` is the type of a frame's
    `code_groups` values: codes, or "float32". `constrains_text` means that `Sampling.json_schema`
    is enforced, `keeps_recordings` that recordings can be sent by key. `goes_on_from` lists the
    parts of a segment's `History` that the stage can continue from. Each of `options` replaces the
    pipeline's option of that name, since a checkpoint may define it more precisely, such as its
    languages.
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
    """The `is_fatal` of an engine without a device that an error can corrupt."""
    return False


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """The result of a stage's `load`."""

    engine: Engine
    facts: StageFacts
    # The engine's asynchronous copies to the host, if it makes any.
    copies: PendingCopies | None = None
    # Whether an exception of the engine requires a restart of the process.
    is_fatal: Callable[[Exception], bool] = never_fatal
