"""A thinker segment and its output on each edge. All engines use this module."""

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


@dataclass(frozen=True, slots=True)
class ReplyCodes:
    """The codes in a reply, which are the IDs from `first` onwards. They are sent on `edge` in
    order.

    If a reply isn't spoken, it ends with a different ID.
    """

    edge: str
    first: int
    unspoken_stop_id: int


class ReplyAnswer(Protocol):
    """The parts of a prompt and its reply that are needed for output."""

    @property
    def prompt(self) -> PreparedPrompt:
        """The prompt."""

    @property
    def reply(self) -> ReplyText:
        """The reply so far."""

    @property
    def row_positions(self) -> Positions:
        """The prompt positions whose hidden rows the talker needs, in ascending order."""

    @property
    def reply_rows(self) -> ReplyRows | None:
        """The rows of the reply, or None if the talker doesn't need them."""

    @property
    def reused(self) -> int:
        """The number of prompt positions that didn't have to be computed again."""


G = TypeVar("G", bound=ReplyAnswer)


@dataclass(slots=True)
class ThinkerSegment(Generic[G]):
    """The state of one segment. `generation` is set once its input has been prepared.

    If `every_row` is true, the talker reads a row for every position of the prompt and the reply,
    instead of the reply IDs. `preparation` is set while the prompt, or another part of it, is being
    prepared. `live_input` is only set for live segments. `spoken` is the number of IDs or rows sent
    on `tokens`, and `called` is the number of call pieces sent. `logprobs` is set if the client
    requests log probabilities.
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
    speech: ReplyCodes | None = None

    @property
    def can_step(self) -> bool:
        """Whether the input is complete but the reply isn't."""
        return self.input_finished and not self.ended

    @contextlib.contextmanager
    def alone(self, events: list[EngineEvent], let_go: Callable[[], None]) -> Iterator[None]:
        """Return a context manager in which an exception fails only this segment. `let_go` frees
        the segment's resources.
        """

        def end() -> None:
            self.ended = True
            let_go()

        with alone(self.key, events, end):
            yield

    def wants(self, edge: str) -> bool:
        """Return whether the output edge is connected."""
        return edge in self.settings.outputs

    def wants_rows(self, generation: G) -> bool:
        """Return whether the prompt's hidden rows are needed."""
        return self.wants(PROMPT) and len(generation.row_positions) > 0

    @property
    def wants_reply_rows(self) -> bool:
        """Whether the reply's hidden rows are needed."""
        return self.every_row and self.wants(TOKENS)

    def emit_prompt(self, generation: G) -> Iterator[EngineEvent]:
        """Yield the prompt IDs, which are sent before computation starts."""
        if self.wants(PROMPT):
            finish = None if len(generation.row_positions) else FinishReason.STOP
            yield Emitted(self.key, PROMPT, 0, generation.prompt.tensors(), finish)

    def emit_heard(
        self, ids: npt.NDArray[np.int32], start: int, *, more: bool, whole: bool
    ) -> EngineEvent:
        """Return an event with the prompt IDs from `start` onwards.

        This ends the edge if `more` is false and all rows have been sent (`whole`).
        """
        tensors: Tensors = {"ids": ids[start:]}
        if more:
            tensors = {**tensors, "more_ids": np.ones(1, np.uint8)}
        return Emitted(self.key, PROMPT, start, tensors, FinishReason.STOP if whole else None)

    def emit_rows(
        self, generation: G, rows: Tensor, positions: Positions, *, last: bool
    ) -> EngineEvent:
        """Return an event with hidden rows [n, hidden] for ascending prompt positions [n]. If
        `last` is true, it ends the edge.
        """
        finish = FinishReason.STOP if last else None
        if self.every_row:
            return Emitted(self.key, PROMPT, int(positions[0]), {"rows": rows}, finish)
        tensors: Tensors = {"rows": rows, "row_positions": positions.astype(np.int32)}
        return Emitted(self.key, PROMPT, len(generation.prompt.heard_ids), tensors, finish)

    def emit_reply(self, generation: G, release: ReleasedText) -> Iterator[EngineEvent]:
        """Yield the latest ID with its text, the IDs that may now be spoken, and any pieces of
        function calls.
        """
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
        if self.speech is not None and self.wants(self.speech.edge):
            yield from self._emit_codes(self.speech, reply, release)
        if self.wants(TOOL_CALLS) and (release.calls or release.finish):
            calls = call_pieces_to_tensors(release.calls)
            yield Emitted(self.key, TOOL_CALLS, self.called, calls, release.finish)
            self.called += len(release.calls)

    def _emit_codes(
        self, speech: ReplyCodes, reply: ReplyText, release: ReleasedText
    ) -> Iterator[EngineEvent]:
        """Yield the codes among the released IDs. If the reply ends because of a length limit, this
        includes the last code.
        """
        ids = list(release.spoken)
        if release.finish is FinishReason.LENGTH:
            ids.append(reply.ids[-1])
        codes = np.array([each - speech.first for each in ids if each >= speech.first], np.uint16)
        if len(codes) or release.speech_finish:
            tensors: Tensors = {speech.edge: codes[:, None]} if len(codes) else {}
            yield Emitted(self.key, speech.edge, self.spoken, tensors, release.speech_finish)
            self.spoken += len(codes)

    def emit_reply_rows(self, rows: ReplyRows) -> Iterator[EngineEvent]:
        """Yield the reply rows that may be sent now."""
        leaving, finish = rows.leave()
        if leaving or finish:
            tensors: Tensors = {"rows": np.stack(leaving)} if leaving else {}
            yield Emitted(self.key, TOKENS, self.spoken, tensors, finish)
            self.spoken += len(leaving)

    def complete(self, generation: G, finish: FinishReason) -> Completed:
        """End the segment and return its counts."""
        self.ended = True
        return self.cost(finish, generation)

    def so_far(self) -> Completed:
        """Return the counts of a segment that is being cancelled."""
        reason = FinishReason.CANCELLED
        if self.generation is None:
            return Completed(self.key, reason, 0, 0)
        return self.cost(reason, self.generation)

    def cost(self, finish: FinishReason, generation: G) -> Completed:
        """Return the segment's counts."""
        return Completed(
            self.key,
            finish,
            input_positions=len(generation.prompt.ids),
            output_positions=len(generation.reply.ids),
            input_audio_positions=generation.prompt.audio_positions,
            input_image_positions=generation.prompt.image_positions,
            input_cached_positions=generation.reused,
        )
