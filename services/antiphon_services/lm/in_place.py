"""Operations that write to memory which is there already, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def into(out: Tensor | None, operation: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """What an operation gives, in `out` if there is one.

    `torch.compile` takes no `out` with gaps between its rows, but makes one kernel of the operation
    and a copy.
    """
    if out is None or not torch.compiler.is_compiling():
        return operation(*operands, out=out)
    return out.copy_(operation(*operands))
