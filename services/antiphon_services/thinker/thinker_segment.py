"""A segment of the thinker, and what of it leaves on which edge: the same for every engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.runtime.engine import Completed, Emitted, EngineEvent, SegmentSettings
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_to_tensors
from antiphon.wire.tool_calls import call_pieces_to_tensors
from antiphon_services.stage.isolation import alone
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReleasedText, ReplyText
from antiphon_services.thinker.listening import HeardPrompt, LiveInput
from antiphon_services.thinker.prompt import PreparedPrompt
from antiphon_services.thinker.reply_rows import ReplyRows

Positions = npt.NDArray[np.intp]

INPUT, PROMPT, TEXT, TOKENS = "input", "prompt", "text", "tokens"
TOOL_CALLS = "tool_calls"


class ReplyAnswer(Protocol):
    """A prompt and the reply to it, as far as they leave."""

    @property
    def prompt(self) -> PreparedPrompt:
        """What is answered."""

    @property
    def reply(self) -> ReplyText:
        """The ids so far."""

    @property
    def row_positions(self) -> Positions:
        """Prompt positions whose hidden row the talker needs, ascending."""

    @property
    def reply_rows(self) -> ReplyRows | None:
        """Those of the reply's ids, which must be there where they are wanted."""

    @property
    def reused(self) -> int:
        """How many positions of the prompt were not computed anew."""


G = TypeVar("G", bound=ReplyAnswer)


@dataclass(slots=True)
class ThinkerSegment(Generic[G]):
    """One segment's state; `generation` is there once its input was prepared.

    With `every_row` the talker reads a row of every position, also of the reply's, and no ids of
    it. `preparation` is the prompt, or more of it, while it is being made; `live_input` is there in
    a live segment. `spoken` counts the ids, or rows, that left on `tokens`, and `called` the pieces
    of calls; `logprobs` is there if they are asked for.
    """

    key: SegmentKey
    settings: SegmentSettings
    every_row: bool = False
    tensors: Tensors = field(default_factory=dict)
    input_finished: bool = False
    ended: bool = False
    preparation: Future[PreparedPrompt | HeardPrompt] | None = None
    live_input: LiveInput | None = None
    generation: G | None = None
    spoken: int = 0
    called: int = 0
    logprobs: ReplyLogprobs | None = None

    @property
    def can_step(self) -> bool:
        """Whether the input is complete and the reply is not."""
        return self.input_finished and not self.ended

    @contextlib.contextmanager
    def alone(self, events: list[EngineEvent], let_go: Callable[[], None]) -> Iterator[None]:
        """What goes wrong inside fails this segment and no other; `let_go` frees what it holds."""

        def end() -> None:
            self.ended = True
            let_go()

        with alone(self.key, events, end):
            yield

    def wants(self, edge: str) -> bool:
        """Whether an output edge goes anywhere."""
        return edge in self.settings.outputs

    def wants_rows(self, generation: G) -> bool:
        """Whether anyone needs hidden rows of the prompt."""
        return self.wants(PROMPT) and len(generation.row_positions) > 0

    @property
    def wants_reply_rows(self) -> bool:
        """Whether anyone needs hidden rows of the reply."""
        return self.every_row and self.wants(TOKENS)

    def emit_prompt(self, generation: G) -> Iterator[EngineEvent]:
        """The prompt's ids, before anything of it was computed."""
        if self.wants(PROMPT):
            finish = None if len(generation.row_positions) else FinishReason.STOP
            yield Emitted(self.key, PROMPT, 0, generation.prompt.tensors(), finish)

    def emit_heard(
        self, ids: npt.NDArray[np.int32], start: int, *, more: bool, whole: bool
    ) -> EngineEvent:
        """The prompt's ids from `start` on. If there are no `more` and all rows have left, it is
        `whole`."""
        tensors: Tensors = {"ids": ids[start:]}
        if more:
            tensors = {**tensors, "more_ids": np.ones(1, np.uint8)}
        return Emitted(self.key, PROMPT, start, tensors, FinishReason.STOP if whole else None)

    def emit_rows(
        self, generation: G, rows: Tensor, positions: Positions, *, last: bool
    ) -> EngineEvent:
        """Hidden rows [n, hidden] at ascending prompt positions [n]; `last` if no more come."""
        finish = FinishReason.STOP if last else None
        if self.every_row:
            return Emitted(self.key, PROMPT, int(positions[0]), {"rows": rows}, finish)
        tensors: Tensors = {"rows": rows, "row_positions": positions.astype(np.int32)}
        return Emitted(self.key, PROMPT, len(generation.prompt.heard_ids), tensors, finish)

    def emit_reply(self, generation: G, release: ReleasedText) -> Iterator[EngineEvent]:
        """The latest id with the text that it completes, the ids that may be spoken now, and the
        pieces of calls that it lets go."""
        reply = generation.reply
        if self.wants(TEXT):
            tensors: Tensors = {
                "ids": np.array(reply.ids[-1:], dtype=np.int32),
                "utf8": np.frombuffer(release.text.encode(), dtype=np.uint8),
            }
            if self.logprobs is not None:
                tensors = {**tensors, **logprobs_to_tensors(self.logprobs.release(release.text))}
            yield Emitted(self.key, TEXT, len(reply.ids) - 1, tensors, release.finish)
        if self.wants(TOKENS) and not self.every_row and (release.spoken or release.speech_finish):
            spoken: Tensors = {}
            if release.spoken:
                spoken = {"ids": np.array(release.spoken, dtype=np.int32)}
            yield Emitted(self.key, TOKENS, self.spoken, spoken, release.speech_finish)
            self.spoken += len(release.spoken)
        if self.wants(TOOL_CALLS) and (release.calls or release.finish):
            calls = call_pieces_to_tensors(release.calls)
            yield Emitted(self.key, TOOL_CALLS, self.called, calls, release.finish)
            self.called += len(release.calls)

    def emit_reply_rows(self, rows: ReplyRows) -> Iterator[EngineEvent]:
        """The rows of the reply that may leave now."""
        leaving, finish = rows.leave()
        if leaving or finish:
            tensors: Tensors = {"rows": np.stack(leaving)} if leaving else {}
            yield Emitted(self.key, TOKENS, self.spoken, tensors, finish)
            self.spoken += len(leaving)

    def complete(self, generation: G, finish: FinishReason) -> Completed:
        """Ends the segment: what it took and gave."""
        self.ended = True
        return self.cost(finish, generation)

    def so_far(self) -> Completed:
        """What it has taken and given until it is cancelled, which is now."""
        reason = FinishReason.CANCELLED
        if self.generation is None:
            return Completed(self.key, reason, 0, 0)
        return self.cost(reason, self.generation)

    def cost(self, finish: FinishReason, generation: G) -> Completed:
        """What it took and gave."""
        return Completed(
            self.key,
            finish,
            input_positions=len(generation.prompt.ids),
            output_positions=len(generation.reply.ids),
            input_audio_positions=generation.prompt.audio_positions,
            input_image_positions=generation.prompt.image_positions,
            input_cached_positions=generation.reused,
        )
