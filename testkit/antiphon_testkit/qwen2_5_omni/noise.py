"""Makes Hugging Face's module, which calls `torch.randn`, use the same noise as token2wav."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from antiphon.pipelines.qwen2_5_omni import noise_source


class KeyedNoise(TorchFunctionMode):
    """A context in which `torch.randn` returns the float32 noise of a key's `noise_source`."""

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
        """Return the result of `func`, or the noise if `func` is `torch.randn`."""
        if func is torch.randn:
            (size,) = args
            noise = torch.from_numpy(self._source.standard_normal(tuple(size), np.float32))
            return noise.to((kwargs or {}).get("device", "cpu"))
        return func(*args, **(kwargs or {}))
