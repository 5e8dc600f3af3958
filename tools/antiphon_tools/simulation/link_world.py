"""A single link between two stages that only count, with all events that can occur on it.

This covers the carriers of a link much more densely than the simulation of whole calls: the ring is
often full, and each sequence of events contains several breaks and damages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from antiphon.runtime.session.instructions import Grant
from antiphon.values.chunk import Chunk
from antiphon.values.segment import SegmentKey
from antiphon_tools.simulation.engines import frame_of
from antiphon_tools.simulation.fleet import Move, remaining_moves
from antiphon_tools.simulation.host import TALKER, VOCODER, SimulatedStage
from antiphon_tools.simulation.links import Acknowledged, AskedAgain, LoggedChunk, SimulatedLink
from antiphon_tools.simulation.network import Gone, Violation, name_of

GRANT_EVERY = 3
"""The consumer sends a response after this many chunks."""
_PAYLOADS = (None, {"codes": np.zeros(1, np.int32)}, {"codes": np.zeros(9, np.int32)})
# The ends of all links. Only their names are used.
_PRODUCER = SimulatedStage(TALKER, "talker", "talker")
_CONSUMER = SimulatedStage(VOCODER, "code2wav", "code2wav")


class LinkWorld:
    """A link that carries `counts` chunks of each session. `faults` is the maximum number of
    faults.
    """

    def __init__(self, counts: Sequence[int], *, faults: int) -> None:
        self.link = SimulatedLink("link", _PRODUCER, _CONSUMER)
        self._faults_left = faults
        self._counts = counts
        self._made = [0] * len(counts)
        self._arrived = [0] * len(counts)
        self._granted = self._credited = 0

    def moves(self) -> list[Move]:
        """Return all events that may occur next, except faults."""
        return [*self._producer_moves(), *self._consumer_moves()]

    def faults(self) -> list[Move]:
        """Return all faults that may occur next, and recoveries from them."""
        link = self.link
        if link.suspended:
            return [("the link is back", link.heal)]
        if not self._faults_left:
            return []
        found: list[Move] = [("the link breaks", link.sever)]
        if link.wakes_consumer:
            found.append(("the link breaks when the ring was read", self._break_later))
        if link.may_lose_payload:
            found.append(("a payload is lost", link.lose_payload))
        if (ring := link.carriers.ring) is not None:
            found += [(f"the ring {how}", damage) for how, damage in ring.damages()]
        return [(name, partial(self._fail, fail)) for name, fail in found]

    def run_out(self, told: Callable[[str], None]) -> None:
        """Let all chunks arrive, with the link available. Raises `Violation` if a check fails."""
        for name, move in remaining_moves(self._moves_of_healed):
            told(name)
            move()
        if self._arrived != list(self._counts):
            raise Violation(f"{self._arrived} of {list(self._counts)} chunks have arrived")
        if self.link.log.sessions:
            raise Violation("chunks that have arrived were not confirmed")
        if self._credited != self._granted:
            raise Violation(f"{self._credited} of {self._granted} responses have arrived")

    def _moves_of_healed(self) -> list[Move]:
        if self.link.suspended:
            self.link.heal()
        return self.moves()

    def _producer_moves(self) -> Iterator[Move]:
        link = self.link
        for number, count in enumerate(self._counts):
            if self._made[number] < count:
                yield f"call{number} gets a chunk", partial(self._make, number)
        if (chunk := link.next_chunk) is not None:
            what = f"{name_of(chunk)} is sent"
            yield what, link.send
            if chunk.tensors:
                yield f"{what} after its payload", partial(link.send, ahead=True)
        if link.back and not link.suspended:
            yield f"the producer gets {name_of(link.back[0])}", self._answer

    def _consumer_moves(self) -> Iterator[Move]:
        link = self.link
        if link.suspended:
            return
        if link.forth:
            yield f"the consumer gets {name_of(link.forth[0])}", self._take
        if link.wakes_consumer:
            yield "the consumer reads the ring", lambda: self._arrive(link.read_ring())
        if link.owes_acknowledgement:
            yield "the consumer acknowledges", link.acknowledge

    def _make(self, number: int) -> None:
        sequence = self._made[number]
        self._made[number] += 1
        tensors = _PAYLOADS[frame_of(number, sequence) % len(_PAYLOADS)]
        chunk = Chunk(f"call{number}", "codes", 0, sequence, sequence, tensors or {})
        self.link.log.append(LoggedChunk(chunk))

    def _take(self) -> None:
        arrived = self.link.take()
        assert not isinstance(arrived, Gone)
        self._arrive(arrived)

    def _arrive(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            number = int(chunk.session_id.removeprefix("call"))
            if chunk.sequence != self._arrived[number]:
                raise Violation(f"{name_of(chunk)} has arrived twice or too early")
            self._arrived[number] += 1
            if sum(self._arrived) % GRANT_EVERY == 0:
                self._granted += 1
                key = SegmentKey(chunk.session_id, 0)
                self.link.answer(Grant("link", key, "codes", self._granted))
        if self.link.must_break:
            self.link.sever()

    def _answer(self) -> None:
        link = self.link
        match link.back.popleft():
            case Acknowledged(count):
                link.confirmed(count)
            case AskedAgain(number):
                link.log.rewind(number)
            case Grant(positions=positions):
                link.answers_had += 1
                if positions != self._credited + 1:
                    raise Violation(f"response {positions} has arrived after {self._credited}")
                self._credited = positions

    def _break_later(self) -> None:
        self._arrive(self.link.read_ring())
        self.link.sever()

    def _fail(self, fail: Callable[[], None]) -> None:
        self._faults_left -= 1
        fail()
