"""Operations that write to existing memory, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def into(out: Tensor | None, operation: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Return an operation's result, written to `out` if given.

    `torch.compile` does not support an `out` with gaps between rows, but fuses the operation with a
    copy.
    """
    if out is None or not torch.compiler.is_compiling():
        return operation(*operands, out=out)
    return out.copy_(operation(*operands))
