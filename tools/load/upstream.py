"""What a stage is fed: the chunks that its upstream would send, and when. Pure.

A feed is made up here or was recorded from a real run. Its times are seconds since the
session's start; they count when the load is paced at real time and are ignored when it
is flat out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np

from antiphon.chunk import Chunk
from antiphon.conversation import Conversation, Message, TextPart, to_tensors
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.segment import ChunkPolicy, FinishReason
from antiphon.v1 import chunk_pb2
from antiphon.wire.chunks import chunk_to_proto
from tools.load.content import Content

FRAMES_PER_S = 12.5
TOKENS_PER_S = 30.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A chunk and when it is sent, seconds since the session's start."""

    at_s: float
    chunk: chunk_pb2.Chunk


Feed = tuple[Timed, ...]
"""All that one session of a stage is sent, in order; the session's id is filled in later."""

FeedOf = Callable[[int], Feed]
"""The feed of request number n."""


def thinker_feed(content: Content, number: int) -> Feed:
    """A conversation of one message."""
    message = Message("user", (TextPart(content.prompt(number)),))
    tensors = to_tensors(Conversation((message,)))
    return _feed([(0.0, _ended(Chunk("", "input", tensors=tensors)))])


def talker_feed(content: Content, special: SpecialIds, tokens_per_s: float, number: int) -> Feed:
    """A prompt of random text ids, then as many reply ids, one by one.

    With real-time pace the prompt comes at once and the reply at `tokens_per_s`.
    """
    draw = np.random.default_rng(number)
    # Ids below every special one are words (or pieces of words) and nothing else.
    words = min(special.im_start, special.im_end, special.tts_bos, special.audio, special.image)

    def text(count: int) -> list[int]:
        return [int(each) for each in draw.integers(words, size=count)]

    question = [special.im_start, special.user, *text(content.prompt_length), special.im_end]
    prompt = np.array([*question, special.im_start, special.assistant, *text(1)], np.int32)
    reply = text(content.reply_tokens)
    chunks = [(0.0, _ended(Chunk("", "prompt", tensors={"ids": prompt})))]
    for index, token in enumerate(reply):
        ids = np.array([token], np.int32)
        chunk = Chunk("", "tokens", sequence=index, position=index, tensors={"ids": ids})
        chunks.append((index / tokens_per_s, chunk))
    end = Chunk("", "tokens", sequence=len(reply), position=len(reply))
    return _feed([*chunks, (len(reply) / tokens_per_s, _ended(end))])


def code2wav_feed(
    content: Content, shape: tuple[int, int], groups: ChunkPolicy, frames_per_s: float, number: int
) -> Feed:
    """Random frames, grouped as a talker groups them. `shape` is (code groups, entries).

    With real-time pace the first chunk comes at once and each later one when its last
    frame would be made at `frames_per_s`.
    """
    if not content.frames:
        raise FailedPrecondition("code2wav: say how many frames, --frames 100", field="frames")
    code_groups, entries = shape
    draw = np.random.default_rng(number)
    codes = draw.integers(entries, size=(content.frames, code_groups), dtype=np.uint16)
    chunks: list[tuple[float, Chunk]] = []
    for start, stop in _pieces(groups, content.frames):
        tensors = {"codes": codes[start:stop]}
        chunk = Chunk("", "codes", sequence=len(chunks), position=start, tensors=tensors)
        chunks.append(((stop - min(groups.first, content.frames)) / frames_per_s, chunk))
    at_s, last = chunks.pop()
    return _feed([*chunks, (at_s, _ended(last))])


def _pieces(groups: ChunkPolicy, frames: int) -> Iterator[tuple[int, int]]:
    """Where each chunk starts and stops."""
    start = 0
    for size in chain((groups.first, *groups.ramp), repeat(groups.steady)):
        if start >= frames:
            return
        yield start, min(start + size, frames)
        start += size


def _ended(chunk: Chunk) -> Chunk:
    return replace(chunk, segment_finished=True, finish_reason=FinishReason.STOP)


def _feed(chunks: list[tuple[float, Chunk]]) -> Feed:
    return tuple(Timed(at_s, chunk_to_proto(chunk)) for at_s, chunk in chunks)
