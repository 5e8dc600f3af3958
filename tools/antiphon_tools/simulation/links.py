"""A link between two stages, with the real logs of both ends and simulated messages in transit.

Chunks are kept until they are acknowledged, and responses are kept until they are confirmed. If the
link breaks, all messages in transit are lost. When the link is reconnected, each end resends
whatever the other end hasn't received. The stream and the ring of a link are simulated as one
queue, because the consumer processes their messages in the order in which they were written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.runtime.session.facts import DestinationLost
from antiphon.runtime.session.instructions import Grant, Refuse
from antiphon.transport.link.incoming.link import is_next
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.response_log import ResponseLog
from antiphon.values.chunk import Chunk
from antiphon.wire.blob import Encoding
from antiphon.wire.chunks import address_to_proto
from antiphon_tools.simulation.host import SimulatedStage
from antiphon_tools.simulation.network import GONE, Gone

LOG_BYTES = 1 << 20


class LoggedChunk(Outgoing):
    """A chunk in the producer's log."""

    __slots__ = ("chunk",)

    def __init__(self, chunk: Chunk) -> None:
        encoding = Encoding(chunk.tensors) if chunk.tensors else None
        super().__init__(address_to_proto(chunk), encoding)
        self.chunk = chunk


@dataclass(frozen=True, slots=True)
class SentChunk:
    """A chunk in transit and the number of responses that the producer had received when it was
    sent.
    """

    number: int
    chunk: Chunk
    answers: int


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
    forth: deque[SentChunk | Gone] = field(default_factory=deque)
    back: deque[Answered] = field(default_factory=deque)
    suspended: bool = False
    received: int = 0
    # The number of received chunks that were acknowledged, and the number of responses that the
    # producer has received.
    acknowledged: int = 0
    answers_had: int = 0
    _asked_again: bool = False

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
        """Whether the next chunk to arrive is the one that the consumer expects, so that losing its
        payload is possible.
        """
        batch = self.forth[0] if self.forth and not self.suspended else None
        return isinstance(batch, SentChunk) and batch.number == self.received

    def send(self) -> None:
        """Send the producer's next chunk."""
        first = self.log.first()
        assert isinstance(first, LoggedChunk)
        self.forth.append(SentChunk(self.log.sent(first), first.chunk, self.answers_had))

    def take(self) -> Chunk | Gone | None:
        """Receive the next message.

        Returns None for a chunk that has already been received or that has to wait for an earlier
        one. Raises `DataLoss` if an earlier chunk is missing.
        """
        batch = self.forth.popleft()
        if isinstance(batch, Gone):
            return batch
        self.answers.confirmed(batch.answers)
        if self._asked_again and batch.number > self.received:
            return None
        if not is_next(batch.number, self.received):
            return None
        self._asked_again = False
        self.received += 1
        if batch.chunk.segment_finished:
            self.acknowledge()
        return batch.chunk

    def lose_payload(self) -> None:
        """Deliver the next message without its payload."""
        batch = self.forth.popleft()
        assert isinstance(batch, SentChunk)
        self._asked_again = True
        self.back.append(AskedAgain(batch.number))

    def acknowledge(self) -> None:
        """Send the consumer's acknowledgement to the producer."""
        self.acknowledged = self.received
        self.back.append(Acknowledged(self.received))

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

    def heal(self) -> None:
        """Reconnect the link. Each end resends what the other end has not received."""
        self.suspended = self._asked_again = False
        self.answers.confirmed(self.answers_had)
        self.acknowledged = self.received
        self.log.acknowledge(self.received)
        self.log.rewind(self.received)
        self.back.extend(self.answers.since(self.answers_had))
