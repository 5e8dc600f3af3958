"""Whether a part of a checkpoint is quantised, which only its tensors tell.

`config.json` says how (`quantization_config`), for the whole model: a checkpoint may quantise one
part and leave the others as they are. A quantised weight is stored as several tensors with names of
their own, and these are looked for.
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
"""How a weight is quantised, by the last part of the name of a tensor that comes with it; the name
is that of the method where `config.json` has none."""
BY_VLLM = frozenset(
    {"auto-round", "awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "modelopt", "quark"}
)
"""Methods that vLLM reads, as `config.json` names them."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a part is quantised: a `method` for people, a `tensor` that shows it, and whether vLLM
    reads it."""

    method: str
    tensor: str
    by_vllm: bool

    def describe(self) -> str:
        """What a refusal says of it."""
        return f"is quantised with {self.method} ({self.tensor})"


def quantization_of(
    config: Mapping[str, Any], names: Iterable[str], prefix: str
) -> Quantization | None:
    """How the tensors of these `names` are quantised that begin with `prefix`; None if they are
    not. `config` is what `config.json` holds."""
    found = next(
        (name for name in names if name.startswith(prefix) and _last(name) in TELL_TALES), None
    )
    if found is None:
        return None
    told = config.get("quantization_config") or config.get("quantization")
    method = told.get("quant_method") if isinstance(told, Mapping) else None
    if not isinstance(method, str):
        return Quantization(TELL_TALES[_last(found)], found, by_vllm=False)
    return Quantization(method, found, by_vllm=method in BY_VLLM)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
