"""How the outputs of one segment flow: waits for credit, and audio that is late for who hears it.

Pure, and only counted: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.pipelines.graph import Edge
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.runtime.session.tally import Tally


class PlayOut:
    """A listener who plays an edge's positions from the first chunk on, and pauses only when he
    has nothing: at `rate_hz`. While the edge has no credit he is taken to pause, too: then it is
    he who takes nothing."""

    def __init__(self, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        # When all that has left will have been played; None before the first.
        self._until: float | None = None
        self._held_since: float | None = None

    def play(self, positions: int, now: float) -> float:
        """So many more have left: the seconds for which nothing was there before them."""
        if self._held_since is not None:
            self.resume(now)
            self.hold(now)
        until = now if self._until is None else self._until
        self._until = max(until, now) + positions / self._rate_hz
        return max(0.0, now - until)

    def hold(self, now: float) -> None:
        """Credit is missing from now on."""
        self._held_since = now

    def resume(self, now: float) -> None:
        """It has come."""
        if self._until is not None and self._held_since is not None:
            self._until += now - self._held_since
        self._held_since = None


class OutputFlow:
    """The outlets of one segment, from its opening to its `end`. `rates` has positions a second of
    what the client hears."""

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
        """Outlets may wait for credit now, or no longer."""
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
        """Something leaves for the client."""
        if edge not in self._heard:
            return
        counted_by, play_out = self._heard[edge]
        positions = sum(len(piece.tensors.get(counted_by, ())) for piece in pieces)
        if positions and (missing := play_out.play(positions, now)):
            self._tally.underruns[edge] += 1
            self._tally.underrun_s[edge] += missing

    def end(self) -> None:
        """The segment is over."""
        for name, since in self._held_since.items():
            self._tally.stalls.end(name, since)
        self._held_since.clear()
