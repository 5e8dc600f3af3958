"""Finds what a CUDA graph cannot hold, without a device that has graphs."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# They wait for the device, give shapes that depend on values, or copy from the host.
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
    # Looks at its probabilities first, on a device too.
    aten.multinomial.default,
}
# By a mask they look for the places first.
BY_PLACES = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# They bring values to the host; on a CPU no operation is asked for.
READS = {
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.cpu,
    torch.Tensor.__array__,
}


class GraphWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations that no graph may hold.

    To be used without inference mode, which hides what composite operations are made of.
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
    """Notes what is read without an operation."""

    def __init__(self, unfit: list[str]) -> None:
        super().__init__()
        self._unfit = unfit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self._unfit.append(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))
