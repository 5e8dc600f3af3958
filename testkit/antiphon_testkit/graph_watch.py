"""Finds operations that can't be part of a CUDA graph, without requiring a device that supports
graphs.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# These operations wait for the device, return shapes that depend on values, or copy data from the
# host.
UNFIT = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.masked_scatter.default,
    aten.masked_scatter_.default,
    aten.bincount.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.lift_fresh.default,
    # This operation reads its probabilities first, even on a device.
    aten.multinomial.default,
}
# With a mask, these operations have to determine the positions first.
BY_PLACES = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# These functions copy values to the host. On a CPU, they don't call any operation.
READS = {
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.cpu,
    torch.Tensor.__array__,
}


class GraphWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations that can't be part of a graph.

    Don't use this class in inference mode, which hides the parts of composite operations.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0
        self.unfit: list[str] = []
        self._reads: list[_Reads] = []

    def __enter__(self) -> GraphWatch:
        reads = _Reads(self.unfit)
        reads.__enter__()  # type: ignore[no-untyped-call]
        self._reads.append(reads)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_value, traceback)  # type: ignore[no-untyped-call]
        self._reads.pop().__exit__(exc_type, exc_value, traceback)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        by_mask = func in BY_PLACES and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        if func in UNFIT or by_mask:
            self.unfit.append(str(func))
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Records reads that don't call any operation."""

    def __init__(self, unfit: list[str]) -> None:
        super().__init__()
        self._unfit = unfit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self._unfit.append(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))
