"""The weights of CosyVoice3's flow. Tensors have the same names as in `flow.pt`.

The computations are in `flow.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

POSITION_KERNEL, POSITION_GROUPS = 31, 16
TIME_WIDTH = 256


class FlowModule(nn.Module):
    """The weights of the flow. `config` is the `flow` object of the model's YAML file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["input_size"]
        self.input_embedding = nn.Embedding(config["vocab_size"], width)
        self.spk_embed_affine_layer = nn.Linear(config["spk_embed_dim"], config["output_size"])
        self.pre_lookahead_layer = _LookAhead(config["pre_lookahead_layer"])
        self.decoder = nn.Module()
        self.decoder.estimator = _Estimator(config["decoder"]["estimator"])


class _LookAhead(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = config["in_channels"], config["channels"]
        self.conv1 = nn.Conv1d(width, inner, config["pre_lookahead_len"] + 1)
        self.conv2 = nn.Conv1d(inner, width, 3)


class _Estimator(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, mel = config["dim"], config["mel_dim"]
        self.time_embed = nn.Module()
        self.time_embed.time_mlp = nn.Sequential(
            nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.input_embed = nn.Module()
        inputs = 2 * mel + config["mu_dim"] + config["spk_dim"]
        self.input_embed.proj = nn.Linear(inputs, width)
        self.input_embed.conv_pos_embed = nn.Module()
        for name in ("conv1", "conv2"):
            conv = nn.Conv1d(width, width, POSITION_KERNEL, groups=POSITION_GROUPS)
            setattr(self.input_embed.conv_pos_embed, name, nn.Sequential(conv, nn.Mish()))
        self.transformer_blocks = nn.ModuleList(_DitBlock(config) for _ in range(config["depth"]))
        self.norm_out = nn.Module()
        self.norm_out.linear = nn.Linear(width, 2 * width)
        self.proj_out = nn.Linear(width, mel)


class _DitBlock(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = config["dim"], config["heads"] * config["dim_head"]
        self.attn_norm = nn.Module()
        self.attn_norm.linear = nn.Linear(width, 6 * width)
        self.attn = nn.Module()
        self.attn.to_q = nn.Linear(width, inner)
        self.attn.to_k = nn.Linear(width, inner)
        self.attn.to_v = nn.Linear(width, inner)
        self.attn.to_out = nn.ModuleList([nn.Linear(inner, width)])
        middle = int(width * config["ff_mult"])
        self.ff = nn.Module()
        self.ff.ff = nn.Sequential(
            nn.Sequential(nn.Linear(width, middle), nn.GELU(approximate="tanh")),
            nn.Identity(),
            nn.Linear(middle, width),
        )
