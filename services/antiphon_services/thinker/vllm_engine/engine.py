"""The thinker's `vllm` engine. The stage manages segments, and vLLM processes the requests.

Prompts, stop conditions, detokenization and the output on each edge are the same as in the torch
engine, and prompts are prepared on worker threads here as well. A step waits for a delivery, which
is either a prepared prompt or a result from vLLM: IDs, hidden rows, or the end of a request. When a
prompt has been prepared, its IDs are sent immediately, and the prompt is submitted to vLLM. Rows
are delivered separately from IDs and may arrive later, so a segment only ends when both its reply
and its rows are complete.

If a prompt grows, the longer prompt is submitted to vLLM as a new request. Each request leaves its
keys and values in vLLM's prefix cache for the next request to use. If a louder frame has changed
earlier features, only the part of the cache that precedes them can be used.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.preparation import Preparations
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.known_reply import check_history, known_ids, repeat_reply
from antiphon_services.thinker.listening import HeardPrompt
from antiphon_services.thinker.prompt import PreparedPrompt
from antiphon_services.thinker.reply_rows import ReplyRows
from antiphon_services.thinker.thinker_segment import INPUT, PROMPT
from antiphon_services.thinker.thinker_segment import ThinkerSegment as AnySegment
from antiphon_services.thinker.vllm_engine.generation import VllmGeneration
from antiphon_services.thinker.vllm_engine.prompt_check import PromptCheck
from antiphon_services.thinker.vllm_engine.prompt_media import PromptMedia
from antiphon_services.vllm.mailbox import (
    Ended,
    FromVllm,
    Mailbox,
    Prepared,
    Rows,
    Tokens,
)
from antiphon_services.vllm.order import VllmOrder
from antiphon_services.vllm.scores import scores_at

ROWS_TIMEOUT_S = 10.0
"""The maximum time, in seconds, to wait for hidden rows after the reply has ended."""

Segment = AnySegment[VllmGeneration]

_ANY = Sampling(0.0, 50, 1.0, 1.0, seed=0, max_tokens=1)


class Host(Protocol):
    """Runs orders. The implementation is `antiphon_services.vllm.host.VllmHost`."""

    def check_up(self) -> None:
        """Raise `Unavailable` if vLLM is down."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Set the function to call when the engine goes down and when it is available again."""

    def submit(self, order: VllmOrder) -> None:
        """Run an order. Its results are delivered to the mailbox."""

    def cancel(self, number: int) -> None:
        """Stop an order if it is running."""


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
        preparations: Preparations[PreparedPrompt | HeardPrompt] | None = None,
    ) -> None:
        """Create an engine. `host` must already have been started. `close` stops it and everything
        that it uses.
        """
        self._intake = intake
        self._check = check
        self._host = host
        self._mailbox = mailbox
        self._close = close
        self._preparations = preparations or Preparations[PreparedPrompt | HeardPrompt]()
        self._numbers = itertools.count()
        self._segments: dict[SegmentKey, Segment] = {}
        self._by_number: dict[int, Segment] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment.

        Raises `Unavailable` if vLLM is down, and `InvalidArgument` if the history is invalid.
        """
        self._host.check_up()
        segment = Segment(key, settings, self._intake.every_row)
        check_history(segment, self._check.vocabulary)
        self._segments[key] = segment

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the conversation, or a piece of it. Raises `InvalidArgument` if it is invalid."""
        segment = self._segments[key]
        self._intake.store(segment, chunk)
        self._prepare(segment)

    def _prepare(self, segment: Segment) -> None:
        done = partial(self._mailbox.put, Prepared(segment.key))
        self._intake.prepare(segment, self._preparations, done)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `input` if the segment can't make progress until more of the conversation arrives,
        or None otherwise.
        """
        segment = self._segments[key]
        works = segment.preparation is not None or _is_under_way(segment)
        return None if segment.can_step or (works and not segment.ended) else INPUT

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Process all deliveries, after waiting for one if there are none.

        The thinker doesn't have any governed edges, so `held` is always empty.
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
                raise Internal(f"hidden rows were not received within {ROWS_TIMEOUT_S:g} s")
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].so_far()

    def release(self, key: SegmentKey) -> None:
        """Remove a segment and abort its requests."""
        self._preparations.drop(key)
        self._stop(self._segments.pop(key))

    def interrupt(self) -> None:
        """Make a blocked step return."""
        self._mailbox.interrupt()

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Set the function to call when vLLM goes down and when it is available again."""
        self._host.watch(changed)

    def close(self) -> None:
        """Stop vLLM's processes."""
        self._preparations.close()
        self._close()

    def _alone(
        self, segment: Segment, events: list[EngineEvent]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which an exception fails only this segment."""
        return segment.alone(events, lambda: self._stop(segment))

    def _begin(self, key: SegmentKey, events: list[EngineEvent]) -> None:
        """Continue with a prompt that has been prepared or has grown, unless its segment has been
        removed.
        """
        segment = self._segments.get(key)
        if segment is None or segment.preparation is None:
            return
        prompt, segment.preparation = segment.preparation, None
        with self._alone(segment, events):
            made = prompt.result()
            if isinstance(made, HeardPrompt):
                self._hear(segment, made, events)
            else:
                generation = segment.generation = self._generation(segment, made)
                events += segment.emit_prompt(generation)
                generation.known = self._known(segment)
                events += repeat_reply(segment, generation, generation.known)
                self._order(segment, generation)
            self._prepare(segment)

    def _generation(self, segment: Segment, prompt: PreparedPrompt) -> VllmGeneration:
        generation = VllmGeneration(
            prompt,
            self._intake.start_reply(segment, prompt),
            self._intake.row_positions(prompt.heard_ids),
            self._intake.prompts.audio.windows(prompt.audio),
        )
        generation.wants_rows = segment.wants_rows(generation)
        if segment.wants_reply_rows:
            generation.reply_rows = ReplyRows()
        return generation

    def _known(self, segment: Segment) -> Sequence[int]:
        """Return the reply IDs that don't have to be sampled.

        With random sampling, all IDs must be sampled, because vLLM counts its draws from the start
        of a request. All IDs must also be sampled if there is a JSON schema.
        """
        sampling = segment.settings.sampling
        if not sampling.greedy or sampling.json_schema is not None:
            return ()
        return known_ids(segment, self._intake.prompts.special)

    def _hear(self, segment: Segment, heard: HeardPrompt, events: list[EngineEvent]) -> None:
        """Continue with a prompt that has grown and send its new IDs."""
        if segment.generation is None:
            segment.generation = self._generation(segment, heard.prompt)
        generation = segment.generation
        audio = self._intake.prompts.audio
        windows = [each for _, made in heard.windows for (each,) in audio.windows(made)]
        positions = self._intake.row_positions(heard.prompt.heard_ids)
        if generation.hear(heard, positions, windows):
            self._stop(segment)
        generation.wants_rows = segment.wants_rows(generation)
        if not heard.is_open:
            generation.reply = self._intake.start_reply(segment, heard.prompt)
        if segment.wants(PROMPT) and not (heard.is_open and segment.every_row):
            ids = heard.prompt.heard_ids
            told, generation.told = generation.told, len(ids)
            whole = generation.all_rows_taken
            events.append(segment.emit_heard(ids, told, more=heard.is_open, whole=whole))
        self._order(segment, generation)

    def _order(self, segment: Segment, generation: VllmGeneration) -> None:
        """Submit the available part of the prompt to vLLM, unless a request is already running."""
        prompt, is_open = generation.prompt, generation.is_open
        if generation.ordered is not None or (is_open and len(prompt.ids) <= generation.prefilled):
            return
        recordings = generation.windows
        heard = [[each.positions for each in windows] for windows in recordings]
        short = self._check.short_ids(prompt.ids, heard, prompt.visuals, is_open=is_open)
        known = np.asarray(generation.known, np.int32)
        asked = generation.row_positions[:0]
        if generation.wants_rows and not (is_open and segment.every_row):
            asked = generation.row_positions[generation.rows_asked :]
            generation.rows_asked = len(generation.row_positions)
        sampling, limit = segment.settings.sampling, generation.reply.limit
        if is_open:
            # vLLM always samples an ID after a prompt. This ID is ignored here.
            sampling, limit = _ANY, 1
        replies = generation.reply_rows is not None and not is_open
        order = VllmOrder(
            next(self._numbers),
            np.concatenate((short, known)),
            PromptMedia([each for windows in recordings for each in windows], prompt.visuals),
            asked,
            sampling,
            self._intake.stop_id,
            limit - len(known),
            len(prompt.ids) if replies else None,
        )
        generation.ordered = np.concatenate((prompt.ids, known))
        generation.replies_to = None if is_open else order.number
        generation.numbers.append(order.number)
        self._by_number[order.number] = segment
        self._host.submit(order)

    def _take(self, delivery: FromVllm, segment: Segment, events: list[EngineEvent]) -> None:
        """Process a delivery for this segment."""
        generation = segment.generation
        if generation is None:
            return
        match delivery:
            case Tokens():
                self._take_ids(delivery, segment, generation, events)
            case Rows(_, start, rows) if start < len(generation.prompt.ids):
                positions = generation.take_rows(start, rows)
                last = generation.all_rows_taken
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
        """Append the next IDs. IDs are ignored if they come after the end of the reply, or if the
        prompt is still open.
        """
        if tokens.prompt_ids is not None:
            if generation.found is None:
                generation.found = tokens.cached
            ordered = generation.ordered
            if ordered is None or not np.array_equal(tokens.prompt_ids, ordered):
                raise Internal("vLLM generated a different prompt for the conversation")
        if generation.replies_to != tokens.number:
            self._go_on(tokens, segment, generation)
            return
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
            self._host.cancel(tokens.number)
        elif tokens.finished:
            raise Internal(f"vLLM ended the reply too early, after {len(generation.reply.ids)} IDs")

    def _go_on(self, tokens: Tokens, segment: Segment, generation: VllmGeneration) -> None:
        """If the known part of the prompt has been prefilled, submit what has arrived in the
        meantime.
        """
        if tokens.finished and generation.ordered is not None:
            generation.prefilled, generation.ordered = len(generation.ordered), None
            self._order(segment, generation)

    def _patience_s(self) -> float | None:
        """Return the number of seconds that a step may wait before rows are overdue, or None if
        there is no limit.
        """
        ends = [overdue_at for _, overdue_at in self._awaiting_rows()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _overdue(self, now: float) -> list[Segment]:
        """Return the segments that have waited too long for their rows."""
        return [segment for segment, overdue_at in self._awaiting_rows() if overdue_at <= now]

    def _awaiting_rows(self) -> list[tuple[Segment, float]]:
        """Return the segments whose reply has ended but whose rows haven't all arrived, together
        with their deadlines.
        """
        waiting = []
        for segment in self._segments.values():
            generation = segment.generation
            if generation is not None and generation.numbers and generation.overdue_at is not None:
                waiting.append((segment, generation.overdue_at))
        return waiting

    def _stop(self, segment: Segment) -> None:
        """Cancel a segment's requests. Calling this again has no effect."""
        generation = segment.generation
        if generation is None or not generation.numbers:
            return
        # Earlier requests can only have rows pending.
        self._host.cancel(generation.numbers[-1])
        for number in generation.numbers:
            del self._by_number[number]
        generation.numbers.clear()


def _is_under_way(segment: Segment) -> bool:
    """Return whether the segment is still waiting for results from vLLM."""
    generation = segment.generation
    if generation is None:
        return False
    return generation.ordered is not None or generation.rows_taken < generation.rows_asked
