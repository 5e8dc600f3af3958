"""Fused layers against the operations that they replace, over the same weights.

In float32 results differ by the order of sums: 1e-5 of the largest. In bfloat16 kernels round where
the operations do, so all but a few numbers are equal, and those differ by a last digit or two.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
    Qwen3OmniMoeTalkerTextConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModel,
    Qwen3OmniMoeTalkerModel,
)

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.fused_lockstep import FusedLockstep
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.layer import FusedLayer, Layer
from antiphon_services.lm.lockstep import Lockstep
from antiphon_services.lm.rotary import Rotation

DTYPES = [torch.float32, torch.bfloat16]
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
ROWS = 5


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels()


def filled(module: Any, dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.5 / parameter.shape[-1] ** 0.5
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * scale if parameter.ndim > 1 else 1 + 0.2 * drawn)
    return module.requires_grad_(False).to(dtype)


def talker(dtype: torch.dtype, *, norm_topk_prob: bool = True) -> Any:
    config = Qwen3OmniMoeTalkerTextConfig(**SIZES, **EXPERTS, norm_topk_prob=norm_topk_prob)
    return filled(Qwen3OmniMoeTalkerModel(config), dtype)


def predictor(dtype: torch.dtype) -> Any:
    config = Qwen3OmniMoeTalkerCodePredictorConfig(**SIZES, num_code_groups=6)
    return filled(Qwen3OmniMoeTalkerCodePredictorModel._from_config(config), dtype)


def close(made: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """As the module says."""
    difference, largest = (made - wanted).abs().float(), float(wanted.abs().max())
    assert torch.isfinite(made).all()
    if dtype == torch.float32:
        assert float(difference.max()) <= 1e-5 * largest
        return
    # A last digit of bfloat16 is 2 ** -8 of a number.
    assert float(difference.max()) <= 2**-6 * largest
    assert float((difference > 2**-7 * wanted.abs().float()).float().mean()) <= 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm_topk_prob", [True, False])
@torch.inference_mode()
def test_layer_with_experts(kernels: Kernels, dtype: torch.dtype, norm_topk_prob: bool) -> None:
    model = talker(dtype, norm_topk_prob=norm_topk_prob)
    rules: dict[str, bool] = {"batch_invariant": False, "exact_norms": True}
    plain = Layer(model.layers[0], **rules)
    fused = FusedLayer(model.layers[0], kernels, **rules)
    rotation = Rotation.of(model.rotary_emb, 40, like=model.norm.weight)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, 32, generator=generator).to(dtype)
    delta = torch.randn(ROWS, 32, generator=generator).to(dtype)
    mixed = torch.randn(ROWS, 4, 16, generator=generator).to(dtype)
    positions = torch.tensor([0, 7, 39, 3, 3])
    wanted = plain.enter(rows + delta, rotation.at(positions))
    total, heads = fused.enter_fused(rows, delta, rotation, positions)
    assert torch.equal(total, rows + delta)
    close(heads, wanted, dtype)
    close(fused.enter_fused(rows, None, rotation, positions)[1],
          plain.enter(rows, rotation.at(positions)), dtype)  # fmt: skip
    left, more = fused.leave_fused(rows, mixed)
    close(left + more, plain.leave(rows, mixed), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_lockstep_over_all_positions_of_a_frame(kernels: Kernels, dtype: torch.dtype) -> None:
    model = predictor(dtype)
    plain, fused = Lockstep(model, 4, 6), FusedLockstep(model, 4, 6, kernels)
    scale = 1.0 if plain.output_scale is None else plain.output_scale
    generator = torch.Generator().manual_seed(2)
    for count in (4, 2):
        given = [torch.randn(count, 32, generator=generator).to(dtype) for _ in range(6)]
        wanted = [plain.begin(given[0], given[1]) * scale]
        made = [fused.begin(given[0], given[1])]
        for position in range(2, 6):
            wanted.append(plain.go_on(position, given[position]) * scale)
            made.append(fused.go_on(position, given[position]))
        for each, other in zip(made, wanted, strict=True):
            close(each, other, dtype)


@torch.inference_mode()
def test_other_activations_are_refused(kernels: Kernels) -> None:
    model = talker(torch.float32)
    model.layers[0].mlp.experts.act_fn = torch.nn.GELU()
    with pytest.raises(
        FailedPrecondition, match=r"hidden_act is a GELU.*set torch\.fused to false"
    ):
        FusedLayer(model.layers[0], kernels, batch_invariant=False, exact_norms=True)
