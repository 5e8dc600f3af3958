"""Runs a function of rows with a small set of fixed sizes, so that a GPU can replay it as a CUDA
graph.

A CUDA graph repeats the same kernels with the same addresses and shapes. For this reason, inputs
are copied into fixed buffers, rows are padded to the next bucket, and outputs always have the same
address. The function must not read a value from the device, branch on such a value, derive a shape
from it, or copy data from the host.

Padding rows contain zeros or values from earlier calls, so each output row must depend only on the
corresponding input row. If the function uses other memory, it must have a row for each row of the
largest bucket.

The graphs in a `GraphPool` share the memory for intermediate values and must be replayed in the
order in which they were captured. An output is only valid until one of the graphs is replayed in
the next round. If you need it for longer, make a copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition

# A function that maps tensors with n rows to tensors with n rows.
RowFunction = Callable[..., tuple[Tensor, ...]]

# Makes a function run in buckets. The arguments are the function, full-size buffers with valid
# inputs, and the minimum number of rows.
Bucketing = Callable[[RowFunction, Sequence[Tensor], int], RowFunction]

# Libraries select kernels and allocate workspaces during their first runs, which isn't allowed
# while a graph is captured.
RUNS_BEFORE_CAPTURE = 3


def bucket_sizes(least: int, most: int) -> tuple[int, ...]:
    """Return the bucket sizes in ascending order. These are `least` times each power of two, as
    long as the product is below `most`, followed by `most` itself.
    """
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


class Eager:
    """Calls the function with padded buffers, as graphs do, but on a device that doesn't support
    graphs.

    The function's inputs are `buffers`, each of shape [most, ...]. A call accepts up to `most` rows
    and returns as many rows as it received.
    """

    def __init__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> None:
        self._function, self._buffers = function, tuple(buffers)
        self.sizes = bucket_sizes(least, len(buffers[0]))

    def __call__(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results for `rows`. Each result has n rows."""
        count = len(rows[0])
        for buffer, given in zip(self._buffers, rows, strict=True):
            buffer[:count].copy_(given)
        results = self._run(self.sizes[bisect_left(self.sizes, count)])
        return tuple(each[:count] for each in results)

    def _run(self, size: int) -> tuple[Tensor, ...]:
        return self._function(*(each[:size] for each in self._buffers))


class GraphPool:
    """A device's graphs, with the memory that they share and the stream on which they are
    captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._handle = torch.cuda.graph_pool_handle()
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        """Implements `Bucketing`. All buckets have been captured when this method returns."""
        return CudaGraphs(function, buffers, least, self)

    @torch.inference_mode()
    def capture(
        self, function: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """Capture a call of the function and return the graph and its output tensors.

        Raises `FailedPrecondition` if the call does something that isn't allowed in a graph.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(RUNS_BEFORE_CAPTURE):
                    function()
            current.wait_stream(self._stream)
            try:
                # Other threads of the process may use the device at the same time.
                with torch.cuda.graph(
                    graph,
                    pool=self._handle,
                    stream=self._stream,
                    capture_error_mode="thread_local",
                ):
                    outputs = function()
            except RuntimeError as error:
                raise FailedPrecondition(
                    f"torch.graphs: capturing on {self._device} failed: {error}; set "
                    "torch.graphs to false"
                ) from error
            # The first replay is slower because it uploads the graph, so do it now.
            graph.replay()
        return graph, outputs


class CudaGraphs(Eager):
    """One CUDA graph for each bucket. All graphs are captured during construction."""

    def __init__(
        self, function: RowFunction, buffers: Sequence[Tensor], least: int, pool: GraphPool
    ) -> None:
        super().__init__(function, buffers, least)
        self._graphs = {}
        # Capture the largest bucket first, so that the smaller ones fit into its memory for
        # intermediate values.
        for size in reversed(self.sizes):
            self._graphs[size] = pool.capture(partial(super()._run, size))

    def _run(self, size: int) -> tuple[Tensor, ...]:
        graph, outputs = self._graphs[size]
        graph.replay()
        return outputs


def graphs_of(config: StageConfig) -> Bucketing | None:
    """Return the bucketing for a stage, or None if none is configured. A GPU uses CUDA graphs. On a
    CPU, buckets are only used with fused kernels.
    """
    device = torch.device(config.device)
    if device.type == "cuda":
        return GraphPool(device) if config.torch.graphs else None
    return Eager if config.torch.fused else None
