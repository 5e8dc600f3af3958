"""The input of a stage under load. It consists of the upstream stage's chunks and their times.

A feed is either generated from the stage's declaration or recorded from a real run. Its times are
in seconds since the session's start. They are only used if the load is paced in real time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.examples import ExampleSettings
from antiphon.pipelines.graph import Pipeline
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.values.segment import ChunkPolicy
from antiphon.wire.chunks import chunk_to_proto
from antiphon_tools.load.content import Content

RATE_HZ = 30.0
"""The default number of positions per second for edges without audio. This is approximately the
speed at which a model generates text.
"""

SINGLE_FRAMES = ChunkPolicy(first=1, ramp=(), steady=1)


@dataclass(frozen=True, slots=True)
class Timed:
    """A chunk and the time at which it is sent, in seconds since the start of the session."""

    at_s: float
    chunk: chunk_pb2.Chunk


Feed = tuple[Timed, ...]
"""All chunks that are sent in one session of a stage, in order. The session ID is added later."""

FeedOf = Callable[[int], Feed]
"""Returns the feed of the request with the given number."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Whether a stage is fed in real time and the number of positions per second.

    If `rate_hz` is 0, the rate is that of the audio, or `RATE_HZ` if there is no audio.
    """

    real_time: bool = True
    rate_hz: float = 0.0

    def groups(self, content: Content, pipeline: Pipeline) -> ChunkPolicy:
        """Return how the frames of a feed are grouped. In real time, each frame is sent by
        itself.
        """
        otherwise = SINGLE_FRAMES if self.real_time else pipeline.chunk_policy
        return content.chunk_policy or otherwise


def made_up(
    content: Content,
    pipeline: Pipeline,
    description: stage_pb2.DescribeResponse,
    pace: Pace,
    model_dir: Path | None = None,
) -> FeedOf:
    """Return generated feeds, as defined by the declaration of the stage.

    Raises `FailedPrecondition` if the declaration has no example or if required information is
    missing.
    """
    role = description.role
    example = pipeline.stage(role).example
    if example is None:
        raise FailedPrecondition(
            f"{pipeline.name} doesn't define an example input for {role}; record its input "
            "(--record FILE), and use the recording (--replay FILE)"
        )
    inputs = pipeline.inputs(role)
    rate_hz = max(edge.rate_hz for edge in inputs)
    groups = pace.groups(content, pipeline)
    if not pace.real_time:
        first = groups.first + max(edge.look_ahead for edge in inputs)
        groups = replace(groups, first=first)
    chunks_of = example(
        ExampleSettings(
            prompt=content.prompt,
            prompt_length=content.prompt_length,
            tokens=content.reply_tokens,
            frames=content.frames,
            rate_hz=pace.rate_hz or rate_hz or RATE_HZ,
            groups=groups,
            model_dir=model_dir,
            description=description,
        )
    )
    return lambda number: tuple(
        Timed(each.at_s, chunk_to_proto(each.chunk)) for each in chunks_of(number)
    )
