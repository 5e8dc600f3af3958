"""Counts the operations that a step would launch on a device. It uses the meta device, which
doesn't store any values.

Reading a value (`item`, `tolist`, `cpu`, `nonzero`, a mask) raises an error on the meta device.
Other problems don't raise an error and are recorded here, which are operands on the host and
blocking copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
# The alignment for memory-efficient attention, which is `mem_eff_alignment` in torch's
# `attention.cpp`.
MASK_STRIDE = 8


class OneKernel(TorchFunctionMode):
    """Records operations for which a GPU has a single kernel, although they consist of several
    operations elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.count = 0
        self.attention: list[tuple[object, ...]] = []
        self.misfits: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in (scaled_dot_product_attention, rms_norm):
            return func(*args, **kwargs or {})
        self.count += 1
        if func is scaled_dot_product_attention:
            self._note_attention(*args, **kwargs or {})
        inside, self.inside = self.inside, True
        try:
            return func(*args, **kwargs or {})
        finally:
            self.inside = inside

    def _note_attention(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        **settings: Any,
    ) -> None:
        """Record the layout of a call, and the kernels that torch launches beforehand to convert
        its mask.

        A boolean mask requires two fills and a selection. If the rows of a mask don't begin at
        multiples of `MASK_STRIDE` elements, it requires a fill and a copy.
        """
        tensors = [queries, keys, values, *([] if attn_mask is None else [attn_mask])]
        self.attention.append(tuple((each.shape, each.stride()) for each in tensors))
        if attn_mask is None:
            return
        if attn_mask.dtype == torch.bool:
            self.misfits.append("a boolean mask")
            self.count += 3
        if any(stride % MASK_STRIDE for stride in attn_mask.stride()[:-1]):
            self.misfits.append(f"a mask with strides {attn_mask.stride()}")
            self.count += 2


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what would be launched on a device. Views and allocations are not counted.

    `waits` contains copies between host and device for which the caller has to wait. `on_host`
    contains operations that have an operand on the host.
    """

    def __init__(self, kernels: OneKernel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels
        self.counts: Counter[str] = Counter()
        self.waits: list[str] = []
        self.on_host: list[str] = []

    @property
    def total(self) -> int:
        """The total number of launches, including operations with a kernel of their own."""
        return self.counts.total() + self._kernels.count

    @contextmanager
    def one_kernel(self) -> Iterator[None]:
        """Count everything that is launched within the context as a single kernel."""
        inside, self._kernels.inside = self._kernels.inside, True
        count, calls = self._kernels.count, len(self._kernels.attention)
        try:
            yield
        finally:
            self._kernels.inside = inside
            self._kernels.count = count + 1
            del self._kernels.attention[calls:]

    @property
    def attention(self) -> list[tuple[object, ...]]:
        """The shapes and strides of every attention call. A plan cache would use these as its
        key.
        """
        return self._kernels.attention

    @property
    def misfits(self) -> list[str]:
        """The attention masks that torch converts or copies before each call."""
        return self._kernels.misfits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        devices = {_device(each) for each in tree_leaves((args, kwargs, made))} - {None}
        if len(devices) > 1:
            asynchronous = kwargs.get("non_blocking", False) or (
                func is aten.copy_.default and len(args) > 2 and args[2]
            )
            if func not in COPIES:
                self.on_host.append(str(func))
            elif not asynchronous:
                self.waits.append(str(func))
        if "meta" in devices and not self._is_free(func):
            self.counts[str(func)] += 1
        return made

    def _is_free(self, func: Any) -> bool:
        views = any(
            each.alias_info is not None and not each.alias_info.is_write
            for each in func._schema.returns
        )
        return (
            self._kernels.inside or views or any(part in str(func) for part in ("empty", "_view."))
        )


def _device(value: object) -> str | None:
    """Return the device of a tensor, or None for a number, which is passed as part of the call."""
    return value.device.type if isinstance(value, torch.Tensor) and value.ndim else None


@contextmanager
def launches_on_meta() -> Iterator[Launches]:
    """Count launches within the context. Inference mode is disabled, because it hides the parts of
    operations.
    """
    kernels = OneKernel()
    launches = Launches(kernels)
    with torch.no_grad(), launches, kernels:
        yield launches


@contextmanager
def meta_as_a_gpu() -> Iterator[torch.device]:
    """Make the meta device appear to have the memory and the kernels of a GPU."""
    with (
        patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)),
        patch.object(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40)),
    ):
        yield torch.device("meta")
