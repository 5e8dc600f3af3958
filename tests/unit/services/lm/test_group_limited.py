"""Experts in groups are those of Hugging Face's DeepSeek-V3, for each router."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.group_limited import GroupLimited, GroupLimitedMLP
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu

ROWS, HIDDEN, FACTOR = 40, 24, 2.5
GATES = ("gate", "image_gate", "audio_gate")


def made(experts: int, groups: int, chosen: int, taken: int) -> GroupLimitedMLP:
    """Experts with random weights."""
    config = SimpleNamespace(
        hidden_size=HIDDEN,
        hidden_act="silu",
        num_experts=experts,
        num_experts_per_tok=taken,
        n_group=groups,
        topk_group=chosen,
        routed_scaling_factor=FACTOR,
        moe_intermediate_size=16,
        num_shared_experts=2,
    )
    module = GroupLimitedMLP(config, GATES)
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.3)
    for gate in GATES:
        # Hugging Face's mask is 0, so it only works if all biased scores are positive.
        getattr(module, gate).expert_bias.data.abs_()
    return module.requires_grad_(False)


def reference(module: GroupLimitedMLP, gate: str) -> DeepseekV3MoE:
    """Hugging Face's module with the same weights and one of the routers."""
    experts = module.experts
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        moe_intermediate_size=experts.down_proj.shape[-1],
        n_routed_experts=len(experts.down_proj),
        n_shared_experts=2,
        num_experts_per_tok=module.top_k,
        n_group=module.groups,
        topk_group=module.chosen_groups,
        routed_scaling_factor=FACTOR,
        norm_topk_prob=True,
    )
    wanted = DeepseekV3MoE(config).eval()
    router = getattr(module, gate)
    wanted.gate.weight.data.copy_(router.weight)
    wanted.gate.e_score_correction_bias.data.copy_(router.expert_bias)
    wanted.experts.gate_up_proj.data.copy_(experts.gate_up_proj)
    wanted.experts.down_proj.data.copy_(experts.down_proj)
    wanted.shared_experts.load_state_dict(module.shared_experts.state_dict())
    return wanted


@pytest.mark.parametrize("sizes", [(16, 4, 2, 4), (12, 3, 1, 3), (8, 2, 2, 2)])
@pytest.mark.parametrize("by_loop", [False, True])
@torch.inference_mode()
def test_each_row_has_the_output_of_its_router(
    sizes: tuple[int, int, int, int], by_loop: bool
) -> None:
    module = made(*sizes)
    mlp = GroupLimited(module, by_loop=by_loop)
    torch.manual_seed(1)
    rows = torch.randn(ROWS, HIDDEN)
    wanted = torch.stack([reference(module, gate)(rows[None])[0] for gate in GATES])
    assert (wanted[0] - wanted[1]).abs().amax(-1).min() > 1e-3
    torch.testing.assert_close(mlp(rows), wanted[0], rtol=0, atol=1e-5)
    kinds = torch.arange(ROWS) % len(GATES)
    of_kinds = wanted[kinds, torch.arange(ROWS)]
    torch.testing.assert_close(mlp(rows, kinds), of_kinds, rtol=0, atol=1e-5)
    torch.testing.assert_close(mlp.plus(rows, rows, kinds), rows + of_kinds, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_row_is_the_same_in_every_batch() -> None:
    mlp = GroupLimited(made(16, 4, 2, 4), by_loop=True)
    rows = torch.randn(ROWS, HIDDEN)
    whole = mlp(rows)
    for first in range(0, ROWS - LEAST_ROWS, 7):
        part = slice(first, first + LEAST_ROWS)
        assert torch.equal(mlp(rows[part]), whole[part])


@torch.inference_mode()
def test_routers_compute_in_float32() -> None:
    """A bfloat16 score can't tell experts apart that are close."""
    module = made(8, 2, 2, 2).bfloat16()
    rows = torch.randn(ROWS, HIDDEN).bfloat16()
    shares, taken = GroupLimited(module).choose(rows)
    wide_shares, wide_taken = GroupLimited(module.float()).choose(rows.float())
    assert shares.dtype == torch.float32
    assert torch.equal(taken, wide_taken)
    assert torch.equal(shares, wide_shares)


@pytest.mark.parametrize("routers", [1, len(GATES)])
def test_nothing_waits_for_the_device(routers: int) -> None:
    with meta_as_a_gpu() as device, torch.inference_mode():
        mlp = GroupLimited(made(16, 4, 2, 4).to(device).bfloat16())
        rows = torch.empty(ROWS, HIDDEN, dtype=torch.bfloat16, device=device)
        kinds = torch.empty(ROWS, dtype=torch.int64, device=device) if routers > 1 else None
        with launches_on_meta() as launches:
            assert mlp(rows, kinds).shape == rows.shape
    assert launches.waits == launches.on_host == []
