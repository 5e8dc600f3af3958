"""The replicas and their links, with the messages and faults that may occur next.

A replica can be killed and is then restarted. It can also be suspended. After that, it either
resumes or is replaced by the gateway. A link can break and is then either reconnected or lost. The
ring of a link can be damaged. The payload of a chunk can be lost. The call of a standing stream can
break, in which case another call continues the stream, unless either end has given it up. A stage
can also send more on a stream than a line's window allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from antiphon.errors import Unavailable
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.stage import Reply
from antiphon.runtime.session.facts import (
    ChunkArrived,
    Credited,
    DestinationLost,
    DestinationSuspended,
    Fact,
    LinkLost,
    LinkSuspended,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import (
    REPLY,
    Destination,
    End,
    Grant,
    Instruction,
    Refuse,
    Send,
    Told,
    session_of,
)
from antiphon.runtime.session.plan import SessionRequest
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Chunk
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.host import ROLES, VOCODER, SimulatedStage
from antiphon_tools.simulation.links import (
    Acknowledged,
    AskedAgain,
    LoggedChunk,
    SimulatedLink,
)
from antiphon_tools.simulation.network import GONE, Gone, Violation, name_of
from antiphon_tools.simulation.standing import SimulatedStanding, SimulatedStream

REPLICAS = 2
MOST_WAKES = 20_000
OUTBOX_BYTES = 1 << 20

Move = tuple[str, Callable[[], None]]
MOST_MOVES = 20_000


def remaining_moves(moves: Callable[[], Sequence[Move]]) -> Iterator[Move]:
    """Yield moves until none is possible. Raises `Violation` if there are too many."""
    for turn in range(MOST_MOVES):
        possible = moves()
        if not possible:
            return
        yield possible[turn % len(possible)]
    raise Violation("it goes on for ever")


class SimulatedFleet:
    """The replicas of both stages.

    `failed` becomes true after any fault that can end a session. `waited` becomes true after a
    delay that exceeds the stages' timeouts. `overrun` contains the sessions whose lines have
    exceeded their window, which is only a valid reason to end for these sessions.
    """

    def __init__(self) -> None:
        self.failed = self.waited = False
        self.now = 0.0
        self._boots = 0
        self._links_made = 0
        self.hosts: dict[str, SimulatedStage | None] = {}
        for role in ROLES:
            for number in range(REPLICAS):
                self._start(role, f"{role}:{number}")
        self.streams: list[SimulatedStream] = []
        self.standing: list[SimulatedStanding] = []
        self.overrun: set[str] = set()
        self.links: list[SimulatedLink] = []

    @property
    def unwell(self) -> bool:
        """Whether anything is currently down, suspended or disconnected."""
        hosts = self.hosts.values()
        still = any(host is None or host.stands_still for host in hosts)
        return still or any(link.suspended for link in self.links)

    def arrivals(self) -> Iterator[Move]:
        """Yield the next message of each queue to a replica."""
        for standing in self.standing:
            yield from self._standing_moves(standing)
        for link in self.links:
            yield from self._link_moves(link)

    def _standing_moves(self, standing: SimulatedStanding) -> Iterator[Move]:
        host = standing.host
        if self.runs(host) and not host.stands_still:
            if standing.down:
                what = f"{host.name} gets {name_of(standing.down[0])}"
                yield what, standing.arrive_down
            if standing.stage_sends and not (standing.stage_over or standing.stage_suspended):
                yield f"{host.name} sends what its lines have", standing.send_up
            if standing.may_be_given_up:
                yield f"{host.name} gives suspended lines up", standing.lose_at_stage
        if not standing.gateway_over:
            if standing.up:
                yield (
                    f"the gateway gets {name_of(standing.up[0])} from {host.name}",
                    standing.arrive_up,
                )
            if standing.gateway_sends:
                yield f"the gateway sends to {host.name}", standing.send_down
            if standing.may_be_continued:
                what = f"the gateway continues the stream to {host.name}"
                yield what, partial(self._continue, standing)

    def _link_moves(self, link: SimulatedLink) -> Iterator[Move]:
        producer, consumer = link.producer, link.consumer
        if not consumer.stands_still:
            if link.forth and not link.suspended:
                what = f"{consumer.name} gets {name_of(link.forth[0])} from {producer.name}"
                yield what, partial(self._carry, link)
            if link.wakes_consumer and self.runs(consumer):
                what = f"{consumer.name} reads the ring of {producer.name}"
                yield what, partial(self._read_ring, link)
            if link.owes_acknowledgement and self.runs(consumer):
                yield f"{consumer.name} acknowledges to {producer.name}", link.acknowledge
        if not producer.stands_still:
            if link.back and not link.suspended:
                what = f"{producer.name} gets {name_of(link.back[0])} from {consumer.name}"
                yield what, partial(self._answer, link)
            if self.runs(producer) and (chunk := link.next_chunk) is not None:
                what = f"{producer.name} sends {name_of(chunk)} to {consumer.name}"
                yield what, link.send
                if chunk.tensors:
                    yield f"{what} after its payload", partial(link.send, ahead=True)

    def rounds(self) -> Iterator[Move]:
        """Yield the actions that engines can take and the delivery of their results."""
        for host in self.hosts_up():
            if host.stands_still:
                continue
            if host.can_step:
                yield f"the engine of {host.name} steps", host.step
            if host.batches:
                yield f"{host.name} takes a step in", partial(self._settle, host)

    def faults(self) -> Iterator[Move]:
        """Yield the faults that may occur next."""
        for host in self.hosts_up():
            yield f"{host.name} is killed", partial(self._kill, host)
            if not host.stands_still:
                yield f"{host.name} stands still", partial(self._stand_still, host)
        for link in self.links:
            if not link.suspended:
                yield f"{_where(link)} breaks", partial(self._break, link)
                if link.wakes_consumer and self.runs(link.consumer):
                    what = f"{_where(link)} breaks when the ring was read"
                    yield what, partial(self._break_later, link)
                if (ring := link.carriers.ring) is not None:
                    for how, damage in ring.damages():
                        yield f"the ring of {_where(link)} {how}", damage
            if link.may_lose_payload:
                yield f"{_where(link)} loses a payload", link.lose_payload
        for standing in self.standing:
            if not standing.is_lost:
                name = f"the stream to {standing.host.name}"
                yield f"{name} breaks", standing.sever
                yield f"{name} ends after what is on its way", standing.end_call
        for stream in self.streams:
            if not stream.standing.is_lost and not stream.host.stands_still:
                what = f"{stream.host.name} overruns the line of {stream.session_id}"
                yield what, partial(self._overrun, stream)

    def recoveries(self) -> Iterator[Move]:
        """Yield the possible consequences of earlier faults."""
        for address, host in self.hosts.items():
            if host is None:
                yield f"{address} is started", partial(self._restart, address)
            elif host.stands_still:
                yield f"{host.name} goes on", partial(self._go_on, host)
                yield f"the gateway gives {host.name} up", partial(self._give_up, host)
        for link in self.links:
            if link.suspended:
                yield f"{_where(link)} is back", partial(self._heal, link)
                yield f"{_where(link)} is lost", partial(self._lose, link)
        for standing in self.standing:
            name = f"the stream to {standing.host.name}"
            if standing.stage_suspended and not standing.stage_over:
                yield f"{name} is given up there", partial(self._lose_at_stage, standing)
            if standing.lines.is_suspended and not standing.gateway_over:
                yield f"{name} is given up here", partial(self._lose_at_gateway, standing)

    def recover(self) -> None:
        """Restore all replicas and links."""
        for address, host in self.hosts.items():
            if host is None:
                self._restart(address)
            else:
                self._go_on(host)
        for link in tuple(self.links):
            if link.suspended:
                self._heal(link)

    def advance(self, seconds: float) -> None:
        """Advance the time. Raises `Violation` if a check fails."""
        self.now += seconds
        for host in self.hosts_up():
            if not host.stands_still:
                self._wake(host)

    def _wake(self, host: SimulatedStage) -> None:
        for _ in range(MOST_WAKES):
            due = host.table.next_deadline()
            if due is None or due > self.now:
                return
            self.take(host, host.handle(TimePassed(), self.now))
        raise Violation(f"{host.name} wants to be woken again and again")

    def check_rest(self) -> None:
        """Raise `Violation` if a resource is still held long after the last call."""
        # Chunks are kept for a while if their session hasn't been opened.
        for _ in range(3):
            self.advance(10.0)
        for host in self.hosts_up():
            while host.can_step:
                host.step()
                while host.batches:
                    self.take(host, host.settle(self.now))
            table = host.table
            held = (table.session_count, table.open_segments, table.held_bytes)
            if any(held) or host.segments:
                raise Violation(
                    f"{host.name} holds {held[0]} sessions, {held[1]} slots, {held[2]} bytes and "
                    f"{len(host.segments)} segments in its engine"
                )
            if host.replies:
                raise Violation(f"{host.name} has replies of {', '.join(host.replies)}")
            if host.held_ends:
                raise Violation(f"{host.name} has not told the end of {', '.join(host.held_ends)}")
        for standing in self.standing:
            left = standing.lines.open, standing.table.open, len(standing.waiting)
            lost = standing.gateway_over or standing.stage_over
            if any(left) and not (lost and not self.runs(standing.host)):
                raise Violation(f"the stream to {standing.host.name} has {left} lines")
        for link in self.links:
            if link.log.sessions and self.runs(link.producer):
                raise Violation(f"{_where(link)} keeps chunks of {', '.join(link.log.sessions)}")

    def hosts_up(self) -> Iterator[SimulatedStage]:
        """Yield the running replicas."""
        return filter(None, tuple(self.hosts.values()))

    def alive(self, role: str) -> list[SimulatedStage]:
        """Return the running replicas of a stage."""
        return [host for host in self.hosts_up() if host.role == role]

    def runs(self, host: SimulatedStage) -> bool:
        """Return whether this instance of a replica is the one that is running."""
        return self.hosts[host.address] is host

    # -- stages ----------------------------------------------------------------------------

    def open_line(
        self, caller: Caller, host: SimulatedStage, opening: session_pb2.SessionOpen
    ) -> None:
        """Open a session from the gateway to a replica, on the existing standing stream or a new
        one.
        """
        standing = next((e for e in self.standing if e.host is host and not e.gateway_over), None)
        if standing is None:
            standing = SimulatedStanding(host, _Sessions(self, host))
            self.standing.append(standing)
        requests = LineRequests(host.role, opening)
        line = standing.lines.connect(requests, _ignore)
        self.streams.append(SimulatedStream(caller, opening.session_id, standing, requests, line))

    def leave(self, stream: SimulatedStream) -> None:
        """End a line from the gateway."""
        stream.line.cancel()
        self.streams.remove(stream)

    def _settle(self, host: SimulatedStage) -> None:
        self.take(host, host.settle(self.now))

    def take(self, host: SimulatedStage, instructions: list[Instruction]) -> None:
        """Deliver the messages of a stage to their queues."""
        for each in instructions:
            match each:
                case Send(destination, chunk) if destination != REPLY:
                    self._link_to(host, destination).log.append(LoggedChunk(chunk))
                case Grant(link_id) | Refuse(link_id):
                    for link in self.links:
                        if link.link_id == link_id:
                            link.answer(each)
                case End(session_id, None) if self._unacknowledged(host, session_id):
                    host.held_ends[session_id] = each
                case _:
                    self._reply(host, each)

    def route(self, host: SimulatedStage, fact: Fact) -> None:
        """Let a stage handle a fact."""
        self.take(host, host.handle(fact, self.now))

    def _unacknowledged(self, host: SimulatedStage, session_id: str) -> bool:
        links = (link for link in self.links if link.producer is host)
        return any(session_id in link.log.sessions for link in links)

    def _settle_ends(self, host: SimulatedStage) -> None:
        """Deliver the ends of sessions whose chunks have all been acknowledged."""
        for session_id in tuple(host.held_ends):
            if not self._unacknowledged(host, session_id):
                self._reply(host, host.held_ends.pop(session_id))

    def _reply(self, host: SimulatedStage, told: Instruction) -> None:
        if (outbox := host.replies.get(session_of(told))) is None:
            return
        match told:
            case Send(_, chunk):
                outbox.put_nowait(chunk, chunk.size_bytes)
            case End(session_id):
                del host.replies[session_id]
                outbox.end(told)
            case _:
                assert isinstance(told, Told)
                outbox.put_nowait(told)

    def _link_to(self, producer: SimulatedStage, destination: Destination) -> SimulatedLink:
        for link in self.links:
            if link.producer is producer and link.consumer.boot_id == destination.boot_id:
                return link
        consumer = self.hosts[destination.address]
        self._links_made += 1
        if consumer is None or consumer.boot_id != destination.boot_id:
            # In the real system, a different process at this address would refuse the link. The
            # result is the same if there is no process.
            consumer = SimulatedStage(VOCODER, destination.address, destination.boot_id)
            link = SimulatedLink(f"link {self._links_made}", producer, consumer)
            self._tell_producer(link)
        else:
            link = SimulatedLink(f"link {self._links_made}", producer, consumer)
        self.links.append(link)
        return link

    # -- links -----------------------------------------------------------------------------

    def _carry(self, link: SimulatedLink) -> None:
        if not self.runs(link.consumer):
            link.forth.popleft()
            return
        arrived = link.take()
        if isinstance(arrived, Gone):
            self.links.remove(link)
            self.route(link.consumer, LinkLost(link.link_id))
        else:
            self._arrive(link, arrived)

    def _read_ring(self, link: SimulatedLink) -> None:
        self._arrive(link, link.read_ring())

    def _arrive(self, link: SimulatedLink, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.route(link.consumer, ChunkArrived(chunk, link.link_id))
        if link.must_break:
            self._break(link)

    def _answer(self, link: SimulatedLink) -> None:
        answer, producer = link.back.popleft(), link.producer
        if not self.runs(producer):
            return
        match answer:
            case Acknowledged(count):
                link.confirmed(count)
                self._settle_ends(producer)
            case AskedAgain(number):
                link.log.rewind(number)
            case Grant(_, key, edge, positions):
                link.answers_had += 1
                to = Destination(link.consumer.address, link.consumer.boot_id)
                self.take(producer, producer.handle(Credited(key, edge, to, positions), self.now))
            case Refuse(_, session_id, error=error):
                link.answers_had += 1
                self.take(producer, producer.refuse(session_id, error, self.now))
            case DestinationLost():
                self._producer_loses(link)

    def _producer_loses(self, link: SimulatedLink) -> None:
        """Disconnect the producer's end of a link. Unacknowledged chunks are lost."""
        self.links.remove(link)
        producer, consumer = link.producer, link.consumer
        sessions = frozenset(link.log.sessions)
        error = Unavailable("the link was lost", stage=VOCODER, edge="codes")
        lost = DestinationLost(consumer.address, error, sessions, consumer.boot_id)
        self.take(producer, producer.handle(lost, self.now))
        for session_id in sessions:
            if producer.held_ends.pop(session_id, None) is not None:
                self._reply(producer, End(session_id, error))

    def _tell_producer(self, link: SimulatedLink) -> None:
        error = Unavailable("the link was lost", stage=VOCODER, edge="codes")
        consumer = link.consumer
        link.back.append(DestinationLost(consumer.address, error, boot_id=consumer.boot_id))

    # -- faults ---------------------------------------------------------------------------------

    def _kill(self, host: SimulatedStage) -> None:
        self.failed = True
        self.hosts[host.address] = None
        for standing in self.standing:
            if standing.host is host:
                standing.kill()
        for link in tuple(self.links):
            link.suspended = link.suspended and host not in (link.producer, link.consumer)
            if link.producer is host:
                link.forth.append(GONE)
            elif link.consumer is host:
                self._tell_producer(link)

    def _restart(self, address: str) -> None:
        self._start(address.partition(":")[0], address)

    def _start(self, role: str, address: str) -> None:
        self._boots += 1
        self.hosts[address] = SimulatedStage(role, address, f"{address}/{self._boots}")

    def _break(self, link: SimulatedLink) -> None:
        self.failed = True
        link.sever()
        producer, consumer = link.producer, link.consumer
        if self.runs(producer):
            broken = DestinationSuspended(consumer.address, consumer.boot_id)
            self.take(producer, producer.handle(broken, self.now))
        if self.runs(consumer):
            waiting = LinkSuspended(link.link_id, producer.address)
            self.take(consumer, consumer.handle(waiting, self.now))

    def _break_later(self, link: SimulatedLink) -> None:
        self._read_ring(link)
        if not link.suspended:
            self._break(link)

    def _heal(self, link: SimulatedLink) -> None:
        link.heal()
        if self.runs(link.producer):
            self._settle_ends(link.producer)

    def _lose(self, link: SimulatedLink) -> None:
        """Disconnect both ends of a link and report the loss to each of them."""
        if self.runs(link.producer):
            self._producer_loses(link)
        else:
            self.links.remove(link)
        consumer = link.consumer
        if self.runs(consumer):
            self.take(consumer, consumer.handle(LinkLost(link.link_id), self.now))

    def _stand_still(self, host: SimulatedStage) -> None:
        self.failed = host.stands_still = True

    def _go_on(self, host: SimulatedStage) -> None:
        host.stands_still = False
        self._wake(host)

    def _give_up(self, host: SimulatedStage) -> None:
        """Cancel the gateway's stream to a process.

        The process receives the cancellation when it resumes.
        """
        for standing in self.standing:
            if standing.host is host and not standing.gateway_over:
                standing.lose_at_gateway()

    def _continue(self, standing: SimulatedStanding) -> None:
        if not standing.call():
            self.failed = True

    def _lose_at_stage(self, standing: SimulatedStanding) -> None:
        self.failed = True
        standing.lose_at_stage()

    def _lose_at_gateway(self, standing: SimulatedStanding) -> None:
        self.failed = True
        standing.lose_at_gateway()

    def _overrun(self, stream: SimulatedStream) -> None:
        self.overrun.add(stream.session_id)
        stream.standing.overrun(stream.line.number)


class _Sessions:
    """The part of `Stage` between the stream of a session and the session table."""

    def __init__(self, fleet: SimulatedFleet, host: SimulatedStage) -> None:
        self._fleet = fleet
        self._host = host

    def open(
        self, request: SessionRequest, on_reply: Callable[[], None] | None = None
    ) -> Outbox[Reply]:
        opened = self._host.handle(SessionRequested(request), self._fleet.now)
        outbox: Outbox[Reply] = Outbox(OUTBOX_BYTES, on_reply)
        self._host.replies[request.session_id] = outbox
        self._fleet.take(self._host, opened)
        return outbox

    def handle(self, *facts: Fact) -> None:
        for fact in facts:
            self._fleet.route(self._host, fact)

    def stream_lost(self, session_id: str) -> None:
        self.handle(StreamLost(session_id))
        if (end := self._host.held_ends.pop(session_id, None)) is not None:
            self._fleet.take(self._host, [end])


def _ignore() -> None:
    """Do nothing."""


def _where(link: SimulatedLink) -> str:
    return f"the link from {link.producer.name} to {link.consumer.name}"
