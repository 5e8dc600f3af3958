"""Generates input for a single stage, for use in load tests.

A pipeline declares an `Example` for each stage. Without an example, a stage can only be load-tested
with recorded input.
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
    """Settings that all examples in a run share.

    `prompt` returns the text of a request, given its number. If a prompt consists of tokens, it has
    `prompt_length` of them. `tokens` and `frames` are the lengths of the streamed input, in tokens
    and in codec frames. A length of 0 means that it isn't set. `rate_hz` is the number of positions
    per second, and `groups` is the chunk policy. If only the stage's `description` is known,
    `model_dir` is None.
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
    """A chunk without a session ID, and the time at which it is due, in seconds since the session
    started.
    """

    at_s: float
    chunk: Chunk


MadeUp = Callable[[int], Sequence[TimedChunk]]
"""Returns all chunks on a stage's input edges for a request number. The result is deterministic.

The chunks are in order. On each edge, the last chunk ends the segment.
"""


class Example(Protocol):
    """Generates a stage's input."""

    def __call__(self, settings: ExampleSettings) -> MadeUp:
        """Return the function that generates the requests for a run.

        Raises `FailedPrecondition` if a setting is missing.
        """


def conversation(edge: str) -> Example:
    """Return an example that is a conversation with a single message.

    Use it for a stage that receives the client's input.
    """

    def example(settings: ExampleSettings) -> MadeUp:
        def made_up(number: int) -> Sequence[TimedChunk]:
            message = ConversationMessage("user", (TextPart(settings.prompt(number)),))
            tensors = to_tensors(Conversation((message,)))
            return (TimedChunk(0.0, ending(Chunk("", edge, tensors=tensors))),)

        return made_up

    return example


def written_text(edge: str) -> Example:
    """Return an example of a text that another stage has generated. It is sent in a single chunk.

    The tensors are those of a `text` edge, and each character counts as a token.
    """

    def example(settings: ExampleSettings) -> MadeUp:
        def made_up(number: int) -> Sequence[TimedChunk]:
            text = settings.prompt(number)
            tensors: dict[str, Tensor] = {
                "ids": np.zeros(len(text), np.int32),
                "utf8": np.frombuffer(text.encode(), np.uint8),
            }
            return (TimedChunk(0.0, ending(Chunk("", edge, tensors=tensors))),)

        return made_up

    return example


def random_codes(edge: str, tensor: str = "") -> Example:
    """Return an example of random codec frames, which are split into chunks as in `timed_frames`.

    By default, the tensor has the same name as the edge.
    """

    def draw(chance: np.random.Generator, count: int, told: stage_pb2.DescribeResponse) -> Tensor:
        return chance.integers(told.code_entries, size=(count, told.code_groups), dtype=np.uint16)

    return _drawn_frames(edge, tensor or edge, draw)


def random_ids(edge: str) -> Example:
    """Return an example of random token IDs, which are sent in a single chunk.

    The number of IDs is set with `--frames`. The tensor has the same name as the edge.
    """

    def example(settings: ExampleSettings) -> MadeUp:
        count, entries = settings.frames, settings.description.code_entries
        if not count:
            raise FailedPrecondition(
                "specify the number of IDs, such as --frames 100", field="frames"
            )

        def made_up(number: int) -> Sequence[TimedChunk]:
            ids = np.random.default_rng(number).integers(entries, size=count, dtype=np.uint16)
            return (TimedChunk(0.0, ending(Chunk("", edge, tensors={edge: ids}))),)

        return made_up

    return example


def random_floats(edge: str) -> Example:
    """Return an example of random float frames, which are split into chunks as in `timed_frames`.

    The tensor has the same name as the edge.
    """

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
            raise FailedPrecondition(
                "specify the number of codec frames, such as --frames 100", field="frames"
            )

        def made_up(number: int) -> Sequence[TimedChunk]:
            frames = draw(np.random.default_rng(number), count, told)
            return timed_frames(edge, tensor, frames, settings)

        return made_up

    return example


def timed_frames(
    edge: str, tensor: str, frames: Tensor, settings: ExampleSettings
) -> Sequence[TimedChunk]:
    """Split the frames into chunks according to `settings.groups`.

    The last chunk ends the segment. The first chunk is due immediately. Each later chunk is due
    when its last frame would have been generated.
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
    """Return a copy of the chunk that ends its edge's segment."""
    return structs.replace(chunk, segment_finished=True, finish_reason=FinishReason.STOP)


def _groups(policy: ChunkPolicy, frames: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop index of each chunk."""
    start = 0
    for size in chain((policy.first, *policy.ramp), repeat(policy.steady)):
        if start >= frames:
            return
        yield start, min(start + size, frames)
        start += size
