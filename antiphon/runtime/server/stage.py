"""A running stage, which connects the session table to the engine and the network.

When a chunk arrives on a link or a session stream, it is passed to the table as the fact
`ChunkArrived`. The table puts the chunks in order and returns a `Feed` instruction. The engine
thread runs a step and posts `EngineStepped`. The table then returns a `Send` instruction, and the
output chunk is sent on a link or on the session's own stream. Everything in this class runs on the
event loop, except for the engine. See `antiphon.runtime.session` for a description of the whole
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from antiphon.errors import AntiphonError, ResourceExhausted, Unavailable, unexpected
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.deferred_closes import DeferredCloses
from antiphon.runtime.server.engine_faults import EngineFaults
from antiphon.runtime.server.load_watch import LoadCounts, LoadWatch
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.session.facts import (
    ChunksRefused,
    Credited,
    DestinationLost,
    DestinationSuspended,
    DrainBegun,
    EngineLost,
    EngineStepped,
    Fact,
    LinkLost,
    SessionFaulted,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import (
    Destination,
    End,
    EngineCommand,
    Grant,
    Instruction,
    Opened,
    Progress,
    Refuse,
    Release,
    Report,
    SegmentOpened,
    SegmentRefused,
    Send,
    Suspended,
    Told,
    session_of,
)
from antiphon.runtime.session.plan import SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.stepping.thread import MAILBOX_BYTES, EngineThread
from antiphon.runtime.stepping.watchdog import Watchdog
from antiphon.transport.link.outgoing.link import LinkEvents
from antiphon.transport.link.outgoing.links import Connect, OutgoingLinks, connect_in_clear
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState, Peer
from antiphon.values.chunk import Chunk

Reply = Chunk | Told
"""A message on a session's own stream. The final message is an `End`."""

Answer = Refuse | Grant
"""A message to the producer at the other end of a link."""

Record = Callable[[Fact, float, Sequence[Instruction] | AntiphonError], None]
"""A callback that receives every fact with its time, and the instructions or the error that the
table returned for it.
"""

log = logging.getLogger(__name__)

STEP_TIMEOUT_S = 30.0
# The retry delay in seconds that clients are given when their session is rejected because the stage
# is stopping.
RETRY_AFTER_S = 1.0
GRANT_BYTES = 64
"""The approximate size of a grant in bytes. Grants count towards the outbox's size limit, so only a
limited number of them can wait for a producer that isn't reading.
"""


class Stage:
    """Runs one engine for many sessions. Must be created on the event loop.

    `faults` is informed of the engine's results and decides whether new sessions are accepted.
    `failed` is set once the engine has given up, after which the process must exit. `closed` is set
    by `close`. `record` is called for every decision of the table, so that a run can be replayed.
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
        faults: EngineFaults,
        connect: Connect = connect_in_clear,
        record: Record | None = None,
    ) -> None:
        self._record, self._outbox_bytes = record, outbox_bytes
        self._loop = asyncio.get_running_loop()
        self._table = SessionTable(plan, _report)
        self.plan = plan
        self._replies: dict[str, Outbox[Reply]] = {}
        self._incoming: dict[str, Outbox[Answer]] = {}
        events = LinkEvents(
            refused=lambda session_id, error: self.handle(ChunksRefused(session_id, error)),
            lost=self._destination_lost,
            credited=lambda peer, key, edge, positions: self.handle(
                Credited(key, edge, Destination(*peer), positions)
            ),
            suspended=lambda peer: self.handle(DestinationSuspended(*peer)),
            settled=self._settled,
        )
        self._held_ends = DeferredCloses(self._let_go, plan.limits.stall_timeout_s)
        self._links = OutgoingLinks(identity, links, events, connect)
        counted_by = {edge.name: edge.counted_by for edge in plan.outputs.values()}
        self._faults = faults
        self.failed = asyncio.Event()
        self.closed = asyncio.Event()
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
        self._gathered: list[EngineCommand] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self.load_watch = LoadWatch(self._load)
        self.suspensions = Counter(resumed=0, ended=0)
        """The number of `RunSessions` stream suspensions, by outcome."""

    @property
    def table(self) -> SessionTable:
        """The session table. Use it only to observe the stage."""
        return self._table

    @property
    def limits(self) -> StageLimits:
        """The limits of the stage."""
        return self.plan.limits

    def outgoing_links(self) -> list[LinkState]:
        """Return the state of the links to all downstream processes."""
        return self._links.states()

    def start(self) -> None:
        """Start the engine thread."""
        self._engine.start()

    async def drain(self, timeout_s: float) -> bool:
        """Stop accepting sessions and segments, then wait for all sessions to end.

        If a client keeps a session open between segments, its next segment is rejected, and the
        client moves to another stage. Returns False if any session is still open after `timeout_s`
        seconds.
        """
        self._accepting = False
        self.handle(DrainBegun())
        self.load_watch.touch()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all sessions with an error, close the links, and stop the engine."""
        self.closed.set()
        self.load_watch.close()
        ended = Unavailable(
            "the stage shut down before the session had finished", retry_after_s=RETRY_AFTER_S
        )
        self.handle(EngineLost(ended))
        if self._timer is not None:
            self._timer.cancel()
        await self._links.close()
        self._held_ends.close()
        self._watchdog.close()
        self._faults.close()
        self._engine.stop()
        await asyncio.to_thread(self._engine.join, 10.0)

    # -- receiving facts -----------------------------------------------------------------------

    def handle(self, *facts: Fact) -> None:
        """Process facts and carry out the resulting instructions. To register a session, use
        `open`.
        """
        instructions: list[Instruction] = []
        for fact in facts:
            instructions += self._decide(fact)
        self._apply(instructions)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Return a context manager that collects the engine's commands and submits them when it
        ends. It can be nested.

        If several sessions are opened inside the context, the engine begins all of them in the same
        step. Otherwise, it would start a step as soon as the first session is open, and the other
        sessions would have to wait for the next one.
        """
        if self._gathered is not None:
            yield
            return
        self._gathered = []
        try:
            yield
        finally:
            commands, self._gathered = self._gathered, None
            self._apply(commands)

    def open(
        self, request: SessionRequest, on_reply: Callable[[], None] | None = None
    ) -> Outbox[Reply]:
        """Register a session and return the outbox for its stream. `on_reply` is called for every
        item that is added to the outbox.

        Raises `AntiphonError` if the session is refused.
        """
        if not self._accepting:
            raise Unavailable(
                "the stage is shutting down and accepts no new sessions",
                retry_after_s=RETRY_AFTER_S,
            )
        if (fault := self._faults.fault) is not None:
            raise Unavailable(fault.message, retry_after_s=fault.retry_after_s)
        outbox: Outbox[Reply] = Outbox(self._outbox_bytes, on_reply)
        opened = self._decide(SessionRequested(request))
        self._replies[request.session_id] = outbox
        self._idle.clear()
        self._apply(opened)
        return outbox

    def stream_lost(self, session_id: str) -> None:
        """End a session whose stream was lost. This has no effect if the session has
        already ended.
        """
        self.handle(StreamLost(session_id))
        self._held_ends.let_go(session_id)

    def link_opened(self, link_id: str) -> Outbox[Answer]:
        """Register a link from an upstream process and return the outbox for messages to that
        process.
        """
        outbox: Outbox[Answer] = Outbox(self._outbox_bytes)
        self._incoming[link_id] = outbox
        return outbox

    def link_lost(self, link_id: str) -> None:
        """Fail all sessions that need the link."""
        self._incoming.pop(link_id, None)
        self.handle(LinkLost(link_id))

    def _post(self, stepped: EngineStepped) -> None:
        """Pass the result of an engine round to the event loop. Called on the engine thread."""
        self._loop.call_soon_threadsafe(self._take_step, stepped)

    def _destination_lost(
        self, peer: Peer, error: AntiphonError, unacknowledged: Collection[str]
    ) -> None:
        lost = DestinationLost(peer.address, error, frozenset(unacknowledged), peer.boot_id)
        self.handle(lost)
        for session_id in unacknowledged:
            self._held_ends.let_go(session_id, error)

    def _settled(self, session_id: str) -> None:
        if not self._links.has_unacknowledged(session_id):
            self._held_ends.let_go(session_id)

    def _take_step(self, stepped: EngineStepped) -> None:
        try:
            self._faults.stepped(stepped)
            self.handle(stepped)
        finally:
            self._engine.batch_taken()
            if stepped.fatal:
                self._watchdog.close()
                self.failed.set()

    def _engine_changed(self, fault: AntiphonError | None) -> None:
        """Handle a report that an engine step is taking too long, or that the engine has recovered.

        In the first case, the segments in the engine fail immediately, but the engine releases them
        only once it has recovered.
        """
        self._faults.late(fault)
        if fault is not None:
            log.error("%s", fault.message)
            self.handle(EngineLost(fault))

    def _decide(self, fact: Fact) -> list[Instruction]:
        """Return the table's instructions for a fact. If the table refuses a session, its error is
        raised.
        """
        now = self._loop.time()
        if self._record is None:
            return self._table.handle(fact, now)
        try:
            instructions = self._table.handle(fact, now)
        except AntiphonError as error:
            self._record(fact, now, error)
            raise
        self._record(fact, now, instructions)
        return instructions

    # -- carrying out instructions -------------------------------------------------------------

    def _apply(self, instructions: Sequence[Instruction]) -> None:
        """Carry out instructions. If an instruction raises an exception, its session fails.

        Commands for the engine are collected and submitted at the end as a single batch. Inside
        `gathering`, this happens when its context ends. If a session fails, its remaining
        instructions are skipped, except for those that release it and end it.
        """
        failed: dict[str, AntiphonError] = {}
        while instructions:
            commands: list[EngineCommand] = []
            consequences: list[Instruction] = []
            for instruction in instructions:
                is_void = failed and session_of(instruction) in failed
                if is_void and not isinstance(instruction, Release | End):
                    continue
                if isinstance(instruction, EngineCommand):
                    commands.append(instruction)
                elif isinstance(instruction, End):
                    session_id = instruction.session_id
                    self._end(End(session_id, instruction.error or failed.get(session_id)))
                elif (error := self._tried(instruction)) is not None:
                    session_id = session_of(instruction)
                    failed[session_id] = error
                    consequences += self._decide(SessionFaulted(session_id, error))
            for command, shortage in self._submit(commands):
                session_id = command.key.session_id
                if session_id not in failed:
                    failed[session_id] = shortage
                    consequences += self._decide(SessionFaulted(session_id, shortage))
            instructions = consequences
        if self._gathered is None:
            self._set_timer()
            self.load_watch.touch()

    def _submit(
        self, commands: Sequence[EngineCommand]
    ) -> list[tuple[EngineCommand, ResourceExhausted]]:
        """Submit commands to the engine. Returns those that didn't fit into its mailbox."""
        if self._gathered is not None:
            self._gathered += commands
            return []
        if not commands:
            return []
        refused = self._engine.submit(commands)
        self._watchdog.engage()
        return refused

    def _tried(self, instruction: Send | Told | Refuse | Grant) -> AntiphonError | None:
        """Carry out a single instruction. Returns the error if it fails."""
        try:
            match instruction:
                case Send(Destination("", ""), chunk):
                    self._reply(chunk.session_id, chunk, chunk.size_bytes)
                case Send(destination, chunk):
                    self._links.send_nowait(Peer(destination.address, destination.boot_id), chunk)
                case Opened(session_id) | Suspended(session_id):
                    self._reply(session_id, instruction)
                case SegmentOpened(key) | SegmentRefused(key) | Report(key):
                    self._reply(key.session_id, instruction)
                case Progress(key):
                    self._tell_progress(key.session_id, instruction)
                case Refuse(link_id) | Grant(link_id):
                    self._answer(link_id, instruction)
        except AntiphonError as error:
            return error
        except Exception as error:
            _report(session_of(instruction), error)
            return unexpected(error)
        return None

    def _reply(self, session_id: str, reply: Reply, size_bytes: int = 0) -> None:
        if (outbox := self._replies.get(session_id)) is not None:
            outbox.put_nowait(reply, size_bytes)

    def _tell_progress(self, session_id: str, progress: Progress) -> None:
        """Send a progress message, unless there is an unread message that already implies progress.
        A message that counts steps replaces an earlier, unread one.
        """
        if (outbox := self._replies.get(session_id)) is None:
            return
        if progress.due:
            outbox.put_latest(progress)
        elif outbox.is_empty:
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
        """Set a timer for the table's next deadline.

        If the timer is already set to an earlier time, it is left as it is, because most deadlines
        are extended before they expire.
        """
        deadline = self._table.next_deadline()
        if deadline is None or (self._timer is not None and self._wakes_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        # After `close`, streams can still end, but no timer is needed any more.
        if not self.closed.is_set():
            self._timer = self._loop.call_at(deadline, self._tick)
            self._wakes_at = deadline

    def _tick(self) -> None:
        self._timer = None
        self.handle(TimePassed())

    def _load(self) -> LoadCounts:
        return LoadCounts(
            draining=not self._accepting,
            open_sessions=self._table.session_count,
            open_segments=self._table.open_segments,
            held_segments=self._table.held_segments,
            refused=self._table.tally.refused,
        )


def _report(session_id: str, error: Exception) -> None:
    log.error("session %s failed", session_id, exc_info=error)
