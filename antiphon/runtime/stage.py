"""A running stage: the shell around the session table.

A chunk's way through here: a link or stream brings it (`chunk_arrived`), the table
orders it and says `Feed`, the engine thread steps and posts a batch, the table
says `Send`, and the chunk leaves on a link or on the session's stream. Everything
in this class happens on the event loop; only the engine runs elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from antiphon.chunk import Chunk
from antiphon.errors import AntiphonError, Unavailable, unexpected
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.engine_rounds import EngineBatch
from antiphon.runtime.engine_thread import MAILBOX_BYTES, EngineThread
from antiphon.runtime.held_ends import HeldEnds
from antiphon.runtime.inbox import Arrival
from antiphon.runtime.instructions import (
    Admit,
    Destination,
    End,
    Feed,
    Grant,
    Instruction,
    Limit,
    Opened,
    Progress,
    Refuse,
    Release,
    Report,
    SegmentOpened,
    Send,
    Suspended,
    Told,
)
from antiphon.runtime.outbox import Outbox
from antiphon.runtime.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session_table import SessionTable
from antiphon.runtime.watchdog import Watchdog
from antiphon.segment import SegmentKey
from antiphon.transport.link import LinkEvents
from antiphon.transport.link_pool import LinkPool
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState

Reply = Chunk | Told
"""What a session's own stream is told; `End` is the last."""

Answer = Refuse | Grant
"""What a link's producer is told."""

log = logging.getLogger(__name__)

STEP_TIMEOUT_S = 30.0
# When whoever is refused by a stage that stops may find it, or another, again.
RETRY_AFTER_S = 1.0
GRANT_BYTES = 64
"""About what a grant takes, so that those for a producer that reads none are bounded."""


class Stage:
    """Runs one engine for many sessions. Construct it on the event loop.

    `told` gets the fault of an engine that is in one step for longer than `step_timeout_s`,
    and None when it has come back. `failed` is set when the engine cannot go on at all:
    this process has to end then.
    """

    def __init__(
        self,
        loaded: LoadedStage,
        plan: StagePlan,
        identity: LinkIdentity,
        *,
        links: LinkSettings,
        outbox_bytes: int,
        engine_nice: int = 0,
        mailbox_bytes: int = MAILBOX_BYTES,
        step_timeout_s: float = STEP_TIMEOUT_S,
        told: Callable[[AntiphonError | None], None] = lambda fault: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._table = SessionTable(plan, _report)
        self._limits = plan.limits
        self._outbox_bytes = outbox_bytes
        self._replies: dict[str, Outbox[Reply]] = {}
        self._incoming: dict[str, Outbox[Answer]] = {}
        events = LinkEvents(
            refused=self._refused,
            lost=self._destination_lost,
            credited=self._credited,
            suspended=self._destination_suspended,
            settled=self._settled,
        )
        self._held_ends = HeldEnds(self._let_go, plan.limits.stall_timeout_s)
        self._links = LinkPool(identity, links, events)
        counted_by = {edge.name: edge.counted_by for edge in plan.outputs.values()}
        self._told = told
        self._fault: AntiphonError | None = None
        self.failed = asyncio.Event()
        self._watchdog = Watchdog(
            step_timeout_s, self._engine_changed, lambda: self._engine.has_work
        )
        self._engine = EngineThread(
            loaded.engine,
            self._post,
            counted_by,
            loaded.copies,
            engine_nice,
            mailbox_bytes,
            self._watchdog.pulse,
            loaded.is_fatal,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self._closed = False

    @property
    def table(self) -> SessionTable:
        """The sessions, for observation."""
        return self._table

    @property
    def limits(self) -> StageLimits:
        """Its bounds."""
        return self._limits

    def outgoing_links(self) -> list[LinkState]:
        """The links to downstream processes, for observation."""
        return self._links.states()

    def start(self) -> None:
        """Start the engine's thread."""
        self._engine.start()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new sessions and wait until the running ones end; False on timeout."""
        self._accepting = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End every session with an error, close the links, stop the engine."""
        self._closed = True
        self._apply(
            self._table.engine_lost(
                Unavailable("the stage stops before this has finished", retry_after_s=RETRY_AFTER_S)
            )
        )
        await self._links.close()
        self._held_ends.close()
        self._watchdog.close()
        self._engine.stop()
        await asyncio.to_thread(self._engine.join, 10.0)

    # -- what streams say ------------------------------------------------------------------

    def open(self, request: SessionRequest) -> Outbox[Reply]:
        """Register a session; the outbox is its stream's output.

        Raises `AntiphonError` when it is refused.
        """
        if not self._accepting:
            raise Unavailable(
                "the stage stops and takes no new sessions", retry_after_s=RETRY_AFTER_S
            )
        if self._fault is not None:
            raise Unavailable(self._fault.message, retry_after_s=self._fault.retry_after_s)
        outbox: Outbox[Reply] = Outbox(self._outbox_bytes)
        opened = self._table.open(request, self._loop.time())
        self._replies[request.session_id] = outbox
        self._idle.clear()
        self._apply(opened)
        return outbox

    def open_segment(self, session_id: str, request: SegmentRequest) -> None:
        """Open a turn; a refusal ends the session."""
        self._apply(self._table.open_segment(session_id, request, self._loop.time()))

    def input_finished(self, session_id: str, segment: int) -> None:
        """The client sends no more input for the turn."""
        self._apply(self._table.input_finished(session_id, segment, self._loop.time()))

    def cancel_segment(self, session_id: str, segment: int) -> None:
        """End a turn and park the session."""
        self._apply(self._table.cancel_segment(session_id, segment, self._loop.time()))

    def credited(self, key: SegmentKey, edge: str, positions: int) -> None:
        """The client takes more of an output on its stream: up to `positions` in all."""
        self._credited("", key, edge, positions)

    def upstream_progressed(self, key: SegmentKey) -> None:
        """A stage before this one works on the segment; nothing has come of it yet."""
        self._table.upstream_progressed(key, self._loop.time())
        self._set_timer()

    def client_done(self, session_id: str) -> None:
        """The client has closed its side."""
        self._apply(self._table.client_done(session_id))

    def stream_lost(self, session_id: str) -> None:
        """The session's stream is gone; frees everything. Harmless after the end."""
        self._apply(self._table.stream_lost(session_id))
        self._held_ends.let_go(session_id)

    def fail(self, session_id: str, error: AntiphonError) -> None:
        """End a session with an error that its stream found."""
        self._apply(self._table.fail(session_id, error))

    def chunk_malformed(self, session_id: str, error: AntiphonError) -> None:
        """A chunk came on a link that cannot be read: its session fails, now or as it opens."""
        self._apply(self._table.chunk_malformed(session_id, error))

    # -- what links say --------------------------------------------------------------------

    def link_opened(self, link_id: str) -> Outbox[Answer]:
        """An upstream process links; the outbox is what goes back to it."""
        outbox: Outbox[Answer] = Outbox(self._outbox_bytes)
        self._incoming[link_id] = outbox
        return outbox

    def chunk_arrived(self, chunk: Chunk, link_id: str) -> None:
        """A chunk came; "" is the session's own stream."""
        self._apply(self._table.chunk_arrived(Arrival(chunk, link_id), self._loop.time()))

    def link_suspended(self, link_id: str, address: str) -> None:
        """The link from an upstream process broke and may heal."""
        self._apply(self._table.link_suspended(link_id, address))

    def link_lost(self, link_id: str) -> None:
        """An upstream process is gone."""
        self._incoming.pop(link_id, None)
        self._apply(self._table.link_lost(link_id))

    def _refused(self, session_id: str, error: AntiphonError) -> None:
        self._apply(self._table.fail(session_id, error))

    def _credited(self, address: str, key: SegmentKey, edge: str, positions: int) -> None:
        now, destination = self._loop.time(), Destination(address)
        self._apply(self._table.credited(key, edge, destination, positions, now))

    def _destination_suspended(self, address: str) -> None:
        self._apply(self._table.destination_suspended(address))

    def _destination_lost(
        self, address: str, error: AntiphonError, unacknowledged: Collection[str]
    ) -> None:
        self._apply(self._table.destination_lost(address, error, unacknowledged))
        for session_id in unacknowledged:
            self._held_ends.let_go(session_id, error)

    def _settled(self, session_id: str) -> None:
        if not self._links.has_unacknowledged(session_id):
            self._held_ends.let_go(session_id)

    # -- what the engine says --------------------------------------------------------------

    def _post(self, batch: EngineBatch) -> None:
        """Off the loop: hand a batch to it."""
        self._loop.call_soon_threadsafe(self._engine_stepped, batch)

    def _engine_stepped(self, batch: EngineBatch) -> None:
        now = self._loop.time()
        try:
            done = self._table.engine_stepped(
                batch.events, batch.awaited, batch.busy_s, now, batch.accepted, batch.moved_up
            )
            if batch.error is not None:
                self._fault = batch.error if batch.fatal else self._fault
                done += self._table.engine_lost(batch.error)
            self._apply(done)
        finally:
            self._engine.batch_taken()
            if batch.fatal:
                self._watchdog.close()
                self.failed.set()
                self._told(batch.error)

    def _engine_changed(self, fault: AntiphonError | None) -> None:
        """The engine is late, or back. What it has meanwhile is lost; it releases it then."""
        self._fault = fault
        if fault is not None:
            log.error("%s", fault.message)
            self._apply(self._table.engine_lost(fault))
        self._told(fault)

    # -- carrying out ------------------------------------------------------------------------

    def _apply(self, instructions: Iterable[Instruction]) -> None:
        """Carry out all of them; one that cannot be ends its session, whatever it raises."""
        failed: dict[str, AntiphonError] = {}
        for instruction in instructions:
            session_id = _session_of(instruction)
            if session_id not in failed:
                error = self._tried(instruction)
                if error is not None:
                    failed[session_id] = error
                    self._apply(self._table.fail(session_id, error))
            elif isinstance(instruction, Release):
                # The rest of what a failed session wanted is void, but it must leave nothing.
                self._carry_out(instruction)
            elif isinstance(instruction, End):
                self._end(End(session_id, instruction.error or failed[session_id]))
        self._set_timer()

    def _tried(self, instruction: Instruction) -> AntiphonError | None:
        """Carry an instruction out; the error if that cannot be done."""
        try:
            self._carry_out(instruction)
        except AntiphonError as error:
            return error
        except Exception as error:
            _report(_session_of(instruction), error)
            return unexpected(error)
        return None

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Admit() | Feed() | Limit() | Release():
                self._engine.submit(instruction)
                self._watchdog.engage()
            case Send(destination, chunk) if destination.is_reply:
                self._reply(chunk.session_id, chunk, chunk.size_bytes)
            case Send(destination, chunk):
                self._links.send_nowait(destination.address, chunk)
            case Opened(session_id) | Suspended(session_id):
                self._reply(session_id, instruction)
            case SegmentOpened(key) | Report(key):
                self._reply(key.session_id, instruction)
            case Progress(key):
                self._tell_progress(key.session_id, instruction)
            case Refuse(link_id) | Grant(link_id):
                self._answer(link_id, instruction)
            case End():
                self._end(instruction)

    def _reply(self, session_id: str, reply: Reply, size_bytes: int = 0) -> None:
        if (outbox := self._replies.get(session_id)) is not None:
            outbox.put_nowait(reply, size_bytes)

    def _tell_progress(self, session_id: str, progress: Progress) -> None:
        """Say so unless something waits to be read, which says as much."""
        outbox = self._replies.get(session_id)
        if outbox is not None and outbox.is_empty:
            outbox.put_nowait(progress)

    def _answer(self, link_id: str, answer: Answer) -> None:
        if (outbox := self._incoming.get(link_id)) is not None:
            outbox.put_nowait(answer, GRANT_BYTES)

    def _end(self, end: End) -> None:
        if end.error is None and self._links.has_unacknowledged(end.session_id):
            self._held_ends.hold(end.session_id)
        else:
            self._let_go(end)

    def _let_go(self, end: End) -> None:
        outbox = self._replies.pop(end.session_id, None)
        if outbox is not None:
            outbox.end(end)
        if not self._replies:
            self._idle.set()

    def _set_timer(self) -> None:
        """Wake up at the table's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
        # Streams that end later have nothing left to wait for.
        deadline = None if self._closed else self._table.next_deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._table.tick(self._loop.time()))


def _report(session_id: str, error: Exception) -> None:
    log.error("session %s failed", session_id, exc_info=error)


def _session_of(instruction: Instruction) -> str:
    """The session that an instruction is about."""
    match instruction:
        case Send(_, chunk):
            return chunk.session_id
        case Admit(key) | Feed(key) | Limit(key) | Release(key) | Grant(_, key):
            return key.session_id
        case SegmentOpened(key) | Report(key) | Progress(key):
            return key.session_id
        case Opened(session_id) | Suspended(session_id) | End(session_id) | Refuse(_, session_id):
            return session_id
