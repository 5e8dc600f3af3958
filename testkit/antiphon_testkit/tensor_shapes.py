"""The names and shapes of tensors in common layers, for families whose checkpoints are written
without modules.
"""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def linear(stem: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """Return the shapes of a linear layer."""
    weight: Shapes = {f"{stem}.weight": (outputs, inputs)}
    return weight | {f"{stem}.bias": (outputs,)} if bias else weight


def convolution(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    """Return the shapes of a convolution with a bias."""
    return {f"{stem}.weight": (outputs, inputs, kernel), f"{stem}.bias": (outputs,)}


def decoder_layer(
    stem: str,
    width: int,
    inner: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    biased: bool = False,
) -> Shapes:
    """Return the shapes of one of Qwen's decoder layers. If `biased` is true, queries, keys and
    values have a bias.
    """
    attention = f"{stem}.self_attn"
    return {
        **linear(f"{attention}.q_proj", width, heads * head_dim, bias=biased),
        **linear(f"{attention}.k_proj", width, kv_heads * head_dim, bias=biased),
        **linear(f"{attention}.v_proj", width, kv_heads * head_dim, bias=biased),
        **linear(f"{attention}.o_proj", heads * head_dim, width, bias=False),
        **linear(f"{stem}.mlp.gate_proj", width, inner, bias=False),
        **linear(f"{stem}.mlp.up_proj", width, inner, bias=False),
        **linear(f"{stem}.mlp.down_proj", inner, width, bias=False),
        f"{stem}.input_layernorm.weight": (width,),
        f"{stem}.post_attention_layernorm.weight": (width,),
    }
