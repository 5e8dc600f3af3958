"""Tensors of any device as numpy arrays on the host."""

from __future__ import annotations

import ml_dtypes
import torch

from antiphon.chunk import Tensor


def to_numpy(tensor: torch.Tensor) -> Tensor:
    """The tensor's values on the host, in its own dtype; numpy lacks bfloat16."""
    host = tensor.cpu().contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()
