"""Replicas and the links between them, with what may arrive and what may fail there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from antiphon.chunk import Chunk
from antiphon.errors import Unavailable
from antiphon.runtime.session.facts import (
    ChunkArrived,
    Credited,
    DestinationLost,
    DestinationSuspended,
    LinkLost,
    LinkSuspended,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import (
    REPLY,
    Destination,
    Grant,
    Instruction,
    Refuse,
    Send,
    session_of,
)
from tools.simulation.host import ROLES, VOCODER, SimulatedStage
from tools.simulation.network import GONE, Gone, SimulatedLink, SimulatedStream, Violation, name_of

REPLICAS = 2
MOST_WAKES = 20_000

Move = tuple[str, Callable[[], None]]


class SimulatedFleet:
    """Replicas of both stages; `failed` once anything has."""

    def __init__(self) -> None:
        self.failed = False
        self.now = 0.0
        self._boots = 0
        self._links_made = 0
        self.hosts: dict[str, SimulatedStage | None] = {}
        for role in ROLES:
            for number in range(REPLICAS):
                self._start(role, f"{role}:{number}")
        self.streams: list[SimulatedStream] = []
        self.links: list[SimulatedLink] = []

    def arrivals(self) -> Iterator[Move]:
        """The next message of each queue to a replica."""
        for stream in self.streams:
            if stream.down:
                what = f"{stream.host.name} gets {name_of(stream.down[0])} of {stream.session_id}"
                yield what, partial(self._deliver_down, stream)
        for link in self.links:
            producer, consumer = link.producer.name, link.consumer.name
            if link.chunks and not link.suspended:
                what = f"{consumer} gets {name_of(link.chunks[0])} from {producer}"
                yield what, partial(self._carry, link)
            if link.back and not link.suspended:
                what = f"{producer} gets {name_of(link.back[0])} from {consumer}"
                yield what, partial(self._answer, link)

    def rounds(self) -> Iterator[Move]:
        """What engines may do, and what has come of it."""
        for host in self.hosts_up():
            if host.can_step:
                yield f"the engine of {host.name} steps", host.step
            if host.batches:
                yield f"{host.name} takes a step in", partial(self._settle, host)

    def faults(self) -> Iterator[Move]:
        """What may fail next."""
        for host in self.hosts_up():
            yield f"{host.name} is killed", partial(self._kill, host)
        for link in self.links:
            if not link.suspended:
                yield f"{_where(link)} breaks", partial(self._suspend, link)

    def recoveries(self) -> Iterator[Move]:
        """What may come of what has failed."""
        for address, host in self.hosts.items():
            if host is None:
                yield f"{address} is started", partial(self._restart, address)
        for link in self.links:
            if link.suspended:
                yield f"{_where(link)} is back", partial(self._heal, link)
                yield f"{_where(link)} is lost", partial(self._lose, link)

    def recover(self) -> None:
        """All replicas and links are up."""
        for address, host in self.hosts.items():
            if host is None:
                self._restart(address)
        for link in self.links:
            link.suspended = False

    def advance(self, seconds: float) -> None:
        """Time passes. Raises `Violation`."""
        self.now += seconds
        for host in self.hosts_up():
            for _ in range(MOST_WAKES):
                due = host.table.next_deadline()
                if due is None or due > self.now:
                    break
                self._route(host, host.handle(TimePassed(), self.now))
            else:
                raise Violation(f"{host.name} wants to be woken again and again")

    def check_rest(self) -> None:
        """Raise `Violation` if anybody holds anything, long after the last call."""
        # Chunks that came for a session which was never opened are kept for a while.
        for _ in range(3):
            self.advance(10.0)
        for host in self.hosts_up():
            while host.can_step:
                host.step()
                while host.batches:
                    self._route(host, host.settle(self.now))
            table = host.table
            held = (table.session_count, table.open_segments, table.held_bytes)
            if any(held) or host.segments:
                raise Violation(
                    f"{host.name} holds {held[0]} sessions, {held[1]} slots, {held[2]} bytes and "
                    f"{len(host.segments)} segments in its engine"
                )

    def hosts_up(self) -> Iterator[SimulatedStage]:
        """Those that run."""
        return filter(None, tuple(self.hosts.values()))

    def alive(self, role: str) -> list[SimulatedStage]:
        """Those of a stage that run."""
        return [host for host in self.hosts_up() if host.role == role]

    # -- stages ----------------------------------------------------------------------------

    def _deliver_down(self, stream: SimulatedStream) -> None:
        fact = stream.down.popleft()
        if self.hosts[stream.host.address] is stream.host:
            self._route(stream.host, stream.host.handle(fact, self.now))
        if isinstance(fact, StreamLost):
            self.streams.remove(stream)

    def _settle(self, host: SimulatedStage) -> None:
        self._route(host, host.settle(self.now))

    def _route(self, host: SimulatedStage, instructions: list[Instruction]) -> None:
        """Put what a stage sends on its way."""
        for each in instructions:
            match each:
                case Send(destination, chunk) if destination != REPLY:
                    self._link_to(host, destination).chunks.append(chunk)
                case Grant(link_id) | Refuse(link_id):
                    for link in self.links:
                        if link.link_id == link_id:
                            link.back.append(each)
                case _:
                    self._reply(host, each)

    def _reply(self, host: SimulatedStage, told: Instruction) -> None:
        for stream in self.streams:
            if stream.host is host and stream.session_id == session_of(told):
                stream.up.append(told)

    def _link_to(self, producer: SimulatedStage, destination: Destination) -> SimulatedLink:
        for link in self.links:
            if link.producer is producer and link.consumer.boot_id == destination.boot_id:
                return link
        consumer = self.hosts[destination.address]
        self._links_made += 1
        if consumer is None or consumer.boot_id != destination.boot_id:
            # Another process there refuses the link; nobody is there at all: the same in the end.
            consumer = SimulatedStage(VOCODER, destination.address, destination.boot_id)
            link = SimulatedLink(f"link {self._links_made}", producer, consumer)
            self._tell_producer(link)
        else:
            link = SimulatedLink(f"link {self._links_made}", producer, consumer)
        self.links.append(link)
        return link

    # -- links -----------------------------------------------------------------------------

    def _carry(self, link: SimulatedLink) -> None:
        chunk = link.chunks.popleft()
        if self.hosts[link.consumer.address] is not link.consumer:
            return
        lost = isinstance(chunk, Gone)
        fact = (
            LinkLost(link.link_id) if isinstance(chunk, Gone) else ChunkArrived(chunk, link.link_id)
        )
        self._route(link.consumer, link.consumer.handle(fact, self.now))
        if lost:
            self.links.remove(link)

    def _answer(self, link: SimulatedLink) -> None:
        answer, producer = link.back.popleft(), link.producer
        if self.hosts[producer.address] is not producer:
            return
        match answer:
            case Grant(_, key, edge, positions):
                to = Destination(link.consumer.address, link.consumer.boot_id)
                self._route(producer, producer.handle(Credited(key, edge, to, positions), self.now))
            case Refuse(_, session_id, error=error):
                self._route(producer, producer.refuse(session_id, error, self.now))
            case DestinationLost():
                self.links.remove(link)
                waiting = {each.session_id for each in link.chunks if isinstance(each, Chunk)}
                fact = DestinationLost(
                    answer.address, answer.error, frozenset(waiting), answer.boot_id
                )
                self._route(producer, producer.handle(fact, self.now))

    def _tell_producer(self, link: SimulatedLink) -> None:
        error = Unavailable("the link was lost", stage=VOCODER, edge="codes")
        consumer = link.consumer
        link.back.append(DestinationLost(consumer.address, error, boot_id=consumer.boot_id))

    # -- what fails --------------------------------------------------------------------------

    def _kill(self, host: SimulatedStage) -> None:
        self.failed = True
        self.hosts[host.address] = None
        for stream in self.streams:
            if stream.host is host:
                stream.up.append(GONE)
        for link in tuple(self.links):
            link.suspended = link.suspended and host not in (link.producer, link.consumer)
            if link.producer is host:
                link.chunks.append(GONE)
            elif link.consumer is host:
                self._tell_producer(link)

    def _restart(self, address: str) -> None:
        self._start(address.partition(":")[0], address)

    def _start(self, role: str, address: str) -> None:
        self._boots += 1
        self.hosts[address] = SimulatedStage(role, address, f"{address}/{self._boots}")

    def _suspend(self, link: SimulatedLink) -> None:
        self.failed = True
        link.suspended = True
        producer, consumer = link.producer, link.consumer
        if self.hosts[producer.address] is producer:
            broken = DestinationSuspended(consumer.address, consumer.boot_id)
            self._route(producer, producer.handle(broken, self.now))
        if self.hosts[consumer.address] is consumer:
            waiting = LinkSuspended(link.link_id, producer.address)
            self._route(consumer, consumer.handle(waiting, self.now))

    def _heal(self, link: SimulatedLink) -> None:
        link.suspended = False

    def _lose(self, link: SimulatedLink) -> None:
        """Neither end gets anything more, and each is told."""
        self.links.remove(link)
        producer, consumer = link.producer, link.consumer
        waiting = {each.session_id for each in link.chunks if isinstance(each, Chunk)}
        if self.hosts[producer.address] is producer:
            error = Unavailable("the link was lost", stage=VOCODER, edge="codes")
            told = DestinationLost(consumer.address, error, frozenset(waiting), consumer.boot_id)
            self._route(producer, producer.handle(told, self.now))
        if self.hosts[consumer.address] is consumer:
            self._route(consumer, consumer.handle(LinkLost(link.link_id), self.now))


def _where(link: SimulatedLink) -> str:
    return f"the link from {link.producer.name} to {link.consumer.name}"
