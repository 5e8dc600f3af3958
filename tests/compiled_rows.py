"""Compiles what a GPU would replay as a graph, and refuses what is not one whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.graphs import Eager, RowFunction


class CompiledRows:
    """A `lm.graphs.Bucketing`: each function becomes one graph by `torch.compile` for each
    number of rows, and that runs operation by operation.

    `graphs` counts them. A function that asks for a value, makes a shape of one, or does what
    cannot be traced raises a `torch._dynamo.exc.TorchDynamoException`.
    """

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        """Implements `Bucketing`."""
        compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=self._as_it_is)
        return Eager(compiled, buffers, least)

    def _as_it_is(self, graph: GraphModule, inputs: Sequence[Any]) -> Any:
        # Values that are asked for need not break a graph: they are symbols in it.
        asking = [node.name for node in graph.graph.nodes if _has_symbol(node)]
        if asking:
            raise FailedPrecondition(f"the graph waits for values: {', '.join(asking)}")
        self.graphs += 1
        return graph.forward


def _has_symbol(node: Node) -> bool:
    value = node.meta.get("example_value")
    parts = value.shape if isinstance(value, Tensor) else (value,)
    return any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in parts)
