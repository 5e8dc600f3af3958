"""The `torch` engine of the thinker: prompt, prefill and decoding of many segments.

A segment goes through three kinds of step, one per call of `Engine.step`:
- prepare: the conversation becomes prompt ids, which leave on `prompt` at once, so
  that the talker prefills while the thinker does;
- prefill: hidden rows leave on `prompt`, and the first id is sampled;
- decode: one more id.
What of the sampled ids may leave on `text` and `tokens` is `Reply`'s to say. A fault
in a step fails its segment alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from antiphon.chunk import Tensor, Tensors
from antiphon.conversation import from_tensors
from antiphon.errors import AntiphonError, Internal, InvalidArgument
from antiphon.pipelines.qwen3_omni import talker_row_positions
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.sampler import choose
from antiphon.segment import FinishReason, SegmentKey
from services.thinker import model as thinker
from services.thinker.detokenizer import Detokenizer, Vocabulary
from services.thinker.prompt import PreparedPrompt, PromptFactory
from services.thinker.stopping import Release, Reply

INPUT, PROMPT, TEXT, TOKENS = "input", "prompt", "text", "tokens"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Generation:
    """A segment's prompt and reply; `sequence` is there once the prompt was prefilled.

    `row_positions` are the prompt positions whose hidden rows go to the talker,
    `spoken` counts the ids that left on `tokens`.
    """

    prompt: PreparedPrompt
    row_positions: npt.NDArray[np.intp]
    reply: Reply
    sequence: thinker.Sequence | None = None
    spoken: int = 0


@dataclass(slots=True)
class _Segment:
    """One segment's state; `generation` is there once its input was prepared."""

    key: SegmentKey
    settings: SegmentSettings
    tensors: Tensors = field(default_factory=dict)
    input_finished: bool = False
    ended: bool = False
    generation: _Generation | None = None

    @property
    def can_step(self) -> bool:
        """Whether the input is complete and the reply is not."""
        return self.input_finished and not self.ended

    def wants(self, edge: str) -> bool:
        """Whether an output edge goes anywhere."""
        return edge in self.settings.outputs


class ThinkerEngine:
    """Implements `antiphon.runtime.engine.Engine` on Hugging Face's modules."""

    def __init__(
        self,
        model: thinker.ThinkerModel,
        prompts: PromptFactory,
        vocabulary: Vocabulary,
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._vocabulary = vocabulary
        self._segments: dict[SegmentKey, _Segment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in."""
        self._segments[key] = _Segment(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the conversation, which comes in one chunk. Raises `InvalidArgument`."""
        segment = self._segments[key]
        if chunk.edge != INPUT:
            raise InvalidArgument(f"the thinker has no input edge {chunk.edge!r}", edge=chunk.edge)
        if chunk.tensors and segment.tensors:
            raise InvalidArgument("input: the conversation comes in one chunk", field="messages")
        segment.tensors = chunk.tensors or segment.tensors
        segment.input_finished = chunk.segment_finished

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`input` until the conversation is complete."""
        return None if self._segments[key].can_step else INPUT

    def step(self) -> Sequence[EngineEvent]:
        """Take every segment one step further."""
        events: list[EngineEvent] = []
        for segment in self._segments.values():
            if segment.can_step:
                events += self._advance(segment)
        return events

    def release(self, key: SegmentKey) -> None:
        """Forget a segment, and with it its keys and values."""
        del self._segments[key]

    def _advance(self, segment: _Segment) -> Sequence[EngineEvent]:
        """One step of one segment; a fault becomes a `Failed`."""
        try:
            if segment.generation is None:
                return list(self._prepare(segment))
            if segment.generation.sequence is None:
                return list(self._prefill(segment, segment.generation))
            return list(self._decode(segment, segment.generation, segment.generation.sequence))
        except AntiphonError as error:
            fault = error
        except Exception as error:
            _log.exception("%s: the thinker failed", segment.key)
            fault = Internal(f"the thinker failed: {type(error).__name__}: {error}")
        segment.ended = True
        return [Failed(segment.key, fault)]

    def _prepare(self, segment: _Segment) -> Iterator[EngineEvent]:
        """Make the prompt and let its ids go."""
        speaks = segment.wants(PROMPT) or segment.wants(TOKENS)
        prompt = self._prompts.prepare(from_tensors(segment.tensors), speaks=speaks)
        segment.tensors = {}
        rows = np.empty(0, dtype=np.intp)
        if segment.wants(PROMPT):
            rows = talker_row_positions(prompt.ids, self._prompts.special)
            finish = None if len(rows) else FinishReason.STOP
            yield Emitted(segment.key, PROMPT, 0, {"ids": prompt.ids}, finish)
        segment.generation = _Generation(prompt, rows, self._start_reply(segment, prompt))

    def _start_reply(self, segment: _Segment, prompt: PreparedPrompt) -> Reply:
        """An empty reply with the segment's ways to end."""
        sampling = segment.settings.sampling
        return Reply(
            Detokenizer(self._vocabulary),
            stop_ids=frozenset({self._prompts.special.im_end}),
            stop_strings=sampling.stop,
            limit=min(sampling.max_tokens, self._prompts.context_limit - len(prompt.ids)),
        )

    def _prefill(self, segment: _Segment, generation: _Generation) -> Iterator[EngineEvent]:
        """Run the prompt, let the talker's hidden rows go and sample the first id."""
        positions = generation.row_positions
        prefilled = self._model.prefill(generation.prompt, positions)
        generation.sequence = prefilled.sequence
        if len(positions):
            rows: Tensors = {
                "rows": _to_numpy(prefilled.rows),
                "row_positions": positions.astype(np.int32),
            }
            sent = len(generation.prompt.ids)
            yield Emitted(segment.key, PROMPT, sent, rows, FinishReason.STOP)
        yield from self._sample(segment, generation, prefilled.logits)

    def _decode(
        self, segment: _Segment, generation: _Generation, sequence: thinker.Sequence
    ) -> Iterator[EngineEvent]:
        """Feed the latest id and sample the next."""
        logits = self._model.decode(sequence, generation.reply.ids[-1])
        yield from self._sample(segment, generation, logits)

    def _sample(
        self, segment: _Segment, generation: _Generation, logits: torch.Tensor
    ) -> Iterator[EngineEvent]:
        """Choose an id and let go what may go."""
        prompt, reply = generation.prompt, generation.reply
        sampling = segment.settings.sampling
        history = None
        if sampling.repetition_penalty != 1.0:
            history = torch.tensor([*prompt.ids.tolist(), *reply.ids], device=logits.device)
        release = reply.push(choose(logits, sampling, step=len(reply.ids), history=history))
        yield from _emit(segment, generation, release)
        if release.finish is not None:
            segment.ended = True
            yield Completed(
                segment.key,
                release.finish,
                input_positions=len(prompt.ids),
                output_positions=len(reply.ids),
                input_audio_positions=prompt.audio_positions,
            )


def _emit(segment: _Segment, generation: _Generation, release: Release) -> Iterator[EngineEvent]:
    """The latest id with the text that it completes, and the ids that may be spoken now."""
    reply = generation.reply
    if segment.wants(TEXT):
        tensors: Tensors = {
            "ids": np.array(reply.ids[-1:], dtype=np.int32),
            "utf8": np.frombuffer(release.text.encode(), dtype=np.uint8),
        }
        yield Emitted(segment.key, TEXT, len(reply.ids) - 1, tensors, release.finish)
    if segment.wants(TOKENS) and (release.spoken or release.finish):
        spoken: Tensors = {}
        if release.spoken:
            spoken = {"ids": np.array(release.spoken, dtype=np.int32)}
        yield Emitted(segment.key, TOKENS, generation.spoken, spoken, release.finish)
        generation.spoken += len(release.spoken)


def _to_numpy(tensor: torch.Tensor) -> Tensor:
    """The tensor's values on the host, in its own dtype; numpy lacks bfloat16."""
    host = tensor.cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()
