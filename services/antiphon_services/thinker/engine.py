"""The thinker's `torch` engine, with continuous batching over slots.

A segment's conversation is converted to prompt IDs on another thread (`preparation`). After that,
the segment goes through three kinds of steps:

- begin: The prompt IDs are sent on `prompt` immediately, so that the talker can prefill at the same
  time.
- prefill: This takes as many steps as necessary for the prompt's rows. Hidden rows that the talker
  reads are sent on `prompt` as soon as they have been computed. The first ID is sampled in the same
  step as the prompt's last row.
- decode: Each step generates one more ID. If the talker needs the row of the previous ID, that row
  is sent as well.

Each call to `step` runs one forward pass, which contains the latest ID of every segment that is
decoding and up to `prefill_rows` prompt rows. It also begins all prompts that are ready and encodes
the media of one segment, or of several segments if the row budget allows. A long prompt therefore
neither makes a step longer nor increases the interval between two IDs of another reply.

An error in a step only affects the segment in which it occurred. If a forward pass fails as a
whole, it is repeated for each segment separately. This is safe because it writes the same keys and
values to the same places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from antiphon.errors import NotImplementedYet
from antiphon.runtime.engine import Completed, EngineEvent, InputChunk, SegmentSettings
from antiphon.transport.device_edge import ToHost
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.sampling import (
    LogitsRow,
    Sampled,
    sample_alone,
    sample_together,
    score_together,
)
from antiphon_services.lm.slots import Slots
from antiphon_services.stage.budgets import ENCODED_AT_LEAST, PREFILL_ROWS
from antiphon_services.stage.isolation import together
from antiphon_services.stage.preparation import SHORT_TEXT_BYTES, wait_for_one, wake_nobody
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.thinker.generation import SlotGeneration
from antiphon_services.thinker.intake import PromptIntake, ThinkerPreparations
from antiphon_services.thinker.known_reply import check_history, known_ids, repeat_reply
from antiphon_services.thinker.listening import HeardPrompt
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_services.thinker.prompt import PreparedPrompt
from antiphon_services.thinker.schedule import prefill_shares
from antiphon_services.thinker.thinker_segment import INPUT, PROMPT
from antiphon_services.thinker.thinker_segment import ThinkerSegment as AnySegment

ROWS_AT_ONCE = 512
"""The maximum number of prompt rows that are sent in one step, unless a step computes more than
this.
"""

Segment = AnySegment[SlotGeneration]
_Work = list[tuple[Segment, SlotGeneration, ThinkerFeed]]
_Asked = list[tuple[Segment, SlotGeneration, ReplyLogprobs, Sampled]]


class ThinkerEngine:
    """Implements `antiphon.runtime.engine.PreparingEngine`."""

    def __init__(
        self,
        model: ThinkerModel,
        intake: PromptIntake,
        *,
        prefill_rows: int = PREFILL_ROWS,
        preparations: ThinkerPreparations | None = None,
        to_host: ToHost | None = None,
    ) -> None:
        self._to_host = to_host or ToHost.direct()
        self._model = model
        self._intake = intake
        self._prefill_rows = prefill_rows
        self._slots = Slots(model.cache.slots)
        self._segments: dict[SegmentKey, Segment] = {}
        self._rows_at_once = max(ROWS_AT_ONCE, prefill_rows)
        self._preparations = preparations or ThinkerPreparations(SHORT_TEXT_BYTES)
        self._wake: Callable[[], None] = wake_nobody

    @property
    def segments(self) -> Mapping[SegmentKey, Segment]:
        """All segments of the engine, by key."""
        return self._segments

    @property
    def intake(self) -> PromptIntake:
        """The component that converts conversations to prompts."""
        return self._intake

    @property
    def model(self) -> ThinkerModel:
        """The model that the engine runs."""
        return self._model

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment.

        Raises `NotImplementedYet` if the client requests a JSON schema, and `InvalidArgument` if
        the history is invalid.
        """
        if settings.sampling.json_schema is not None:
            raise NotImplementedYet(
                "json_schema: the engine torch can't restrict text to a schema; use `engine: vllm`",
                field="json_schema",
            )
        segment = Segment(key, settings, self._intake.every_row, speech=self._intake.speech)
        check_history(segment, self._model.vocabulary)
        self._segments[key] = segment

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the conversation, or a piece of it. Raises `InvalidArgument` if it is invalid."""
        segment = self._segments[key]
        self._intake.store(segment, chunk)
        self._prepare(segment)

    def _prepare(self, segment: Segment) -> None:
        self._intake.prepare(segment, self._preparations, lambda: self._wake())

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return `input` if the segment can't make progress until more of the conversation arrives,
        or None otherwise.
        """
        return None if _can_step(self._segments[key]) else INPUT

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment's prompt is being prepared and there is no other work for the
        segment.
        """
        segment = self._segments[key]
        preparation = segment.preparation
        return preparation is not None and not preparation.done() and not _has_work(segment)

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Set the function to call whenever a prompt has been prepared."""
        self._wake = wake

    def close(self) -> None:
        """Stop preparing prompts."""
        self._preparations.close()

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Run one forward pass for all segments and begin the prompts that are ready.

        If there is no other work, this waits until a prompt has been prepared.
        """
        events: list[EngineEvent] = []
        self._preparations.begin_step()
        live = [
            each for each in self._segments.values() if _can_step(each) and each.key not in held
        ]
        idle = not any(map(_has_work, live))
        begun = [(each, each.generation) for each in live if each.generation is not None]
        done = [each for each in begun if each[1].finish is not None or _owes_rows(*each)]
        self._go_on_sending(done, events)
        work = [(*each, each[1].reply_feed()) for each in begun if each[1].replies]
        work += self._prompt_work([each for each in begun if each[1].remaining], events)
        if work:
            self._forward(work, events)
        if idle:
            wait_for_one([each.preparation for each in live if each.preparation is not None])
        for segment in live:
            if (prompt := segment.preparation) is not None and prompt.done():
                segment.preparation = None
                with self._alone(segment, events):
                    made = prompt.result()
                    if isinstance(made, HeardPrompt):
                        events += self._hear(segment, made)
                    else:
                        events += self._begin(segment, made)
                    self._prepare(segment)
        return events

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].so_far()

    @torch.inference_mode()
    def release(self, key: SegmentKey) -> None:
        """Remove a segment. The content of its slot may be kept for reuse."""
        self._preparations.drop(key)
        self._give_slot_back(self._segments.pop(key), worth_keeping=True)

    def forget(self) -> None:
        """Discard the content of ended segments in all slots."""
        self._slots.forget()

    def _alone(
        self, segment: Segment, events: list[EngineEvent]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which an exception fails only this segment."""
        return segment.alone(events, lambda: self._give_slot_back(segment, worth_keeping=False))

    def _begin(self, segment: Segment, prompt: PreparedPrompt) -> Iterator[EngineEvent]:
        """Send the prompt IDs and the known part of the reply."""
        known = known_ids(segment, self._intake.prompts.special)
        generation = segment.generation = self._generation(segment, prompt, known)
        yield from segment.emit_prompt(generation)
        yield from repeat_reply(segment, generation, known)

    def _generation(
        self, segment: Segment, prompt: PreparedPrompt, known: Sequence[int] = ()
    ) -> SlotGeneration:
        return SlotGeneration(
            prompt,
            self._intake.start_reply(segment, prompt),
            row_positions=self._intake.row_positions(prompt.heard_ids),
            special=self._intake.prompts.special,
            every_row=self._intake.every_row,
            known=known,
        )

    def _hear(self, segment: Segment, heard: HeardPrompt) -> Iterator[EngineEvent]:
        """Continue with a prompt that has grown and send its new IDs."""
        if segment.generation is None:
            segment.generation = self._generation(segment, heard.prompt)
        generation = segment.generation
        generation.hear(
            heard,
            self._intake.row_positions(heard.prompt.heard_ids),
            lambda: self._intake.start_reply(segment, heard.prompt),
        )
        if segment.wants(PROMPT) and not generation.holds_rows:
            ids = heard.prompt.heard_ids
            told, generation.told = generation.told, len(ids)
            whole = generation.all_rows_sent
            yield segment.emit_heard(ids, told, more=heard.is_open, whole=whole)

    def _prompt_work(
        self, waiting: list[tuple[Segment, SlotGeneration]], events: list[EngineEvent]
    ) -> _Work:
        """Return the prompt work for this step. It only includes prompts that already have a slot
        or that can be assigned one now.
        """
        placed = [each for each in waiting if self._place(*each, events)]
        self._encode(placed, events)
        ready = [each for each in placed if not (each[0].ended or each[1].must_encode)]
        shares = prefill_shares([each.remaining for _, each in ready], self._prefill_rows)
        return [
            (*each, each[1].prompt_feed(count))
            for each, count in zip(ready, shares, strict=True)
            if count
        ]

    def _encode(
        self, placed: Sequence[tuple[Segment, SlotGeneration]], events: list[EngineEvent]
    ) -> None:
        """Encode the media that the oldest prompt needs next and further media if the row budget
        allows.
        """
        left = self._prefill_rows
        for segment, generation in placed:
            while not segment.ended and (positions := generation.to_encode):
                cost = max(positions, ENCODED_AT_LEAST)
                if left < self._prefill_rows and cost > left:
                    break
                left -= cost
                with self._alone(segment, events):
                    generation.encode(self._model.encode)

    def _place(
        self, segment: Segment, generation: SlotGeneration, events: list[EngineEvent]
    ) -> bool:
        """Return whether the prompt has a slot, after trying to assign one. If all slots are in
        use, the prompt waits.
        """
        if generation.slot is None:
            claim = self._slots.claim(generation.content)
            if claim is None:
                return False
            # Record the slot before copying, because it would leak if the copy raised an exception.
            generation.place(claim)
            if claim.source is not None:
                with self._alone(segment, events):
                    self._model.copy(claim.source, claim.slot, claim.reused)
        return not segment.ended

    def _forward(self, work: _Work, events: list[EngineEvent]) -> None:
        """Run all work in one batch. If a segment's prompt is complete, or if it is already
        decoding, an ID is sampled for it.
        """
        fed = together(self._model.forward, [feed for _, _, feed in work])
        sampled: list[tuple[Segment, SlotGeneration]] = []
        spoken: list[tuple[SlotGeneration, torch.Tensor]] = []
        logits: list[LogitsRow] = []
        for (segment, generation, feed), outcome in zip(work, fed, strict=True):
            with self._alone(segment, events):
                part = outcome()
                began = generation.remaining > 0
                generation.take(feed)
                self._send_rows(segment, generation, events)
                if segment.wants_reply_rows and began:
                    self._send_known_rows(segment, generation, events)
                elif segment.wants_reply_rows:
                    spoken.append((generation, part.rows))
                if part.logits is not None:
                    sampled.append((segment, generation))
                    logits.append(self._logits_row(segment, generation, part.logits))
        self._bring_rows(spoken)
        asked: _Asked = []
        for each, row, id_ in zip(sampled, logits, sample_together(logits), strict=True):
            with self._alone(each[0], events):
                chosen = sample_alone(row) if id_ is None else id_
                logprobs = each[0].logprobs
                if logprobs is None:
                    self._push(*each, chosen, events)
                else:
                    asked.append((*each, logprobs, Sampled(row.logits, chosen, logprobs.top)))
        if asked:
            self._push_scored(asked, events)

    def _logits_row(
        self, segment: Segment, generation: SlotGeneration, logits: torch.Tensor
    ) -> LogitsRow:
        """Return the logits for sampling the segment's next ID."""
        sampling, window = segment.settings.sampling, self._intake.window
        seen = generation.seen(logits) if sampling.repetition_penalty != 1.0 else None
        latest = None if window is None else window.of(generation.latest(window.size))
        return LogitsRow(logits, sampling, len(generation.reply.ids), seen, latest)

    def _push(
        self, segment: Segment, generation: SlotGeneration, id_: int, events: list[EngineEvent]
    ) -> None:
        """Append an ID to the reply and send all output that has become available."""
        release = generation.reply.push(id_)
        events += segment.emit_reply(generation, release)
        if segment.wants_reply_rows:
            generation.reply_rows.release(release)
            events += segment.emit_reply_rows(generation.reply_rows)
        generation.finish = release.finish
        self._complete(segment, generation, events)

    def _complete(
        self, segment: Segment, generation: SlotGeneration, events: list[EngineEvent]
    ) -> None:
        """End a segment whose reply has ended, provided that all rows of its prompt have been
        sent.
        """
        sends = segment.wants_rows(generation) and not generation.all_rows_sent
        if generation.finish is not None and not sends:
            events.append(segment.complete(generation, generation.finish))
            self._give_slot_back(segment, worth_keeping=True)

    def _send_rows(
        self, segment: Segment, generation: SlotGeneration, events: list[EngineEvent]
    ) -> None:
        """Send available prompt rows to the talker, up to the limit per step."""
        sends = segment.wants_rows(generation) and not generation.holds_rows
        if not sends or generation.all_rows_sent:
            return
        positions = generation.rows_due(self._rows_at_once)
        if len(positions):
            rows = self._to_host.copy(self._model.row_store.take(generation.placed(), positions))
            generation.rows_sent(len(positions))
            last = generation.all_rows_sent
            events.append(segment.emit_rows(generation, rows, positions, last=last))

    def _send_known_rows(
        self, segment: Segment, generation: SlotGeneration, events: list[EngineEvent]
    ) -> None:
        """Send the reply rows that were prefilled or that the slot already contained."""
        first, positions = generation.known_rows_due()
        if len(positions):
            rows = self._to_host.copy(self._model.row_store.take(generation.placed(), positions))
            generation.reply_rows.come(first, rows)
            events += segment.emit_reply_rows(generation.reply_rows)

    def _go_on_sending(
        self, done: Sequence[tuple[Segment, SlotGeneration]], events: list[EngineEvent]
    ) -> None:
        """Send more rows for prompts that have no other work, either because the reply has ended or
        because they need more input.
        """
        for segment, generation in done:
            with self._alone(segment, events):
                self._send_rows(segment, generation, events)
                self._complete(segment, generation, events)

    def _bring_rows(self, spoken: Sequence[tuple[SlotGeneration, torch.Tensor]]) -> None:
        """Copy one row to the host for each ID that was processed. All rows are copied together."""
        if spoken:
            rows = self._to_host.copy(torch.cat([each for _, each in spoken]))
            for at, (generation, _) in enumerate(spoken):
                fed = len(generation.reply.ids) - 1
                generation.reply_rows.come(fed, rows[at : at + 1])

    def _push_scored(self, asked: _Asked, events: list[EngineEvent]) -> None:
        """Append the IDs of segments that request log probabilities. These come after all other
        segments.
        """
        scores = together(score_together, [sampled for *_, sampled in asked])
        for (segment, generation, logprobs, sampled), score in zip(asked, scores, strict=True):
            with self._alone(segment, events):
                logprobs.push(*score())
                self._push(segment, generation, sampled.id_, events)

    def _give_slot_back(self, segment: Segment, *, worth_keeping: bool) -> None:
        """Either keep the slot's content for reuse or clear it. Calling this method again has no
        effect.
        """
        generation = segment.generation
        if generation is None or generation.slot is None:
            return
        slot, generation.slot = generation.slot, None
        kept = generation.kept() if worth_keeping else None
        if kept is not None:
            self._slots.keep(slot, kept)
        else:
            self._model.cache.clear(slot)
            self._slots.free(slot)


def _has_work(segment: Segment) -> bool:
    """Return whether a step has any work for the segment apart from beginning its prompt."""
    generation = segment.generation
    if segment.ended or generation is None:
        return False
    return generation.remaining > 0 or not generation.is_open or _owes_rows(segment, generation)


def _owes_rows(segment: Segment, generation: SlotGeneration) -> bool:
    """Return whether rows of a reused prefix still have to be sent for a prompt that is open and
    has been completely prefilled.

    These rows are sent while the user is speaking.
    """
    sends = segment.wants_rows(generation) and not generation.holds_rows
    waits = generation.is_open and not generation.remaining
    return sends and waits and len(generation.rows_due(1)) > 0


def _can_step(segment: Segment) -> bool:
    """Return whether the segment doesn't need any input, or has work that can be done before the
    input arrives.
    """
    return segment.can_step or (
        not segment.ended and (segment.preparation is not None or _has_work(segment))
    )
