"""Operations that write to existing memory. They can be used in eager mode and in compiled code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def into(out: Tensor | None, operation: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Return the result of an operation. If `out` is given, the result is written to it.

    `torch.compile` does not support an `out` with gaps between its rows, but it can fuse the
    operation with a copy.
    """
    if out is None or not torch.compiler.is_compiling():
        return operation(*operands, out=out)
    return out.copy_(operation(*operands))
