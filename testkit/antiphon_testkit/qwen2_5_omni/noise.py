"""Gives token2wav's noise to Hugging Face's module, which draws it by `torch.randn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from antiphon.pipelines.qwen2_5_omni import noise_source


class KeyedNoise(TorchFunctionMode):
    """While it is entered, `torch.randn` returns float32 noise of the `noise_source` of a key."""

    def __init__(self, key: int) -> None:
        super().__init__()
        self._source = noise_source(key)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """What `func` returns, or the noise."""
        if func is torch.randn:
            (size,) = args
            noise = torch.from_numpy(self._source.standard_normal(tuple(size), np.float32))
            return noise.to((kwargs or {}).get("device", "cpu"))
        return func(*args, **(kwargs or {}))
