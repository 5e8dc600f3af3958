"""CUDA graphs without a device: replays run the function again, and write where a graph would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from antiphon_services.lm.graphs import GraphPool


class Replay:
    """A graph without a device: runs the function again, into the outputs of its capture.

    Graphs of a pool share memory: a replay may write on what comes after it in a frame.
    Here it does.
    """

    def __init__(self, function: Callable[[], tuple[Tensor, ...]], others: list[Replay]) -> None:
        self._function, self._others = function, others
        self._place = len(others)
        self.outputs = function()
        others.append(self)

    def replay(self) -> None:
        """Run it, and spoil what later graphs of the pool have put out."""
        for later in self._others[self._place + 1 :]:
            for each in later.outputs:
                each.fill_(1)
        for output, made in zip(self.outputs, self._function(), strict=True):
            output.copy_(made)


class ReplayPool(GraphPool):
    """Graphs as on a GPU, but replayed by running."""

    def __init__(self) -> None:
        self.graphs: list[Replay] = []

    def capture(self, function: Callable[[], tuple[Tensor, ...]]) -> Any:
        """A replay, and where its results will be."""
        graph = Replay(function, self.graphs)
        return graph, graph.outputs
