"""Operations that write to existing memory. They work both in eager mode and in compiled code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def into(out: Tensor | None, operation: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Return the result of an operation. If `out` is given, the result is written to it.

    `torch.compile` doesn't support an `out` whose rows have gaps between them, but it can fuse the
    operation with a copy.
    """
    if out is None or not torch.compiler.is_compiling():
        return operation(*operands, out=out)
    return out.copy_(operation(*operands))
