"""Makes up what a stage is fed where nobody feeds it: for load tests of one stage alone.

A declaration names an `Example` for each stage; one without can be loaded with recorded
input only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import structs

from antiphon.errors import FailedPrecondition
from antiphon.v1 import stage_pb2
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.segment import ChunkPolicy, FinishReason


@dataclass(frozen=True, slots=True)
class ExampleSettings:
    """What the examples of a run have in common.

    `prompt` is what request number n says; a prompt that is made of tokens has
    `prompt_length` of them. `tokens` and `frames` (codec frames) are the lengths of what is
    streamed; 0: not said. `rate_hz` is its positions per second, and `groups` how many go
    into a chunk. `model_dir` is None when only the stage's own `description` is known.
    """

    prompt: Callable[[int], str]
    prompt_length: int
    tokens: int
    frames: int
    rate_hz: float
    groups: ChunkPolicy
    model_dir: Path | None
    description: stage_pb2.DescribeResponse


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """A chunk without a session's id, and when it is due, seconds since the session's start."""

    at_s: float
    chunk: Chunk


MadeUp = Callable[[int], Sequence[TimedChunk]]
"""All chunks of a stage's input edges for request number n, always the same for the same n.

They come in order, and the last one of each edge ends its segment.
"""


class Example(Protocol):
    """Makes up a stage's input."""

    def __call__(self, settings: ExampleSettings) -> MadeUp:
        """What the requests of a run are fed.

        Raises `FailedPrecondition` if a setting is missing.
        """


def conversation(edge: str) -> Example:
    """A conversation of one message, for a stage that reads the client's input."""

    def example(settings: ExampleSettings) -> MadeUp:
        def made_up(number: int) -> Sequence[TimedChunk]:
            message = ConversationMessage("user", (TextPart(settings.prompt(number)),))
            tensors = to_tensors(Conversation((message,)))
            return (TimedChunk(0.0, ending(Chunk("", edge, tensors=tensors))),)

        return made_up

    return example


def random_codes(edge: str, tensor: str = "") -> Example:
    """Random codec frames; see `timed_frames`. Without a name the tensor has the edge's."""

    def draw(chance: np.random.Generator, count: int, told: stage_pb2.DescribeResponse) -> Tensor:
        return chance.integers(told.code_entries, size=(count, told.code_groups), dtype=np.uint16)

    return _drawn_frames(edge, tensor or edge, draw)


def random_floats(edge: str) -> Example:
    """Random frames of floats; see `timed_frames`. The tensor has the edge's name."""

    def draw(chance: np.random.Generator, count: int, told: stage_pb2.DescribeResponse) -> Tensor:
        return chance.standard_normal((count, told.code_groups), np.float32)

    return _drawn_frames(edge, edge, draw)


def _drawn_frames(
    edge: str,
    tensor: str,
    draw: Callable[[np.random.Generator, int, stage_pb2.DescribeResponse], Tensor],
) -> Example:
    def example(settings: ExampleSettings) -> MadeUp:
        count, told = settings.frames, settings.description
        if not count:
            raise FailedPrecondition("say how many codec frames, --frames 100", field="frames")

        def made_up(number: int) -> Sequence[TimedChunk]:
            frames = draw(np.random.default_rng(number), count, told)
            return timed_frames(edge, tensor, frames, settings)

        return made_up

    return example


def timed_frames(
    edge: str, tensor: str, frames: Tensor, settings: ExampleSettings
) -> Sequence[TimedChunk]:
    """These frames in chunks of `settings.groups`; the last one ends the segment.

    The first chunk is due at once, each later one when its last frame would have been made.
    """
    count, chunks = len(frames), list[TimedChunk]()
    first = min(settings.groups.first, count)
    for start, stop in _groups(settings.groups, count):
        tensors = {tensor: frames[start:stop]}
        chunk = Chunk("", edge, sequence=len(chunks), position=start, tensors=tensors)
        last = ending(chunk) if stop == count else chunk
        chunks.append(TimedChunk((stop - first) / settings.rate_hz, last))
    return chunks


def ending(chunk: Chunk) -> Chunk:
    """The chunk as the last one of its edge's segment."""
    return structs.replace(chunk, segment_finished=True, finish_reason=FinishReason.STOP)


def _groups(policy: ChunkPolicy, frames: int) -> Iterator[tuple[int, int]]:
    """Where each chunk starts and stops."""
    start = 0
    for size in chain((policy.first, *policy.ramp), repeat(policy.steady)):
        if start >= frames:
            return
        yield start, min(start + size, frames)
        start += size
