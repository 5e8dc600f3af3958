"""What a model must offer to run as a stage.

An engine is single-threaded: the runtime calls it from one engine thread, never
from the I/O loop, and hands it only chunks that are in order and exactly once.
It owns the accelerator memory of its segments and nothing else: no sockets, no
clocks, no sessions.

The life of a segment: `admit` (no accelerator memory yet), any number of
`accept`, `step` while `awaited_edge` is None, `release` exactly once. After
`release` the key is forgotten; the same key is never admitted again.
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
    """What belongs to a segment, as far as one stage needs it.

    `sampling` is keyed: its `seed` is of this stage and this answer alone. `outputs` are the output
    edges of this stage that go somewhere; an engine may skip the work behind any other. `options`
    are those that the request gives, within what the stage describes. The input of a `live` one
    comes while it is recorded. A `history`, which has only what the stage goes on from, is the
    beginning of the output. `whole_inputs` are the input edges that are delivered whole. `asked` is
    what of `sampling` the request sets itself, for an engine whose defaults depend on its input.
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
    """A chunk of an input edge: in order, exactly once, of an admitted segment.

    What comes of one that is to `prime` is dropped: it only warms the segment's state up. Such
    come before the edge's first position, which is 0 all the same, and only on edges that are
    declared `primed`.
    """

    edge: str
    position: int
    tensors: Tensors
    segment_finished: bool = False
    finish_reason: FinishReason | None = None
    prime: bool = False


class Emitted(Struct, frozen=True):
    """Output of a segment on one edge. `position` is that of its first element.

    Each output edge in `SegmentSettings.outputs` must end with exactly one
    `Emitted` that has a `finish_reason`; that one may carry no tensors. What is to `prime` the
    consumer (the frames of a reference voice, say) comes before all else on its edge, which is
    declared `primed`. It is at position 0, is not counted, needs no credit and leaves at once,
    whatever the delivery; it has no `finish_reason`.
    """

    key: SegmentKey
    edge: str
    position: int
    tensors: Tensors = {}
    finish_reason: FinishReason | None = None
    prime: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """All output edges of the segment have ended; the runtime will release it."""

    key: SegmentKey
    finish_reason: FinishReason
    input_positions: int
    output_positions: int
    input_audio_positions: int = 0
    input_image_positions: int = 0
    input_cached_positions: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The segment cannot go on; others are not affected. The runtime will release it."""

    key: SegmentKey
    error: AntiphonError


EngineEvent = Emitted | Completed | Failed


class Engine(Protocol):
    """A model that advances many segments."""

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in. Raises `AntiphonError` to refuse it."""

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store input; must be cheap. Raises `AntiphonError` if the chunk is unusable."""

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """The input edge that the segment waits for; None when it can step.

        It also can when something of it is under way that a step will hand on.
        """

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Advance every segment that can and is not `held`, by one step.

        Called only when there is one. A segment is held while nobody takes what it
        has made on a governed edge: it must cost nothing meanwhile. A fault of one
        segment is a `Failed` event; an exception means that the engine's state is
        unknown, and fails every segment.
        """

    def release(self, key: SegmentKey) -> None:
        """Free everything that the segment holds, at any moment of its life."""


@runtime_checkable
class CountingEngine(Engine, Protocol):
    """An engine that can tell what a segment has cost before it is complete."""

    def so_far(self, key: SegmentKey) -> Completed:
        """What it has taken and made until now, with the finish reason `CANCELLED`."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that gets a segment ready for its first step beside its thread.

    Nothing is awaited meanwhile, so `awaited_edge` is None; the runtime does not step for
    such a segment. A `step` that has nothing else to do waits for one to be ready.
    """

    def prepares(self, key: SegmentKey) -> bool:
        """Whether the segment is being got ready."""

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake`, on any thread, whenever a segment is ready."""

    def close(self) -> None:
        """Get nothing more ready; nothing is called after this."""


@runtime_checkable
class DetachedEngine(Engine, Protocol):
    """An engine whose model runs in processes of its own, which may die and come back.

    Its `step` waits until something has come from there. While it is down, `admit` raises
    `Unavailable`; the segments that it had fail.
    """

    def interrupt(self) -> None:
        """Make the `step` that waits, or else the next one, return. Called on any thread."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Call `changed` with the reason when the engine goes down, with None when it is up.

        It is called on any thread, and at once when the engine is down now.
        """

    def close(self) -> None:
        """End the engine's processes; nothing is called after this."""


class PendingCopies(Protocol):
    """Copies of outputs to the host, which a step may leave under way."""

    def seal(self) -> Callable[[], None] | None:
        """What waits for those that have begun; None when they are complete."""
        ...


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What a loaded model tells about itself; the rest of `Describe` is the runtime's.

    Rates in Hz, limits in positions, audio length in seconds, text in bytes of UTF-8 in a
    whole conversation; 0 or empty where a thing does not apply. `frame_dtype` is that of the
    `code_groups` values of a frame: codes, or "float32". `constrains_text` if it keeps to
    `Sampling.json_schema`, `keeps_recordings` if it takes keys of those that it knows. It
    `goes_on_from` these parts of a segment's `History`. Each of `options` takes the place of the
    one of its name that the pipeline declares: a checkpoint may know more of it, such as its
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
    """Of an engine without a device that an error can poison."""
    return False


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """What a stage's `load` hands to the runtime."""

    engine: Engine
    facts: StageFacts
    # Where the engine's outputs are copied to the host beside its work.
    copies: PendingCopies | None = None
    # Whether an exception of the engine means that it cannot go on in this process.
    is_fatal: Callable[[Exception], bool] = never_fatal
