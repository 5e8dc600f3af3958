"""Generates input for a single stage, for load tests.

A declaration names an `Example` for each stage. A stage without one can be load-tested only with
recorded input.
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
    """Settings shared by the examples of a run.

    `prompt` returns the text of a request by number. A prompt of tokens has `prompt_length` of
    them. `tokens` and `frames` (codec frames) are the lengths of streamed input; 0 means unset.
    `rate_hz` is its positions per second, `groups` the chunk policy. `model_dir` is None if only
    the stage's `description` is known.
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
    """A chunk without session id, and when it is due, in seconds from the session's start."""

    at_s: float
    chunk: Chunk


MadeUp = Callable[[int], Sequence[TimedChunk]]
"""Returns all chunks of a stage's input edges for a request number, deterministically.

They are in order, and the last one of each edge ends its segment.
"""


class Example(Protocol):
    """Generates a stage's input."""

    def __call__(self, settings: ExampleSettings) -> MadeUp:
        """Return the generator of a run's requests.

        Raises `FailedPrecondition` if a setting is missing.
        """


def conversation(edge: str) -> Example:
    """Return a conversation of one message, for a stage that receives the client's input."""

    def example(settings: ExampleSettings) -> MadeUp:
        def made_up(number: int) -> Sequence[TimedChunk]:
            message = ConversationMessage("user", (TextPart(settings.prompt(number)),))
            tensors = to_tensors(Conversation((message,)))
            return (TimedChunk(0.0, ending(Chunk("", edge, tensors=tensors))),)

        return made_up

    return example


def random_codes(edge: str, tensor: str = "") -> Example:
    """Return random codec frames; see `timed_frames`. The tensor's name defaults to the edge's."""

    def draw(chance: np.random.Generator, count: int, told: stage_pb2.DescribeResponse) -> Tensor:
        return chance.integers(told.code_entries, size=(count, told.code_groups), dtype=np.uint16)

    return _drawn_frames(edge, tensor or edge, draw)


def random_floats(edge: str) -> Example:
    """Return random float frames; see `timed_frames`. The tensor has the edge's name."""

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
    """Return the frames in chunks of `settings.groups`. The last one ends the segment.

    The first chunk is due at once, each later one when its last frame would have been generated.
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
    """Return the chunk as the last one of its edge's segment."""
    return structs.replace(chunk, segment_finished=True, finish_reason=FinishReason.STOP)


def _groups(policy: ChunkPolicy, frames: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each chunk."""
    start = 0
    for size in chain((policy.first, *policy.ramp), repeat(policy.steady)):
        if start >= frames:
            return
        yield start, min(start + size, frames)
        start += size
