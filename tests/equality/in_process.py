"""All stages of a pipeline in this process, one after the other: what the services would answer.

For checkpoints of which many are compared, each once; the services themselves are compared by the
other tests of this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon.runtime.engine import Emitted, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import Conversation, to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.drive_engine import SegmentOutput, run_segment


@dataclass(slots=True)
class Answered:
    """What each stage made, by edge."""

    outputs: dict[str, SegmentOutput] = field(default_factory=dict)

    def tensor(self, edge: str, name: str) -> Tensor:
        """All of a tensor of an edge; without elements where nothing came."""
        return self.outputs[edge].tensors(edge).get(name, np.empty(0))


class Stages:
    """The stages of a checkpoint (all, or those of some roles), as `configs` says."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: Path,
        configs: Mapping[str, StageConfig] | None = None,
        *,
        roles: Sequence[str] = (),
    ) -> None:
        given = configs or {}
        self._pipeline = pipeline
        self.loaded = {
            role: load_stage(pipeline, role, directory, given.get(role, StageConfig(slots=1)))
            for role in roles or pipeline.roles
        }

    def answer(self, conversation: Conversation, voice: str, limits: Mapping[str, int]) -> Answered:
        """A greedy answer; `limits` are the most draws of each stage that draws."""
        answered = Answered()
        for role, stage in self.loaded.items():
            chunks = []
            for edge in self._pipeline.edges:
                if role not in edge.consumers:
                    continue
                if edge.producer == CLIENT:
                    tensors = to_tensors(conversation)
                    chunks.append(InputChunk(edge.name, 0, tensors, True, FinishReason.STOP))
                    continue
                emitted = answered.outputs[edge.name].emitted
                chunks += [_taken(each) for each in emitted if each.edge == edge.name]
            made = [edge.name for edge in self._pipeline.edges if edge.producer == role]
            penalty = 1.0 if role == "thinker" else 1.05
            sampling = Sampling(0.0, 50, 1.0, penalty, seed=0, max_tokens=limits.get(role, 1))
            output = run_segment(
                stage.engine, SegmentSettings(voice, sampling, frozenset(made)), chunks
            )
            assert output.failed is None, (role, output.failed)
            assert output.completed is not None
            answered.outputs |= dict.fromkeys(made, output)
        return answered


def changed(changes: Mapping[str, Mapping[str, Any]]) -> Callable[[Any], None]:
    """What makes the changes in a configuration, by the path of the object.

    Those of an object that a field holds are added to what it holds.
    """

    def configure(config: Any) -> None:
        for path, values in changes.items():
            part = config
            for name in path.split("."):
                part = getattr(part, name)
            for name, value in values.items():
                held = getattr(part, name, None)
                merged = {**held, **value} if isinstance(value, dict) and held else value
                setattr(part, name, merged)

    return configure


def _taken(each: Emitted) -> InputChunk:
    """What was emitted, as the consumer gets it."""
    return InputChunk(
        each.edge,
        each.position,
        each.tensors,
        segment_finished=each.finish_reason is not None,
        finish_reason=each.finish_reason,
        prime=each.prime,
    )
