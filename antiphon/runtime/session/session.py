"""A session on a stage. It consists of the current segment, the order of chunks, and the clocks.

Methods process facts and return instructions. If something is wrong, they raise an `AntiphonError`,
and the session table ends the session with that error. A session never ends itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from antiphon.errors import AntiphonError, Internal, InvalidArgument
from antiphon.pipelines.graph import CLIENT, Edge
from antiphon.runtime.engine import Advanced, Completed, Emitted, InputChunk
from antiphon.runtime.session.clocks import SessionClocks
from antiphon.runtime.session.credit import Credit, Intake
from antiphon.runtime.session.facts import ChunkArrived, Credited, SegmentStatus
from antiphon.runtime.session.inbox import Inbox
from antiphon.runtime.session.instructions import (
    REPLY,
    Admit,
    Destination,
    Feed,
    Grant,
    Instruction,
    Progress,
    Release,
    SegmentOpened,
    SegmentRefused,
    Send,
)
from antiphon.runtime.session.open_segment import Segment
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.runtime.session.output_flow import OutputFlow
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StagePlan
from antiphon.runtime.session.segment_order import SegmentOrder
from antiphon.runtime.session.states import Event, State, follow
from antiphon.runtime.session.tally import Outcome, Tally
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason, SegmentKey


class LiveSession:
    """A session that hasn't ended.

    `no_slot` returns an error if no slot is available for a segment. `leaving` returns an error if
    segments after the first must be rejected. The segment is admitted if both return None. `clocks`
    computes the deadlines of the session and of its `segment`.
    """

    def __init__(
        self,
        request: SessionRequest,
        plan: StagePlan,
        tally: Tally,
        no_slot: Callable[[], AntiphonError | None],
        leaving: Callable[[], AntiphonError | None],
        now: float,
    ) -> None:
        plan.check(request)
        self.session_id = request.session_id
        self.state = State.REGISTERED
        self.segment: Segment | None = None
        self.client_done = False
        self._plan = plan
        self._tally = tally
        self._routes = request.routes
        edges = plan.inputs.keys() | plan.outputs.keys()
        self._windows = {name: each for name, each in request.windows.items() if name in edges}
        self._no_slot, self._leaving = no_slot, leaving
        self.clocks = SessionClocks(plan, request.stall_timeout_s, now)
        self._inbox = Inbox()
        self._order = SegmentOrder(plan.limits.hold_bytes)
        # Cancelled segments that the engine hasn't released yet.
        self._releasing: dict[SegmentKey, Segment] = {}
        self._sequences: dict[str, int] = {}
        self._links: dict[str, str] = {}

    def become(self, event: Event) -> None:
        """Apply `event` to the state. Raises `FailedPrecondition` if the event isn't valid in the
        current state.
        """
        self.state = follow(self.state, event)

    # -- segments -----------------------------------------------------------------------

    def open_segment(self, request: SegmentRequest, now: float) -> list[Instruction]:
        """Start a segment and deliver any chunks that arrived early for it.

        A live segment doesn't need a slot until its first chunk arrives. Any other segment is
        refused if no slot is free. If the first segment of a session is refused, the session ends.
        """
        self._order.check(request.segment)
        waits = request.live and not self._order.has_early(request.segment)
        refusal = self._leaving() if request.segment else None
        refusal = refusal or (None if waits else self._no_slot())
        if refusal is not None:
            return self._refuse(request, refusal, now)
        self._plan.check_segment(request)
        self.become(Event.SEGMENT_OPENED)
        early, self._order.ended = self._order.use(), request.last
        live = self._plan.live_outputs(request, self._routes)
        key = SegmentKey(self.session_id, request.segment)
        outlets = {edge.name: self._outlet(edge, request) for edge in live}
        inputs = set(self._plan.inputs)
        intakes = {edge: Intake(self._windows[edge]) for edge in inputs & set(self._windows)}
        settings = self._plan.settings(request, frozenset(outlets))
        flow = OutputFlow(outlets, self._plan.outputs, self._plan.rates, self._tally)
        segment = self.segment = Segment(
            key, settings, outlets, inputs, intakes, flow, now=now, deadline_s=request.deadline_s
        )
        segment.waits = waits
        fed = [each for chunk in early for each in self._sort(chunk, now)]
        return [SegmentOpened(key), *([] if waits else self._admit(segment)), *fed]

    def _admit(self, segment: Segment) -> list[Instruction]:
        """Admit the segment to the engine. The code between setting the flag and returning the
        instruction must not raise an exception.
        """
        segment.in_engine, segment.waits = True, False
        return [Admit(segment.key, segment.settings), *segment.limits()]

    def _refuse(
        self, request: SegmentRequest, error: AntiphonError, now: float
    ) -> list[Instruction]:
        """Skip the number of a segment without opening the segment.

        Raises the error if this is the first segment and it isn't live, or if another segment is
        open.
        """
        if not (request.segment or request.live) or self.segment is not None:
            raise error
        self.clocks.idle_since = now
        for chunk in self._order.use():
            self._sort(chunk, now)
        self._tally.ended(Outcome.REFUSED, error)
        return [SegmentRefused(SegmentKey(self.session_id, request.segment), error)]

    def input_finished(self, number: int, now: float) -> list[Instruction]:
        """End those client input edges that are still open."""
        segment = self.segment
        if segment is None or segment.key.segment != number:
            return []
        segment.finish_listening(now)
        done: list[Instruction] = []
        for name in sorted(segment.open_inputs):
            if self._plan.inputs[name].producer == CLIENT and self.segment is segment:
                end = InputChunk(name, 0, {}, True, FinishReason.STOP)
                done += self._deliver(segment, end, now)
        return done

    def park(self, outcome: Outcome, now: float) -> list[Instruction]:
        """End the current segment. The session can have another one until its idle
        timeout expires.
        """
        self.clocks.idle_since = now
        return self.drop_segment(outcome)

    def cancel_segment(self, number: int, now: float) -> list[Instruction]:
        """Cancel the current segment if it has this number. It is reported as cancelled once all of
        its resources have been released.
        """
        segment = self.segment
        if segment is None or segment.key.segment != number:
            return []
        if not self.park(Outcome.CANCELLED, now):
            # The engine has completed the segment, or never received it.
            cost = segment.completed or Completed(segment.key, FinishReason.CANCELLED, 0, 0)
            return [segment.report(replace(cost, finish_reason=FinishReason.CANCELLED))]
        self._releasing[segment.key] = segment
        return [Release(segment.key, cancelled=True)]

    @property
    def releasing(self) -> bool:
        """Whether there is a cancelled segment that the engine hasn't released yet."""
        return bool(self._releasing)

    def released(self, cost: Completed, busy_s: float) -> list[Instruction]:
        """Report that the engine has released a cancelled segment."""
        segment = self._releasing.pop(cost.key, None)
        if segment is None:
            return []
        segment.busy_s = busy_s
        return [segment.report(cost)]

    def drop_segment(
        self, outcome: Outcome, error: AntiphonError | None = None
    ) -> list[Instruction]:
        """End the current segment, if any, and free its slot and its memory."""
        if self.segment is None:
            return []
        segment, self.segment = self.segment, None
        segment.flow.end()
        self.become(Event.SEGMENT_ENDED)
        self._tally.ended(outcome, error)
        return [Release(segment.key)] if segment.in_engine else []

    def _outlet(self, edge: Edge, request: SegmentRequest) -> OutputEdge:
        delivery = self._plan.delivery_of(edge.name, request)
        window = self._windows.get(edge.name)
        credit = Credit(window, self._routes[edge.name]) if window else None
        return OutputEdge(edge, delivery, request.policy or self._plan.policy, credit)

    # -- input -------------------------------------------------------------------------

    def chunk_arrived(self, arrival: ChunkArrived, now: float) -> list[Instruction]:
        """Deliver a chunk to its segment. If the segment isn't open yet, the chunk is held. If the
        segment has already ended, the chunk is dropped.
        """
        chunk = arrival.chunk
        if chunk.edge not in self._plan.inputs:
            raise InvalidArgument(
                f"{chunk.edge}: is not an input of {self._plan.role}", edge=chunk.edge, field="edge"
            )
        edge = self._plan.inputs[chunk.edge]
        edge.check(chunk.tensors)
        if chunk.prime and not edge.primed:
            raise InvalidArgument(
                f"{edge.name}: the consumer of this edge can't be primed",
                edge=edge.name,
                field="prime",
            )
        if not self._inbox.admits(chunk):
            return []
        if arrival.link_id:
            self._links[chunk.edge] = arrival.link_id
        return self._sort(chunk, now)

    def awaits_link(self, link_id: str) -> str | None:
        """Return an open input edge that is fed by this link, or None if there is none."""
        there = {self._plan.inputs[e].producer for e, at in self._links.items() if at == link_id}
        return self._awaited_of(there)

    def unlinked_input(self, producer: str) -> str | None:
        """Return an open input edge of a producer that hasn't sent any chunks, or None if there is
        none.
        """
        linked = {self._plan.inputs[edge].producer for edge in self._links}
        return None if producer in linked else self._awaited_of({producer})

    def _awaited_of(self, producers: Collection[str]) -> str | None:
        if self.segment is None:
            return None
        inputs, awaited = self._plan.inputs, self.segment.open_inputs
        return next((e for e in inputs if e in awaited and inputs[e].producer in producers), None)

    def _sort(self, chunk: Chunk, now: float) -> list[Instruction]:
        current = self.segment.key.segment if self.segment else self._order.next
        if chunk.segment < current:
            return []
        if self.segment is None or chunk.segment > current:
            self._order.keep(chunk)
            return []
        piece = InputChunk(
            chunk.edge,
            chunk.position,
            chunk.tensors,
            segment_finished=chunk.segment_finished,
            finish_reason=chunk.finish_reason,
            prime=chunk.prime,
        )
        return self._deliver(self.segment, piece, now)

    def _deliver(self, segment: Segment, chunk: InputChunk, now: float) -> list[Instruction]:
        """Pass a chunk to a segment. The first chunk of a live segment takes a slot, and the
        segment is refused if no slot is free.
        """
        if not segment.waits:
            return [self._feed(segment, chunk, now)]
        if (full := self._no_slot()) is not None:
            self.clocks.idle_since = now
            self.drop_segment(Outcome.REFUSED, full)
            return [SegmentRefused(segment.key, full)]
        feed = self._feed(segment, chunk, now)
        return [*self._admit(segment), feed]

    def _feed(self, segment: Segment, chunk: InputChunk, now: float) -> Feed:
        segment.note_input(chunk, now)
        segment.fed += 1
        if not chunk.prime and (intake := segment.intakes.get(chunk.edge)) is not None:
            intake.add(len(chunk.tensors.get(self._plan.inputs[chunk.edge].counted_by, ())))
        if chunk.segment_finished:
            segment.open_inputs.discard(chunk.edge)
        return Feed(segment.key, chunk)

    # -- output ------------------------------------------------------------------------

    def emit(self, event: Emitted, now: float) -> list[Instruction]:
        """Add output from the engine. Send everything that is now due to all destinations of its
        edge.
        """
        if self.segment is None:
            return []
        edge = self._plan.outputs.get(event.edge)
        if edge is not None and not event.prime:
            self._tally.positions[edge.name] += len(event.tensors.get(edge.counted_by, ()))
        return self._send(event.edge, self.segment.push(event, now), now)

    def send_due(self, now: float) -> list[Instruction]:
        """Send output whose interval has passed."""
        if self.segment is None:
            return []
        done: list[Instruction] = []
        for edge, pieces in self.segment.due(now):
            done += self._send(edge, pieces, now)
        return done

    def progress(self, now: float) -> list[Instruction]:
        """Report that the segment is making progress, unless something has been sent within the
        last `progress_s` seconds.
        """
        segment = self.segment
        if segment is None or now < segment.told_at + self._plan.limits.progress_s:
            return []
        segment.told_at = now
        return [Progress(segment.key)]

    def advanced(self, event: Advanced, now: float) -> list[Instruction]:
        """Report the engine's step counts. This is done at most once every `steps_s` seconds, and
        when all steps are done.

        Raises `Internal` if the number of completed steps isn't between 1 and the total.
        """
        done, due, segment = event.done, event.due, self.segment
        if not 1 <= done <= due:
            raise Internal(f"{self._plan.role}: {done} of {due} steps reported as done")
        if segment is None or (
            done < due and now < segment.steps_told_at + self._plan.limits.steps_s
        ):
            return []
        segment.told_at = segment.steps_told_at = now
        return [Progress(segment.key, done, due)]

    def upstream_progressed(self, now: float) -> None:
        """Restart the stall clock, because an upstream stage is working on the segment."""
        if self.segment is not None:
            self.segment.waiting_since = now

    def complete(self, event: Completed, busy_s: float, now: float) -> list[Instruction]:
        """Record that the engine has completed the segment. The segment itself ends once all of its
        output has been sent.

        `busy_s` is the engine time that was spent on it. Raises `Internal` if any output edge
        hasn't ended.
        """
        if self.segment is None:
            return []
        if unfinished := self.segment.unfinished_outputs():
            raise Internal(f"{self._plan.role}: completed before the end of {unfinished[0]}")
        self.segment.completed, self.segment.busy_s = event, busy_s
        if self.segment.drained:
            return self._leave(now)
        self.segment.in_engine = False
        return [Release(self.segment.key)]

    def note_standing(
        self, standing: SegmentStatus, now: float, *, worked_on: bool
    ) -> list[Instruction]:
        """Record the segment's status in the engine, grant credit for consumed input, and report
        progress.
        """
        if self.segment is None or not self.segment.in_engine:
            return []
        self.segment.note_standing(standing, now)
        return [*self._grant_inputs(), *(self.progress(now) if worked_on else ())]

    def edge_to(self, target: Destination) -> str | None:
        """Return an output edge that still has unsent output for this destination, or None if there
        is none.
        """
        if self.segment is None:
            return None
        undrained = self.segment.undrained_outputs()
        return next((edge for edge in undrained if target in self._routes[edge]), None)

    def _leave(self, now: float) -> list[Instruction]:
        """If the engine has completed the segment and all of its output has been sent, report the
        segment and park the session.
        """
        segment = self.segment
        if segment is None or segment.completed is None or not segment.drained:
            return []
        return [segment.report(segment.completed), *self.park(Outcome.FINISHED, now)]

    def _send(self, edge: str, pieces: list[Piece], now: float) -> list[Instruction]:
        if not pieces:
            return []
        # Edges without a destination never have pieces.
        destinations = self._routes[edge]
        if self.segment is not None and REPLY in destinations:
            self.segment.told(edge, pieces, now)
        done: list[Instruction] = []
        for piece in pieces:
            chunk = self._address(edge, piece)
            done += [Send(to, chunk) for to in destinations]
        return done

    def _address(self, edge: str, piece: Piece) -> Chunk:
        sequence = self._sequences.get(edge, 0)
        self._sequences[edge] = sequence + 1
        self._tally.chunks[edge] += 1
        ends = piece.finish_reason is not None
        return Chunk(
            self.session_id,
            edge,
            segment=self._order.next - 1,
            sequence=sequence,
            position=piece.position,
            tensors=piece.tensors,
            segment_finished=ends,
            finished=ends and (self.client_done or self._order.ended),
            finish_reason=piece.finish_reason,
            prime=piece.prime,
        )

    # -- credit ------------------------------------------------------------------------

    def credited(self, credit: Credited, now: float) -> list[Instruction]:
        """Apply the credit that one of an output's destinations has granted. Credit for any other
        segment is outdated, so it is ignored.
        """
        edge = credit.edge
        if edge not in self._plan.outputs:
            raise InvalidArgument(
                f"credit.edge: {self._plan.role} has no output {edge}", field="credit.edge"
            )
        segment = self.segment
        if segment is None or segment.key != credit.key or edge not in segment.settings.outputs:
            return []
        pieces = segment.grant(edge, credit.destination, credit.positions, now)
        done = self._send(edge, pieces, now)
        if segment.in_engine:
            done += segment.limits()
        return [*done, *self._grant_inputs(), *self._leave(now)]

    def _grant_inputs(self) -> list[Instruction]:
        """Grant credit on the awaited edge, unless the segment is itself waiting for credit."""
        segment = self.segment
        if segment is None or segment.held or not segment.caught_up:
            return []
        edge, intake = segment.awaited, segment.intakes.get(segment.awaited)
        link_id = self._links.get(edge)
        if intake is None or not link_id or edge not in segment.open_inputs:
            return []
        total = intake.take_all()
        return [] if total is None else [Grant(link_id, segment.key, edge, total)]
