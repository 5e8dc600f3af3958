"""A layer against the decoder layer of Qwen2.5-Omni's diffusion transformer in Hugging Face."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import silu
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import DiTDecoderLayer

from antiphon_services.flow.layer import AllRows, LayerWeights, TimedLayer, rotation_of

WIDTH, HEADS, HEAD_DIM, EVALUATIONS, SEQUENCES = 24, 3, 8, 4, 2
CPU = torch.device("cpu")


class CausalRows(AllRows):
    """Rows that attend to themselves and earlier ones."""

    def seen(
        self, own: torch.Tensor, evaluation: int, window: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert window == 5
        return own, torch.ones(self.stop, self.stop, dtype=torch.bool).tril()


@pytest.fixture
def module() -> Any:
    torch.manual_seed(3)
    config: Any = Qwen2_5OmniDiTConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        head_dim=HEAD_DIM,
        ff_mult=2,
        attn_implementation="sdpa",
    )
    build: Any = DiTDecoderLayer
    return build(config).eval().requires_grad_(False)


@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_layer_is_that_of_hugging_face(module: Any, causal: bool, on_device: bool) -> None:
    count = 11
    rows = torch.randn(SEQUENCES, count, WIDTH)
    times = torch.randn(EVALUATIONS, WIDTH)
    weights = LayerWeights.of_block(module, silu(times), module.ff.ff[0], module.ff.ff[3])
    layer = TimedLayer(weights, HEADS, 5)
    rotation = rotation_of(0, count, HEAD_DIM, CPU)
    powers = torch.arange(0, HEAD_DIM, 2) / HEAD_DIM
    angles = (torch.arange(count)[:, None] / 10_000**powers).repeat(1, 2)
    turns = angles.cos()[None], angles.sin()[None]
    places = torch.arange(count)
    # Keys minus queries: those that are not behind are more than 0.
    apart = (places - places[:, None]).float().expand(SEQUENCES, 1, count, count)
    module.look_backward_block = count
    module.look_ahead_block = 0 if causal else count
    among: AllRows = CausalRows(0, count) if causal else AllRows(0, count)
    for evaluation in range(EVALUATIONS):
        expected = module(rows, times[evaluation].expand(SEQUENCES, -1), turns, apart)
        number = torch.tensor([evaluation]) if on_device else evaluation
        found = layer.forward(rows, number, rotation, among)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
