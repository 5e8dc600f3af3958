"""Runs a function of rows at a few fixed sizes, so that a GPU can replay what it launches.

A CUDA graph repeats its kernels at the same addresses and shapes: inputs are copied into
buffers that never move, rows are padded up to the next bucket, outputs come where they
came before. What the function may not do: ask the device for a value, branch on one,
make a shape out of one, or copy from the host.

Padding rows hold what earlier calls left there, or zeros. So every row of a result may
depend on its own row of the inputs alone, and the function's own memory must have a row
for each of the largest bucket.

The graphs of a `GraphPool` share memory for what lies between inputs and outputs. They
must be replayed in the order in which they were captured, and an output is good until
any of them is replayed in another round: whoever needs it longer copies it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition

# Takes tensors of n rows and gives tensors of n rows.
RowFunction = Callable[..., tuple[Tensor, ...]]

# Makes a function run by bucket, from buffers of as many rows as may come, which hold valid
# inputs, and the least number of rows to run it with.
Bucketing = Callable[[RowFunction, Sequence[Tensor], int], RowFunction]

# Libraries choose kernels and take workspaces in the first runs, which a graph may not.
RUNS_BEFORE_CAPTURE = 3


def bucket_sizes(least: int, most: int) -> tuple[int, ...]:
    """Powers of two times `least` below `most`, and `most`: ascending numbers of rows."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return (*sizes, most)


class Eager:
    """Calls the function on padded buffers: what graphs do, without a device that has them.

    `buffers` [most, ...] are its inputs from now on. Calls take `most` rows at most and
    give back as many rows as came.
    """

    def __init__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> None:
        self._function, self._buffers = function, tuple(buffers)
        self.sizes = bucket_sizes(least, len(buffers[0]))

    def __call__(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """What the function gives for `rows`, each [n, ...] as its buffer."""
        count = len(rows[0])
        for buffer, given in zip(self._buffers, rows, strict=True):
            buffer[:count].copy_(given)
        results = self._run(self.sizes[bisect_left(self.sizes, count)])
        return tuple(each[:count] for each in results)

    def _run(self, size: int) -> tuple[Tensor, ...]:
        return self._function(*(each[:size] for each in self._buffers))


class GraphPool:
    """The graphs of one device: memory that they share and the stream they are captured on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._handle = torch.cuda.graph_pool_handle()
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, function: RowFunction, buffers: Sequence[Tensor], least: int) -> RowFunction:
        """Implements `Bucketing`; all buckets are captured when it returns."""
        return CudaGraphs(function, buffers, least, self)

    @torch.inference_mode()
    def capture(
        self, function: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        """A graph of the call, and where its results will be.

        Raises `FailedPrecondition` if it does what a graph cannot.
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
                # Other threads of the process may use the device meanwhile.
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
            # The first replay takes longer, as it brings the graph to the device.
            graph.replay()
        return graph, outputs


class CudaGraphs(Eager):
    """One CUDA graph for each bucket, captured here."""

    def __init__(
        self, function: RowFunction, buffers: Sequence[Tensor], least: int, pool: GraphPool
    ) -> None:
        super().__init__(function, buffers, least)
        self._graphs = {}
        # The largest first: what the others need in between fits into its memory.
        for size in reversed(self.sizes):
            self._graphs[size] = pool.capture(partial(super()._run, size))

    def _run(self, size: int) -> tuple[Tensor, ...]:
        graph, outputs = self._graphs[size]
        graph.replay()
        return outputs


def graphs_of(config: StageConfig) -> Bucketing | None:
    """CUDA graphs where there are any and the setting wants them. Fused kernels run by buckets on a
    CPU, too."""
    device = torch.device(config.device)
    if device.type == "cuda":
        return GraphPool(device) if config.graphs else None
    return Eager if config.fused else None
