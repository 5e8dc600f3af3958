"""The `vllm` engine of the thinker: segments on this side, vLLM's requests on the other.

Prompts, stopping, detokenising and what leaves on which edge are those of the torch
engine, and prompts are made beside the engine's thread as there. A step waits until
something has come: a prompt, whose ids leave at once and which goes to vLLM, ids, hidden
rows, an end. Rows travel beside the ids and may come later than they, so a segment ends when
its reply and its rows have.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.segment import SegmentKey
from services.preparation import Preparations
from services.thinker.intake import PromptIntake
from services.thinker.listening import HeardPrompt
from services.thinker.prompt import PreparedPrompt
from services.thinker.reply_rows import ReplyRows
from services.thinker.segment import INPUT
from services.thinker.segment import ThinkerSegment as AnySegment
from services.thinker.vllm_engine.generation import VllmGeneration
from services.thinker.vllm_engine.prompt_check import PromptCheck
from services.thinker.vllm_engine.prompt_media import PromptMedia
from services.vllm.mailbox import (
    Ended,
    FromVllm,
    Mailbox,
    Prepared,
    Rows,
    Tokens,
)
from services.vllm.order import VllmOrder
from services.vllm.scores import scores_at

ROWS_TIMEOUT_S = 10.0
"""Longest wait for hidden rows once the reply has ended."""

Segment = AnySegment[VllmGeneration]


class Host(Protocol):
    """Who carries orders out; `services.vllm.host.VllmHost`."""

    def check_up(self) -> None:
        """Raise `Unavailable` while vLLM is down."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """See `DetachedEngine.watch`."""

    def submit(self, order: VllmOrder) -> None:
        """Carry an order out; what comes of it goes to the mailbox."""

    def cancel(self, number: int) -> None:
        """Stop an order, if it still runs."""


class VllmThinkerEngine:
    """Implements `antiphon.runtime.engine.DetachedEngine`."""

    def __init__(
        self,
        intake: PromptIntake,
        check: PromptCheck,
        host: Host,
        mailbox: Mailbox,
        *,
        close: Callable[[], None],
    ) -> None:
        """`host` is started; `close` ends everything behind the engine."""
        self._intake = intake
        self._check = check
        self._host = host
        self._mailbox = mailbox
        self._close = close
        self._preparations: Preparations[PreparedPrompt | HeardPrompt] = Preparations()
        self._numbers = itertools.count()
        self._segments: dict[SegmentKey, Segment] = {}
        self._by_number: dict[int, Segment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in. Raises `Unavailable` while vLLM is down."""
        self._host.check_up()
        self._segments[key] = Segment(key, settings, self._intake.every_row)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the conversation, which comes in one chunk. Raises `InvalidArgument`."""
        segment = self._segments[key]
        self._intake.store(segment, chunk)
        if segment.can_step:
            done = partial(self._mailbox.put, Prepared(key))
            self._intake.begin(segment, self._preparations, done)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`input` until the conversation is complete."""
        return None if self._segments[key].can_step else INPUT

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Take what has come; wait when there is nothing.

        No edge of the thinker is governed, so `held` is empty.
        """
        events: list[EngineEvent] = []
        for delivery in self._mailbox.take(self._patience_s()):
            if isinstance(delivery, Prepared):
                self._begin(delivery.key, events)
            elif (segment := self._by_number.get(delivery.number)) is not None:
                with self._alone(segment, events):
                    self._take(delivery, segment, events)
        for segment in self._overdue(time.monotonic()):
            with self._alone(segment, events):
                raise Internal(f"hidden rows did not come within {ROWS_TIMEOUT_S:g} s")
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """What the segment has cost until now."""
        return self._segments[key].so_far()

    def release(self, key: SegmentKey) -> None:
        """Forget a segment and abort what vLLM still does for it."""
        self._preparations.drop(key)
        self._stop(self._segments.pop(key))

    def interrupt(self) -> None:
        """Make a waiting step return."""
        self._mailbox.interrupt()

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Tell when vLLM goes down and when it is up."""
        self._host.watch(changed)

    def close(self) -> None:
        """End vLLM's processes."""
        self._preparations.close()
        self._close()

    def _alone(
        self, segment: Segment, events: list[EngineEvent]
    ) -> contextlib.AbstractContextManager[None]:
        """What goes wrong inside fails this segment and no other."""
        return segment.alone(events, lambda: self._stop(segment))

    def _begin(self, key: SegmentKey, events: list[EngineEvent]) -> None:
        """Go on with a prompt that was made, if its segment is still here."""
        segment = self._segments.get(key)
        if segment is not None and segment.preparation is not None:
            prompt, segment.preparation = segment.preparation, None
            with self._alone(segment, events):
                made = prompt.result()
                assert isinstance(made, PreparedPrompt)
                self._order(segment, made, events)

    def _order(self, segment: Segment, prompt: PreparedPrompt, events: list[EngineEvent]) -> None:
        """Let the prompt's ids go, and hand it to vLLM."""
        short = self._check.short_ids(prompt)
        reply = self._intake.start_reply(segment, prompt)
        positions = self._intake.row_positions(prompt.heard_ids)
        number = next(self._numbers)
        generation = VllmGeneration(number, prompt, reply, positions, rows_due=0)
        segment.generation = generation
        if segment.wants_rows(generation):
            generation.rows_due = len(positions)
        if segment.wants_reply_rows:
            generation.reply_rows = ReplyRows()
        order = VllmOrder(
            number,
            short,
            PromptMedia(prompt.audio, prompt.visuals),
            positions[: generation.rows_due],
            segment.settings.sampling,
            self._intake.stop_id,
            reply.limit,
            len(prompt.ids) if generation.reply_rows is not None else None,
        )
        events += segment.emit_prompt(generation)
        self._by_number[number] = segment
        self._host.submit(order)

    def _take(self, delivery: FromVllm, segment: Segment, events: list[EngineEvent]) -> None:
        """What one delivery makes of its segment."""
        generation = segment.generation
        if generation is None:
            return
        match delivery:
            case Tokens():
                self._take_ids(delivery, segment, generation, events)
            case Rows(_, start, rows) if start < len(generation.prompt.ids):
                positions = generation.take_rows(start, rows)
                last = not generation.rows_due
                events.append(segment.emit_rows(generation, rows, positions, last=last))
            case Rows(_, start, rows) if generation.reply_rows is not None:
                generation.reply_rows.come(start - len(generation.prompt.ids), rows)
                events += segment.emit_reply_rows(generation.reply_rows)
            case Ended(_, error):
                raise error
        if generation.complete and generation.finish is not None:
            events.append(segment.complete(generation, generation.finish))
            self._stop(segment)

    def _take_ids(
        self,
        tokens: Tokens,
        segment: Segment,
        generation: VllmGeneration,
        events: list[EngineEvent],
    ) -> None:
        """Push the next ids; those behind the reply's end are nobody's."""
        if tokens.prompt_ids is not None:
            generation.reused = tokens.cached
            if not np.array_equal(tokens.prompt_ids, generation.prompt.ids):
                raise Internal("vLLM has made another prompt of the conversation")
        for at, id_ in enumerate(tokens.ids):
            if generation.finish is not None:
                return
            if segment.logprobs is not None:
                top = segment.logprobs.top
                segment.logprobs.push(*scores_at(tokens.scores, at, tokens.ids, top))
            release = generation.reply.push(id_)
            generation.finish = release.finish
            events += segment.emit_reply(generation, release)
            if generation.reply_rows is not None:
                generation.reply_rows.release(release)
                events += segment.emit_reply_rows(generation.reply_rows)
        if generation.finish is not None:
            generation.overdue_at = time.monotonic() + ROWS_TIMEOUT_S
            self._host.cancel(generation.number)
        elif tokens.finished:
            raise Internal(f"vLLM ended the reply early, after {len(generation.reply.ids)} ids")

    def _patience_s(self) -> float | None:
        """How long a step may wait: until the next rows are overdue; None: for ever."""
        ends = [each.overdue_at for each in self._begun() if each.overdue_at is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _overdue(self, now: float) -> list[Segment]:
        """Segments that have waited for rows long enough."""
        late = [each for each in self._begun() if (each.overdue_at or math.inf) <= now]
        return [self._by_number[each.number] for each in late]

    def _begun(self) -> list[VllmGeneration]:
        begun = (each.generation for each in self._by_number.values())
        return [each for each in begun if each is not None]

    def _stop(self, segment: Segment) -> None:
        """Let go of a segment's request. May be called again."""
        generation = segment.generation
        if generation is not None and self._by_number.pop(generation.number, None) is not None:
            self._host.cancel(generation.number)
