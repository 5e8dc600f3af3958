"""Runs the three engines in one process, one after another on a single thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antiphon import SamplingRequest
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon.runtime.engine import Emitted, Failed, InputChunk, LoadedStage, SegmentSettings
from antiphon.runtime.session.output_edge import OutputEdge
from antiphon.values.conversation import to_tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.code2wav import load as code2wav
from antiphon_services.qwen3_omni.talker import load as talker
from antiphon_services.qwen3_omni.thinker import load as thinker
from antiphon_testkit.conversations import conversation


@dataclass(frozen=True, slots=True)
class Taken:
    """The seconds from the question to the first audio and to the end."""

    first_audio_s: float
    total_s: float


@dataclass(slots=True)
class _Reply:
    """A session, with its output edges, the time of its first audio, and the time of its end."""

    outlets: dict[str, OutputEdge]
    open_edges: set[str] = field(default_factory=lambda: {"text", "audio"})
    first_audio_s: float = 0.0
    total_s: float = 0.0


class OneProcess:
    """The engines of the services, without services between them."""

    def __init__(self, directory: Path) -> None:
        config = StageConfig()
        self._stages: dict[str, LoadedStage] = {
            THINKER: thinker.load(directory, config),
            TALKER: talker.load(directory, config),
            CODE2WAV: code2wav.load(directory, config),
        }
        self._turns = 0

    def run(self, questions: Sequence[str], tokens: int, frames: int) -> list[Taken]:
        """Answer all questions concurrently. Chunks between engines follow the rules of output
        edges.
        """
        self._started = time.perf_counter()
        wanted = {
            THINKER: SamplingRequest(temperature=0.0, max_tokens=tokens),
            TALKER: SamplingRequest(temperature=0.0, max_tokens=frames + 1),
            CODE2WAV: SamplingRequest(),
        }
        replies = {self._admit(wanted, question): _Reply(_outlets()) for question in questions}
        while any(reply.open_edges for reply in replies.values()):
            for stage in self._stages.values():
                if any(stage.engine.awaited_edge(key) is None for key in replies):
                    for event in stage.engine.step():
                        self._take(replies, event)
        for key in replies:
            for stage in self._stages.values():
                stage.engine.release(key)
        return [Taken(reply.first_audio_s, reply.total_s) for reply in replies.values()]

    def _admit(self, wanted: dict[str, SamplingRequest], question: str) -> SegmentKey:
        """Start a session with its question on all engines."""
        self._turns += 1
        key = SegmentKey("bench", self._turns)
        for role, stage in self._stages.items():
            edges = frozenset(edge.name for edge in PIPELINE.outputs(role))
            sampling = stage.facts.default_sampling.with_request(wanted[role])
            stage.engine.admit(key, SegmentSettings("", sampling, edges))
        tensors = to_tensors(conversation(("user", question)))
        ends = InputChunk("input", 0, tensors, True, FinishReason.STOP)
        self._stages[THINKER].engine.accept(key, ends)
        return key

    def _take(self, replies: dict[SegmentKey, _Reply], event: object) -> None:
        """Pass output to the next engine, and record when audio arrives."""
        if isinstance(event, Failed):
            raise event.error
        if not isinstance(event, Emitted):
            return
        reply = replies[event.key]
        for piece in reply.outlets[event.edge].push(
            event.position, event.tensors, event.finish_reason
        ):
            ends = piece.finish_reason is not None
            chunk = InputChunk(event.edge, piece.position, piece.tensors, ends, piece.finish_reason)
            for role in PIPELINE.edge(event.edge).consumers:
                if role in self._stages:
                    self._stages[role].engine.accept(event.key, chunk)
        now_s = time.perf_counter() - self._started
        if event.edge == "audio":
            reply.first_audio_s = reply.first_audio_s or now_s
        if event.finish_reason is not None:
            reply.open_edges.discard(event.edge)
            reply.total_s = now_s


def _outlets() -> dict[str, OutputEdge]:
    """Return an output edge for each edge of the pipeline, as in a stage."""
    return {
        edge.name: OutputEdge(edge, edge.delivery, PIPELINE.chunk_policy)
        for role in (THINKER, TALKER, CODE2WAV)
        for edge in PIPELINE.outputs(role)
    }
