"""Runs a function of rows at a few fixed sizes, so that a GPU can replay it as a CUDA graph.

A CUDA graph repeats kernels at the same addresses and shapes. Inputs are copied into fixed buffers,
rows are padded to the next bucket, and outputs are always in the same place. The function must not
read a device value, branch on one, derive a shape from one, or copy from the host.

Padding rows hold values of earlier calls, or zeros. So each output row may depend only on its own
input row, and the function's memory must have a row for each of the largest bucket.

The graphs of a `GraphPool` share memory for intermediate values. They must be replayed in the order
of capture. An output is valid until any of them is replayed in another round; copy it to keep it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition

# Maps tensors of n rows to tensors of n rows.
RowFunction = Callable[..., tuple[Tensor, ...]]

# Makes a function run in buckets, given full-size buffers with valid inputs and the least number of
# rows.
Bucketing = Callable[[RowFunction, Sequence[Tensor], int], RowFunction]

# Libraries select kernels and allocate workspaces in the first runs, which a graph must not do.
RUNS_BEFORE_CAPTURE = 3


def bucket_sizes(least: int, most: int) -> tuple[int, ...]:
    """Return ascending bucket sizes: powers of two times `least` below `most`, then `most`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


class Eager:
    """Calls the function on padded buffers, like graphs do, on a device without graphs.

    `buffers` [most, ...] become its inputs. Calls take at most `most` rows and return as many as
    given.
    """

    def __init__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> None:
        self._function, self._buffers = function, tuple(buffers)
        self.sizes = bucket_sizes(least, len(buffers[0]))

    def __call__(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results for `rows`, each [n, ...] like its buffer."""
        count = len(rows[0])
        for buffer, given in zip(self._buffers, rows, strict=True):
            buffer[:count].copy_(given)
        results = self._run(self.sizes[bisect_left(self.sizes, count)])
        return tuple(each[:count] for each in results)

    def _run(self, size: int) -> tuple[Tensor, ...]:
        return self._function(*(each[:size] for each in self._buffers))


class GraphPool:
    """The graphs of one device, with their shared memory and capture stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._handle = torch.cuda.graph_pool_handle()
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        """Implements `Bucketing`. All buckets are captured when it returns."""
        return CudaGraphs(function, buffers, least, self)

    @torch.inference_mode()
    def capture(
        self, function: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """Return a graph of the call and its output tensors.

        Raises `FailedPrecondition` if the call does what a graph cannot.
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
                    f"graphs: capturing on {self._device} failed; set it to false: {error}"
                ) from error
            # The first replay is slower, since it uploads the graph.
            graph.replay()
        return graph, outputs


class CudaGraphs(Eager):
    """One CUDA graph per bucket, captured on construction."""

    def __init__(
        self, function: RowFunction, buffers: Sequence[Tensor], least: int, pool: GraphPool
    ) -> None:
        super().__init__(function, buffers, least)
        self._graphs = {}
        # Largest first: the others' intermediates fit into its memory.
        for size in reversed(self.sizes):
            self._graphs[size] = pool.capture(partial(super()._run, size))

    def _run(self, size: int) -> tuple[Tensor, ...]:
        graph, outputs = self._graphs[size]
        graph.replay()
        return outputs


def graphs_of(config: StageConfig) -> Bucketing | None:
    """Return CUDA graphs if available and configured. Fused kernels use buckets on a CPU, too."""
    device = torch.device(config.device)
    if device.type == "cuda":
        return GraphPool(device) if config.graphs else None
    return Eager if config.fused else None
