"""Modules that contain the weights of a decoder stack, under the same names as in checkpoints.

`antiphon_services.lm.decoder` does the computation, so a module only has a `forward` method if
something calls it. Shapes and names match transformers' implementations of Qwen's models. Stages
don't import these implementations, because each of the modelling files imports `torch._dynamo` and
`sympy`. This would cost 90 MB of memory and two seconds of CPU time for code that no stage runs.

`config` is the section of `config.json` that describes the stack. Its fields have the same names as
in transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}


def activation(name: str) -> nn.Module:
    """Return the activation function that `hidden_act` refers to. It computes the same values as in
    transformers.

    Raises `KeyError` if transformers doesn't have an activation function of this name either.
    """
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]()
    # This import loads transformers' modelling code, but no released checkpoint needs it.
    from transformers.activations import ACT2FN

    made: nn.Module = ACT2FN[name]
    return made


class RMSNorm(nn.Module):
    """Normalizes over the last dimension in float32, converts the result back, and then applies the
    weight.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.variance_epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize rows [..., width]. The shape and dtype don't change."""
        wide = rows.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + self.variance_epsilon)).to(rows.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention. If `head_norms` is true, queries and keys are
    normalized.

    `bias` determines whether the projections of queries, keys and values have a bias, and
    `out_bias` does the same for the output projection.
    """

    def __init__(self, config: Any, *, bias: bool, out_bias: bool, head_norms: bool) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", width // heads)
        self.scaling = self.head_dim**-0.5
        queries, keys = heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, width, bias=out_bias)
        if head_norms:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)


class GatedMLP(nn.Module):
    """A gated MLP. Its inputs and outputs have the stack's width, and its inner width is
    `inner`.
    """

    def __init__(self, config: Any, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.act_fn = activation(config.hidden_act)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the MLP's output for rows [..., width], in the same shape."""
        out: Tensor = self.down_proj(self.act_fn(self.gate_proj(rows)) * self.up_proj(rows))
        return out


class Router(nn.Module):
    """Chooses `top_k` experts for each row."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k: int = config.num_experts_per_tok
        self.norm_topk_prob: bool = config.norm_topk_prob
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))


class Experts(nn.Module):
    """The weights of all experts. Each weight is one tensor [experts, out, in]. In `gate_up_proj`,
    the gate rows precede the up rows.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        count, width = config.num_experts, config.hidden_size
        inner = config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))
        self.act_fn = activation(config.hidden_act)


class SparseMLP(nn.Module):
    """A router and its experts. If `shared` is nonzero, there is also a shared expert with this
    inner width.
    """

    def __init__(self, config: Any, *, shared: int = 0) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        if shared:
            self.shared_expert = GatedMLP(config, shared)
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)


class DecoderLayer(nn.Module):
    """Attention and an MLP, each preceded by a norm."""

    def __init__(self, config: Any, attention: Attention, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class RotaryEmbedding(nn.Module):
    """The cosines and sines of positions. Every `rope_type` whose frequencies don't depend on the
    sequence length is supported.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        rope = config.rope_parameters
        self.rope_type: str = rope["rope_type"]
        self.attention_scaling = 1.0
        if self.rope_type == "default":
            width = getattr(config, "head_dim", None)
            width = width or config.hidden_size // config.num_attention_heads
            exponents = torch.arange(0, width, 2, dtype=torch.float) / width
            frequencies = 1.0 / (rope["rope_theta"] ** exponents)
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            made: Any = ROPE_INIT_FUNCTIONS[self.rope_type]
            frequencies, self.attention_scaling = made(config)
        self.inv_freq = nn.Buffer(frequencies, persistent=False)

    @torch.no_grad()
    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines [..., n, head_dim] for positions [..., n], in the dtype of
        `like`.
        """
        angles = self.angles(like, positions)
        whole = torch.cat((angles, angles), dim=-1)
        scale = self.attention_scaling
        return (whole.cos() * scale).to(like.dtype), (whole.sin() * scale).to(like.dtype)

    def angles(self, like: Tensor, positions: Tensor) -> Tensor:
        """Return the angles [..., n, head_dim / 2] in float32."""
        frequencies = self.inv_freq.to(device=like.device, dtype=torch.float)
        return positions[..., None].float() * frequencies


class AxialRotaryEmbedding(RotaryEmbedding):
    """A rotary embedding for positions with three axes (time, height and width), whose frequencies
    are interleaved.
    """

    DEFAULT_SECTIONS = (24, 20, 20)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        rope = config.rope_parameters
        self.mrope_section = list(rope.get("mrope_section", self.DEFAULT_SECTIONS))

    def angles(self, like: Tensor, positions: Tensor) -> Tensor:
        """Return the angles [batch, n, head_dim / 2] for positions [3, batch, n]."""
        of_axes = super().angles(like, positions.expand(3, -1, -1))
        mixed = of_axes[0].clone()
        for axis in (1, 2):
            taken = slice(axis, self.mrope_section[axis] * 3, 3)
            mixed[..., taken] = of_axes[axis][..., taken]
        return mixed
