"""Runs a function of rows with a few fixed sizes, so that a GPU can replay it as a CUDA graph.

A CUDA graph repeats kernels with the same addresses and shapes. Therefore inputs are copied into
fixed buffers, rows are padded to the next bucket, and outputs are always at the same place. The
function must not read a value from the device, branch on such a value, derive a shape from it, or
copy from the host.

Padding rows contain values of earlier calls, or zeros. Each row of the output must therefore depend
only on the corresponding row of the input. The memory that the function uses must have a row for
each row of the largest bucket.

The graphs of a `GraphPool` share the memory for intermediate values. They must be replayed in the
order in which they were captured. An output is valid until one of the graphs is replayed in the
next round. Copy it if it is needed for longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition

# Maps tensors that have n rows to tensors that have n rows.
RowFunction = Callable[..., tuple[Tensor, ...]]

# Makes a function run in buckets. The arguments are the function, buffers of full size that contain
# valid inputs, and the minimum number of rows.
Bucketing = Callable[[RowFunction, Sequence[Tensor], int], RowFunction]

# During their first runs, libraries select kernels and allocate workspaces, which is not allowed in
# a graph.
RUNS_BEFORE_CAPTURE = 3


def bucket_sizes(least: int, most: int) -> tuple[int, ...]:
    """Return the bucket sizes in ascending order: all products of `least` and a power of two that
    are below `most`, followed by `most`.
    """
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


class Eager:
    """Calls the function with padded buffers, in the same way as graphs do, on a device that does
    not support graphs.

    `buffers` [most, ...] become the inputs of the function. A call accepts up to `most` rows and
    returns as many rows as it was given.
    """

    def __init__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> None:
        self._function, self._buffers = function, tuple(buffers)
        self.sizes = bucket_sizes(least, len(buffers[0]))

    def __call__(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Return the results of the function for `rows`. Each of them has the shape [n, ...] of its
        buffer.
        """
        count = len(rows[0])
        for buffer, given in zip(self._buffers, rows, strict=True):
            buffer[:count].copy_(given)
        results = self._run(self.sizes[bisect_left(self.sizes, count)])
        return tuple(each[:count] for each in results)

    def _run(self, size: int) -> tuple[Tensor, ...]:
        return self._function(*(each[:size] for each in self._buffers))


class GraphPool:
    """The graphs of one device, with their shared memory and the stream on which they are
    captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._handle = torch.cuda.graph_pool_handle()
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        """Implements `Bucketing`. All buckets have been captured when this returns."""
        return CudaGraphs(function, buffers, least, self)

    @torch.inference_mode()
    def capture(
        self, function: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """Return a graph of the call and its output tensors.

        Raises `FailedPrecondition` if the call does something that is not allowed in a graph.
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
                    f"torch.graphs: capturing on {self._device} failed; set it to false: {error}"
                ) from error
            # The first replay is slower because it uploads the graph.
            graph.replay()
        return graph, outputs


class CudaGraphs(Eager):
    """One CUDA graph for each bucket. They are captured during construction."""

    def __init__(
        self, function: RowFunction, buffers: Sequence[Tensor], least: int, pool: GraphPool
    ) -> None:
        super().__init__(function, buffers, least)
        self._graphs = {}
        # The largest bucket comes first, because the intermediate values of all others fit into its
        # memory.
        for size in reversed(self.sizes):
            self._graphs[size] = pool.capture(partial(super()._run, size))

    def _run(self, size: int) -> tuple[Tensor, ...]:
        graph, outputs = self._graphs[size]
        graph.replay()
        return outputs


def graphs_of(config: StageConfig) -> Bucketing | None:
    """Return CUDA graphs if they are available and configured. Fused kernels use buckets on a CPU
    as well.
    """
    device = torch.device(config.device)
    if device.type == "cuda":
        return GraphPool(device) if config.torch.graphs else None
    return Eager if config.torch.fused else None
