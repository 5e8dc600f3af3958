"""Measures a segment's output. It records audio underruns and the time spent waiting for credit.

The measurements don't affect the segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.pipelines.graph import Edge
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.runtime.session.tally import Tally


class PlayOut:
    """Models a client that starts playing an edge at `rate_hz` positions per second when the first
    chunk arrives.

    Playback pauses when the buffer is empty. It also pauses while the edge is waiting for credit,
    because the client isn't reading during that time.
    """

    def __init__(self, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        # The time at which everything that was sent so far will have been played. None before the
        # first piece.
        self._until: float | None = None
        self._held_since: float | None = None

    def play(self, positions: int, now: float) -> float:
        """Add `positions` positions that are being sent now. Returns the time, in seconds, for
        which the buffer had been empty before that.
        """
        if self._held_since is not None:
            self.resume(now)
            self.hold(now)
        until = now if self._until is None else self._until
        self._until = max(until, now) + positions / self._rate_hz
        return max(0.0, now - until)

    def hold(self, now: float) -> None:
        """Pause playback, because the edge is waiting for credit."""
        self._held_since = now

    def resume(self, now: float) -> None:
        """Resume playback after `hold`."""
        if self._until is not None and self._held_since is not None:
            self._until += now - self._held_since
        self._held_since = None


class OutputFlow:
    """Counts events on a segment's output edges from the time the segment is opened until `end` is
    called.

    `rates` contains the number of positions per second for each edge that the client plays.
    """

    def __init__(
        self,
        outlets: Mapping[str, OutputEdge],
        edges: Mapping[str, Edge],
        rates: Mapping[str, float],
        tally: Tally,
    ) -> None:
        self._tally = tally
        self._governed = [(name, outlet) for name, outlet in outlets.items() if outlet.governed]
        self._heard = {
            name: (edges[name].counted_by, PlayOut(rates[name]))
            for name in outlets
            if name in rates
        }
        self._held_since: dict[str, float] = {}

    def note(self) -> None:
        """Update the set of edges that are waiting for credit."""
        for name, outlet in self._governed:
            if outlet.held == (name in self._held_since):
                continue
            if outlet.held:
                now = self._held_since[name] = self._tally.stalls.begin(name)
                if name in self._heard:
                    self._heard[name][1].hold(now)
            else:
                now = self._tally.stalls.end(name, self._held_since.pop(name))
                if name in self._heard:
                    self._heard[name][1].resume(now)

    def left(self, edge: str, pieces: Iterable[Piece], now: float) -> None:
        """Record that pieces are being sent to the client on an edge."""
        if edge not in self._heard:
            return
        counted_by, play_out = self._heard[edge]
        positions = sum(len(piece.tensors.get(counted_by, ())) for piece in pieces)
        if positions and (missing := play_out.play(positions, now)):
            self._tally.underruns[edge] += 1
            self._tally.underrun_s[edge] += missing

    def end(self) -> None:
        """Stop waiting on all edges, because the segment has ended."""
        for name, since in self._held_since.items():
            self._tally.stalls.end(name, since)
        self._held_since.clear()
