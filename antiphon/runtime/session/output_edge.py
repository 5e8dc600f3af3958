"""An output edge of a segment. It buffers the engine's output and splits it into chunks.

With `stream` delivery, output is sent as soon as it arrives, or according to the chunk policy if
the edge is grouped. With `whole` delivery, all output is sent as one piece at the end. If a large
amount of output becomes available at once, such as the hidden rows of a long prompt, it is split
into pieces of about `PIECE_BYTES` bytes. This allows chunks of other sessions to be sent in
between.

Tensors that have the same number of rows are split together. Tensors with a different length are
split separately, except on edges that count positions. On those edges, all tensors have to stay
together, for example because characters belong to certain IDs. Positions must be contiguous. If the
engine skips or repeats a position, `Internal` is raised.

On a paced edge, output that would follow the previous piece too soon waits until `due_at`. The
final piece is exempt.

On a governed edge, output that is due but not covered by credit waits here in order. `limit` lets
the engine finish the current chunk, so that one chunk is ready as soon as credit arrives. `whole`
delivery doesn't need credit, because the consumer can't use partial output anyway.

Priming output is sent immediately, ahead of all positions, regardless of the type of delivery.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from msgspec import Struct, structs

from antiphon.errors import Internal
from antiphon.pipelines.graph import Edge
from antiphon.runtime.engine import Emitted
from antiphon.runtime.session.chunking import due, next_boundary
from antiphon.runtime.session.credit import Credit
from antiphon.runtime.session.instructions import Destination
from antiphon.values.chunk import Tensor, Tensors, concatenate
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason

CLOCK_S = 0.0005
"""Half the timer resolution of an event loop."""

PIECE_BYTES = (4 << 20) - (64 << 10)
"""A piece of this size fits into a 4 MiB slot of a slab, together with the blob's header."""


class Piece(Struct, frozen=True):
    """A chunk without its address."""

    position: int
    tensors: Tensors
    finish_reason: FinishReason | None = None
    prime: bool = False


class OutputEdge:
    """Splits positions into pieces. This has no side effects. Only the last piece has a finish
    reason.

    The edge is `finished` once the engine has ended it, and `drained` once everything has been
    sent. `limit` is the position at which the engine must stop, or None if there is no limit. The
    edge is `held` while it needs credit to make progress.
    """

    def __init__(
        self, edge: Edge, delivery: Delivery, policy: ChunkPolicy, credit: Credit | None = None
    ) -> None:
        self._edge = edge
        self._delivery = delivery
        self._policy = replace(policy, first=policy.first + edge.look_ahead)
        self._credit = None if delivery is Delivery.WHOLE else credit
        self._pace_s = edge.pace_s if delivery is Delivery.STREAM else 0.0
        self._rests_until = -math.inf
        self._pending: list[tuple[int, Tensors]] = []
        self._begun = False
        self._total = 0
        self._sent = 0
        # The end of the chunk that is currently being filled. Used only if the edge is grouped.
        self._full_at = next_boundary(0, self._policy) if edge.grouped else 0
        self._finish_reason: FinishReason | None = None
        self.finished = self.drained = self.held = False
        self.limit = self._next_limit()

    @property
    def paced(self) -> bool:
        """Whether there is a minimum interval between pieces."""
        return self._pace_s > 0

    @property
    def governed(self) -> bool:
        """Whether output may be sent only if there is credit for it."""
        return self._credit is not None

    @property
    def total(self) -> int:
        """The number of positions that the engine has emitted so far."""
        return self._total

    @property
    def due_at(self) -> float | None:
        """The time at which output can be sent that is waiting only for the interval to pass. None
        if there is no such output.
        """
        return self._rests_until if self._pace_s and self._pending else None

    def prime(self, emitted: Emitted) -> list[Piece]:
        """Return the pieces of priming output.

        Raises `Internal` if the edge isn't `primed`, or if any positions have already been emitted.
        """
        if not self._edge.primed:
            raise Internal(f"{self._edge.name}: not declared `primed`", edge=self._edge.name)
        if self._begun or self.finished or emitted.position or emitted.finish_reason:
            raise Internal(
                f"{self._edge.name}: what primes must come first, at position 0 and without a "
                "finish reason",
                edge=self._edge.name,
            )
        return self._parts(Piece(0, emitted.tensors, prime=True)) if emitted.tensors else []

    def push(
        self,
        position: int,
        tensors: Tensors,
        finish_reason: FinishReason | None,
        now: float = math.inf,
    ) -> list[Piece]:
        """Add output from the engine and return the pieces that can be sent now. Raises `Internal`
        if positions are not contiguous.
        """
        if self.finished:
            raise Internal(f"{self._edge.name}: output after its end", edge=self._edge.name)
        self._collect(position, tensors)
        self._finish_reason, self.finished = finish_reason, finish_reason is not None
        return self._release(now)

    def release_due(self, now: float) -> list[Piece]:
        """Return the pieces whose interval has elapsed."""
        return self._release(now) if self.due_at is not None else []

    def grant(self, destination: Destination, positions: int) -> list[Piece]:
        """Apply credit and return the pieces that can be sent now."""
        if self._credit is None or self.drained:
            return []
        self._credit.grant(destination, positions)
        self.limit = self._next_limit()
        return self._release(math.inf)

    def _next_limit(self) -> int | None:
        if self._credit is None:
            return None
        granted = self._credit.granted
        return next_boundary(granted, self._policy) if self._edge.grouped else granted

    def _release(self, now: float) -> list[Piece]:
        """Return the pieces that are due and covered by credit. The last piece of the edge has the
        finish reason.
        """
        if self.limit is not None:
            self.held = self.finished or self._total >= self.limit
        if self._pace_s and not self.finished and now < self._rests_until - CLOCK_S:
            return []
        pieces = self._cut()
        if pieces and self._pace_s:
            self._rests_until = now + self._pace_s
        if self._finish_reason is None or self._pending:
            return pieces
        self.drained, self.held = True, False
        if pieces:
            last = pieces[-1]
            return [*pieces[:-1], Piece(last.position, last.tensors, self._finish_reason)]
        return [Piece(self._sent, {}, self._finish_reason)]

    def _collect(self, position: int, tensors: Tensors) -> None:
        """Append output after checking that it is contiguous."""
        if not tensors:
            return
        self._begun = True
        counted = tensors.get(self._edge.counted_by)
        if self._edge.grouped:
            self._check_rows(tensors, counted)
        if counted is not None:
            if position != self._total:
                raise Internal(
                    f"{self._edge.name}: emitted position {position}, expected {self._total}",
                    edge=self._edge.name,
                )
            self._total += len(counted)
        self._pending.append((position, tensors))

    def _check_rows(self, tensors: Tensors, counted: Tensor | None) -> None:
        """Raise `Internal` if the tensors can't be split at positions."""
        rows = -1 if counted is None else len(counted)
        for name, tensor in tensors.items():
            if not tensor.ndim or len(tensor) != rows:
                raise Internal(
                    f"{self._edge.name}: {name} has no row for each position, and the edge is "
                    "grouped; emit it with `prime`",
                    edge=self._edge.name,
                )

    def _cut(self) -> list[Piece]:
        """Return the pieces that are due and covered by credit, without a finish reason."""
        if not self._pending or (self._delivery is Delivery.WHOLE and not self.finished):
            return []
        if self._delivery is Delivery.WHOLE:
            return self._take_all()
        if not self._edge.grouped:
            taken = self._take_all()
            return self._parts(taken[0]) if taken else []
        if self._total < self._full_at and not self.finished:
            return []
        pieces = []
        for size in due(self._total, self._sent, finished=self.finished, policy=self._policy):
            if not self._has_credit(size):
                break
            pieces.append(self._take(size))
        return pieces

    def _has_credit(self, size: int) -> bool:
        return self._credit is None or self._credit.covers(self._sent, size)

    def _take_all(self) -> list[Piece]:
        """Return all pending output as one piece."""
        if not self._has_credit(self._total - self._sent):
            return []
        position, tensors = self._pending[0]
        piece = Piece(position, self._joined() if len(self._pending) > 1 else tensors)
        self._pending.clear()
        self._sent = self._total
        return [piece]

    def _parts(self, piece: Piece) -> list[Piece]:
        """Split a piece into parts of about `PIECE_BYTES` bytes. Concatenating the parts of a
        tensor yields the original tensor.
        """
        if sum([tensor.nbytes for tensor in piece.tensors.values()]) <= PIECE_BYTES:
            return [piece]
        by_rows: dict[int, dict[str, Tensor]] = {}
        for name, tensor in piece.tensors.items():
            by_rows.setdefault(len(tensor) if tensor.ndim else 0, {})[name] = tensor
        counts = self._edge.counted_by in piece.tensors and not piece.prime
        if counts and len(by_rows) > 1:
            return [piece]
        # Rows that aren't counted in positions all have the position of their piece.
        return [
            structs.replace(piece, position=piece.position + counts * first, tensors=tensors)
            for rows, alike in by_rows.items()
            for first, tensors in _slices(rows, alike)
        ]

    def _take(self, size: int) -> Piece:
        """Remove `size` positions from the front of the pending output and return them."""
        joined = self._joined()
        piece = Piece(self._sent, {name: tensor[:size] for name, tensor in joined.items()})
        self._sent += size
        self._full_at = next_boundary(self._sent, self._policy)
        rest = {name: tensor[size:] for name, tensor in joined.items()}
        self._pending = [(self._sent, rest)] if self._total > self._sent else []
        return piece

    def _joined(self) -> dict[str, Tensor]:
        """Return all pending tensors, joined by name."""
        return concatenate([tensors for _, tensors in self._pending])


def _slices(rows: int, tensors: Tensors) -> Iterator[tuple[int, Tensors]]:
    """Yield slices of `rows` rows, each about `PIECE_BYTES` bytes long, along with the index of the
    first row.
    """
    step = rows * PIECE_BYTES // max(1, sum(tensor.nbytes for tensor in tensors.values()))
    if step >= rows:
        yield 0, tensors
        return
    for first in range(0, rows, max(1, step)):
        stop = first + max(1, step)
        yield first, {name: tensor[first:stop] for name, tensor in tensors.items()}
