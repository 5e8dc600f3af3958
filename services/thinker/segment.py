"""A segment of the thinker, and what of it leaves on which edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import torch

from antiphon.chunk import Tensor, Tensors
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, SegmentSettings
from antiphon.segment import FinishReason, SegmentKey
from services.thinker.generation import Generation
from services.thinker.stopping import Release

INPUT, PROMPT, TEXT, TOKENS = "input", "prompt", "text", "tokens"


@dataclass(slots=True)
class Segment:
    """One segment's state; `generation` is there once its input was prepared.

    `spoken` counts the ids that left on `tokens`.
    """

    key: SegmentKey
    settings: SegmentSettings
    tensors: Tensors = field(default_factory=dict)
    input_finished: bool = False
    ended: bool = False
    generation: Generation | None = None
    spoken: int = 0

    @property
    def can_step(self) -> bool:
        """Whether the input is complete and the reply is not."""
        return self.input_finished and not self.ended

    def wants(self, edge: str) -> bool:
        """Whether an output edge goes anywhere."""
        return edge in self.settings.outputs

    def emit_prompt(self, generation: Generation) -> Iterator[EngineEvent]:
        """The prompt's ids, before anything of it was computed."""
        if self.wants(PROMPT):
            finish = None if len(generation.row_positions) else FinishReason.STOP
            yield Emitted(self.key, PROMPT, 0, {"ids": generation.prompt.ids}, finish)

    def emit_rows(self, generation: Generation) -> Iterator[EngineEvent]:
        """The hidden rows that the talker needs, if there are any."""
        if self.wants(PROMPT) and len(generation.row_positions):
            tapped = generation.tapped()
            rows: Tensors = {
                "rows": _to_numpy(tapped.rows),
                "row_positions": tapped.positions.astype(np.int32),
            }
            sent = len(generation.prompt.ids)
            yield Emitted(self.key, PROMPT, sent, rows, FinishReason.STOP)

    def emit_reply(self, generation: Generation, release: Release) -> Iterator[EngineEvent]:
        """The latest id with the text that it completes, and the ids that may be spoken now."""
        reply = generation.reply
        if self.wants(TEXT):
            tensors: Tensors = {
                "ids": np.array(reply.ids[-1:], dtype=np.int32),
                "utf8": np.frombuffer(release.text.encode(), dtype=np.uint8),
            }
            yield Emitted(self.key, TEXT, len(reply.ids) - 1, tensors, release.finish)
        if self.wants(TOKENS) and (release.spoken or release.finish):
            spoken: Tensors = {}
            if release.spoken:
                spoken = {"ids": np.array(release.spoken, dtype=np.int32)}
            yield Emitted(self.key, TOKENS, self.spoken, spoken, release.finish)
            self.spoken += len(release.spoken)
        if release.finish is not None:
            yield self._completed(generation, release.finish)

    def _completed(self, generation: Generation, finish: FinishReason) -> Completed:
        """What the segment took and gave."""
        return Completed(
            self.key,
            finish,
            input_positions=len(generation.prompt.ids),
            output_positions=len(generation.reply.ids),
            input_audio_positions=generation.prompt.audio_positions,
            input_cached_positions=generation.reused,
        )


def _to_numpy(tensor: torch.Tensor) -> Tensor:
    """The tensor's values on the host, in its own dtype; numpy lacks bfloat16."""
    host = tensor.cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()
