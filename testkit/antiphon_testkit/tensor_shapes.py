"""Names and shapes of the tensors in common layers, for families that write checkpoints without
modules."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def linear(stem: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """A linear layer's."""
    weight: Shapes = {f"{stem}.weight": (outputs, inputs)}
    return weight | {f"{stem}.bias": (outputs,)} if bias else weight


def convolution(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    """A convolution's, with a bias."""
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
    """Those of a decoder layer of Qwen; with `biased` queries, keys and values."""
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
