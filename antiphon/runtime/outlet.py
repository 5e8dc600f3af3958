"""One output edge of one segment: collects what the engine emits, cuts it into chunks.

`stream` delivery sends what there is (or, on grouped edges, what the chunk policy
says), `whole` everything at the end. Positions are checked to be contiguous: an
engine that loses or repeats output is caught here.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.chunk import Tensor, Tensors, concatenate
from antiphon.errors import Internal
from antiphon.pipelines.graph import Edge
from antiphon.runtime.chunking import due
from antiphon.segment import ChunkPolicy, Delivery, FinishReason


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk without its address."""

    position: int
    tensors: Tensors
    finish_reason: FinishReason | None = None


class Outlet:
    """Pure: positions in, pieces out. Ends with exactly one piece that has a finish reason."""

    def __init__(self, edge: Edge, delivery: Delivery, policy: ChunkPolicy) -> None:
        self._edge = edge
        self._delivery = delivery
        self._policy = policy
        self._pending: list[tuple[int, Tensors]] = []
        self._total = 0
        self._sent = 0
        self.finished = False

    @property
    def total(self) -> int:
        """Positions emitted so far."""
        return self._total

    def push(
        self, position: int, tensors: Tensors, finish_reason: FinishReason | None
    ) -> list[Piece]:
        """Take an emission; return what goes out now. Raises `Internal` on a gap."""
        if self.finished:
            raise Internal(f"{self._edge.name}: output after its end", edge=self._edge.name)
        self._collect(position, tensors)
        self.finished = finish_reason is not None
        pieces = self._cut()
        if finish_reason is None:
            return pieces
        if pieces:
            last = pieces[-1]
            return [*pieces[:-1], Piece(last.position, last.tensors, finish_reason)]
        return [Piece(self._sent, {}, finish_reason)]

    def _collect(self, position: int, tensors: Tensors) -> None:
        """Append an emission after checking that it continues the last one."""
        if not tensors:
            return
        counted = tensors.get(self._edge.counted_by)
        if counted is not None:
            if position != self._total:
                raise Internal(
                    f"{self._edge.name}: emitted position {position}, expected {self._total}",
                    edge=self._edge.name,
                )
            self._total += len(counted)
        self._pending.append((position, tensors))

    def _cut(self) -> list[Piece]:
        """The pieces that are due."""
        if not self._pending or (self._delivery is Delivery.WHOLE and not self.finished):
            return []
        if self._delivery is Delivery.WHOLE or not self._edge.grouped:
            piece = Piece(self._pending[0][0], self._joined())
            self._pending.clear()
            self._sent = self._total
            return [piece]
        sizes = due(self._total, self._sent, finished=self.finished, policy=self._policy)
        return [self._take(size) for size in sizes]

    def _take(self, size: int) -> Piece:
        """Cut `size` positions off the front of what is pending."""
        joined = self._joined()
        piece = Piece(self._sent, {name: tensor[:size] for name, tensor in joined.items()})
        self._sent += size
        rest = {name: tensor[size:] for name, tensor in joined.items()}
        self._pending = [(self._sent, rest)] if self._total > self._sent else []
        return piece

    def _joined(self) -> dict[str, Tensor]:
        """All pending tensors, joined name by name."""
        return concatenate([tensors for _, tensors in self._pending])
