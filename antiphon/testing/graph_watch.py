"""Finds what a CUDA graph cannot hold, without a device that has graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# They wait for the device, give shapes that depend on values, or copy from the host.
UNFIT = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.lift_fresh.default,
}


class GraphWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations that no graph may hold.

    To be used without inference mode, which hides what composite operations are made of.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0
        self.unfit: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        by_mask = func in (aten.index.Tensor, aten.index_put_.default) and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if func in UNFIT or by_mask:
            self.unfit.append(str(func))
        return func(*args, **(kwargs or {}))
