"""A link between two stages, with the real logs of both ends and simulated messages in transit.

Chunks are kept until they are acknowledged, and responses are kept until they are confirmed. If the
link breaks, all messages in transit are lost. When the link is reconnected, each end resends
whatever the other end hasn't received. Chunks go through the stream or the ring of the link
(`two_carriers.py`). Whichever is faster, they have to arrive once and in order. The payload of a
chunk can also be sent on the stream before the chunk itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.runtime.session.facts import DestinationLost
from antiphon.runtime.session.instructions import Grant, Refuse
from antiphon.transport.link.incoming.link import is_next
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.response_log import ResponseLog
from antiphon.transport.ring.entries import DamagedRing
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.blob import Encoding
from antiphon.wire.chunks import address_to_proto, chunk_from_proto, inline_bytes
from antiphon.wire.frames import CameOnLink, Frame
from antiphon_tools.simulation.host import SimulatedStage
from antiphon_tools.simulation.network import GONE, Gone, Violation
from antiphon_tools.simulation.two_carriers import TwoCarriers

LOG_BYTES = 1 << 20


class LoggedChunk(Outgoing):
    """A chunk in the producer's log."""

    __slots__ = ("chunk",)

    def __init__(self, chunk: Chunk) -> None:
        encoding = Encoding(chunk.tensors) if chunk.tensors else None
        super().__init__(address_to_proto(chunk), encoding)
        self.chunk = chunk


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The consumer has received the first `count` chunks."""

    count: int


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """The payload of a chunk was lost."""

    number: int


Answered = Grant | Refuse | Acknowledged | AskedAgain | DestinationLost


@dataclass(eq=False)
class SimulatedLink:
    """A link from an instance of the talker to one of the vocoder.

    Neither end knows which messages are in transit.
    """

    link_id: str
    producer: SimulatedStage
    consumer: SimulatedStage
    log: SendLog = field(default_factory=lambda: SendLog(LOG_BYTES, LOG_BYTES))
    answers: ResponseLog[Grant | Refuse] = field(default_factory=ResponseLog)
    forth: deque[CameOnLink | Gone] = field(default_factory=deque)
    back: deque[Answered] = field(default_factory=deque)
    suspended: bool = False
    received: int = 0
    # The number of received chunks that were acknowledged, and the number of responses that the
    # producer has received.
    acknowledged: int = 0
    answers_had: int = 0
    # The number of chunks that were sent, without those that are sent again.
    sent: int = 0
    is_ring_damaged: bool = False
    is_losing: bool = False
    _asked_again: bool = False
    _arrived: list[Chunk] = field(default_factory=list)
    # The payload that was sent before its chunk, and the numbers of the next chunks of all edges.
    _ahead: tuple[int, bytes] | None = None
    _next: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.carriers = TwoCarriers(self.forth, self._handle, has_ring=True)

    @property
    def next_chunk(self) -> Chunk | None:
        """The chunk that the producer can send next."""
        first = None if self.suspended else self.log.first()
        return first.chunk if isinstance(first, LoggedChunk) else None

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether the consumer has received chunks that it hasn't acknowledged yet."""
        return not self.suspended and self.acknowledged < self.received

    @property
    def may_lose_payload(self) -> bool:
        """Whether the payload of the next chunk can be lost."""
        return not (self.suspended or self.is_losing) and self.log.unconfirmed

    @property
    def must_break(self) -> bool:
        """Whether the consumer has found that the ring is damaged, and ends the connection."""
        return self.is_ring_damaged and self.carriers.ring is not None

    @property
    def wakes_consumer(self) -> bool:
        """Whether the consumer can notice entries of the ring."""
        return not self.suspended and self.carriers.wakes_reader

    def send(self, *, ahead: bool = False) -> None:
        """Send the producer's next chunk, after its payload or together with it."""
        first = self.log.first()
        assert isinstance(first, LoggedChunk)
        number = self.log.sent(first)
        self.sent = max(self.sent, number + 1)
        request = stage_pb2.LinkRequest()
        request.batch.first, request.batch.responses = number, self.answers_had
        proto = request.batch.chunks.add()
        proto.CopyFrom(first.address)
        if first.encoding is not None:
            data = first.encoding.to_bytes()
            proto.payload.size_bytes = len(data)
            if ahead:
                proto.payload.placed.transport = "ahead"
                self.carriers.write(Frame(number, 0, len(data), (memoryview(data),)))
            else:
                proto.payload.inline = data
        self.carriers.write(request)

    def take(self) -> list[Chunk] | Gone:
        """Receive the next message of the stream, and return all chunks that arrive with it.

        A chunk is dropped if it has already been received or has to wait for an earlier one. Raises
        `DataLoss` if an earlier chunk is missing.
        """
        message = self.forth.popleft()
        if isinstance(message, Gone):
            return message
        return self._read(lambda: self.carriers.arrive(message))

    def read_ring(self) -> list[Chunk]:
        """Receive the entries of the ring that are due, and return their chunks."""
        return self._read(self.carriers.read_ring)

    def lose_payload(self) -> None:
        """Let the next chunk with a payload arrive without it."""
        self.is_losing = True

    def acknowledge(self) -> None:
        """Send the consumer's acknowledgement to the producer."""
        self.acknowledged = self.received
        self.back.append(Acknowledged(self.received))

    def confirmed(self, count: int) -> None:
        """Let the producer receive an acknowledgement. Raises `Violation` if it is wrong."""
        if count > self.sent:
            raise Violation(f"{count} chunks were acknowledged, {self.sent} were sent")
        self.log.acknowledge(count)

    def answer(self, answer: Grant | Refuse) -> None:
        """Send a response from the consumer."""
        self.answers.append(answer)
        if not self.suspended:
            self.back.append(answer)

    def sever(self) -> None:
        """Break the link. Messages in transit are lost, except for the information that an end is
        gone.
        """
        self.suspended = True
        gone = GONE in self.forth
        lost = [each for each in self.back if isinstance(each, DestinationLost)]
        self.forth, self.back = deque([GONE] * gone), deque(lost)
        self.carriers = TwoCarriers(self.forth, self._handle, has_ring=False)

    def heal(self) -> None:
        """Reconnect the link. Each end resends what the other end has not received."""
        self.suspended = self._asked_again = self.is_losing = False
        self._ahead = None
        has_ring = not self.is_ring_damaged
        self.carriers = TwoCarriers(self.forth, self._handle, has_ring=has_ring)
        self.answers.confirmed(self.answers_had)
        self.acknowledged = self.received
        self.log.acknowledge(self.received)
        self.log.rewind(self.received)
        self.back.extend(self.answers.since(self.answers_had))

    def _read(self, read: Callable[[], None]) -> list[Chunk]:
        ring = self.carriers.ring
        try:
            read()
        except DamagedRing as error:
            if ring is None or not ring.is_damaged:
                raise Violation(f"an intact ring counts as damaged: {error}") from None
            self.is_ring_damaged = True
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _handle(self, message: CameOnLink) -> bool:
        if isinstance(message, Frame):
            self._ahead = message.transfer, b"".join(message.pieces)
            return True
        assert isinstance(message, stage_pb2.LinkRequest)
        batch = message.batch
        self.answers.confirmed(batch.responses)
        for number, proto in enumerate(batch.chunks, batch.first):
            self._take_chunk(number, proto)
        return True

    def _take_chunk(self, number: int, proto: chunk_pb2.Chunk) -> None:
        if self._asked_again and number > self.received:
            return
        if not is_next(number, self.received):
            return
        if self.is_losing and proto.HasField("payload"):
            self.is_losing, self._asked_again = False, True
            self.back.append(AskedAgain(number))
            return
        chunk = chunk_from_proto(proto, self._payload(number, proto))
        of = chunk.session_id, chunk.segment, chunk.edge
        if chunk.sequence != self._next.get(of, chunk.sequence):
            raise Violation(f"{self.link_id} delivers {chunk.edge} {chunk.sequence} out of order")
        self._next[of] = chunk.sequence + 1
        self._asked_again = False
        self.received += 1
        self._arrived.append(chunk)
        if chunk.segment_finished:
            self.acknowledge()

    def _payload(self, number: int, proto: chunk_pb2.Chunk) -> bytes:
        if not proto.payload.HasField("placed"):
            return inline_bytes(proto)
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != number:
            raise Violation(f"chunk {number} has overtaken its payload")
        return ahead[1]
