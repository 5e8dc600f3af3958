"""Uses tensor names to detect whether part of a checkpoint is quantized.

`config.json` describes a single quantization method for the whole model (`quantization_config`),
but some checkpoints quantize only some of their parts. A quantized weight can be recognized because
it is stored as several tensors with characteristic names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TELL_TALES: Mapping[str, str] = {
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "g_idx": "GPTQ",
    "scales": "GPTQ, AWQ or MLX",
    "weight_packed": "compressed-tensors",
    "weight_zero_point": "compressed-tensors",
    "weight_scale": "FP8",
    "weight_scale_inv": "FP8",
    "weight_scale_2": "NVFP4",
    "input_scale": "FP8",
    "SCB": "bitsandbytes",
    "absmax": "bitsandbytes",
    "quant_map": "bitsandbytes",
}
"""Maps the last component of a characteristic tensor name to a quantization method.

It is used if `config.json` doesn't name a method.
"""
BY_VLLM = frozenset(
    {"auto-round", "awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "modelopt", "quark"}
)
"""The methods that vLLM supports, under their names in `config.json`."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Describes how a part is quantized.

    `method` is a human-readable name, `tensor` is the name of a tensor that reveals the method, and
    `by_vllm` states whether vLLM supports the method.
    """

    method: str
    tensor: str
    by_vllm: bool

    def describe(self) -> str:
        """Return the predicate of a sentence for use in an error message."""
        return f"is quantized with {self.method} ({self.tensor})"


def quantization_of(
    config: Mapping[str, Any], names: Iterable[str], prefix: str
) -> Quantization | None:
    """Return how the tensors whose names begin with `prefix` are quantized, or None if they aren't.

    `names` contains all tensor names, and `config` is the content of `config.json`.
    """
    found = next(
        (name for name in names if name.startswith(prefix) and _last(name) in TELL_TALES), None
    )
    if found is None:
        return None
    section = config.get("quantization_config") or config.get("quantization")
    method = section.get("quant_method") if isinstance(section, Mapping) else None
    if not isinstance(method, str):
        return Quantization(TELL_TALES[_last(found)], found, by_vllm=False)
    return Quantization(method, found, by_vllm=method in BY_VLLM)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
