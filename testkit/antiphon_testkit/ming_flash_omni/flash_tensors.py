"""The names and shapes of the thinker's tensors in a Ming-flash-omni checkpoint."""

from __future__ import annotations

from antiphon_testkit.ming_flash_omni.flash_config import (
    DOWNSAMPLING_KERNEL,
    ENCODER_POSITIONS,
    FRAMES_TOGETHER,
    MEL_BINS,
    MERGED,
    PATCH,
    POSITION_GRID,
    PROJECTION_LAYERS,
)
from antiphon_testkit.ming_flash_omni.flash_shape import HEAD_DIM, FlashShape
from antiphon_testkit.tensor_shapes import Shapes, convolution, linear

GATES = ("gate", "image_gate", "audio_gate")
POSITIONAL_EMBEDDING = "audio.positional_embedding"


def thinker_shapes(shape: FlashShape, vocabulary: int) -> Shapes:
    """Return the shapes of the language model, both encoders and their projections."""
    width = shape.hidden
    shapes: Shapes = {
        "model.model.word_embeddings.weight": (vocabulary, width),
        "model.model.norm.weight": (width,),
        "model.lm_head.weight": (vocabulary, width),
        **_audio(shape),
        **_vision(shape),
        **linear("linear_proj.0", width, width),
        **convolution("linear_proj_audio.0", shape.audio_hidden, width, DOWNSAMPLING_KERNEL),
    }
    for number in range(1, PROJECTION_LAYERS):
        shapes |= linear(f"linear_proj.{2 * number}", width, width)
        shapes |= linear(f"linear_proj_audio.{2 * number + 1}", width, width)
    for index in range(shape.layers):
        shapes |= _layer(f"model.model.layers.{index}", shape, dense=index < shape.dense_layers)
    return shapes


def _layer(stem: str, shape: FlashShape, *, dense: bool) -> Shapes:
    width, heads = shape.hidden, shape.heads + 2 * shape.kv_heads
    attention, mlp = f"{stem}.attention", f"{stem}.mlp"
    shapes: Shapes = {
        f"{stem}.input_layernorm.weight": (width,),
        f"{stem}.post_attention_layernorm.weight": (width,),
        **linear(f"{attention}.query_key_value", width, heads * HEAD_DIM, bias=False),
        **linear(f"{attention}.dense", shape.heads * HEAD_DIM, width, bias=False),
        f"{attention}.q_norm.weight": (HEAD_DIM,),
        f"{attention}.k_norm.weight": (HEAD_DIM,),
    }
    if dense:
        return shapes | _gated(mlp, width, shape.intermediate)
    for gate in GATES:
        shapes[f"{mlp}.{gate}.weight"] = (shape.experts, width)
        shapes[f"{mlp}.{gate}.expert_bias"] = (shape.experts,)
    for expert in range(shape.experts):
        shapes |= _gated(f"{mlp}.experts.{expert}", width, shape.expert_inner)
    inner = shape.shared_experts * shape.expert_inner
    return shapes | _gated(f"{mlp}.shared_experts", width, inner)


def _gated(stem: str, width: int, inner: int) -> Shapes:
    return {
        **linear(f"{stem}.gate_proj", width, inner, bias=False),
        **linear(f"{stem}.up_proj", width, inner, bias=False),
        **linear(f"{stem}.down_proj", inner, width, bias=False),
    }


def _audio(shape: FlashShape) -> Shapes:
    width = shape.audio_hidden
    shapes: Shapes = {
        **convolution("audio.conv1", MEL_BINS, width, 3),
        **convolution("audio.conv2", width, width, 3),
        POSITIONAL_EMBEDDING: (ENCODER_POSITIONS, width),
        **_norm("audio.ln_post", width),
    }
    for index in range(shape.audio_layers):
        block = f"audio.blocks.{index}"
        shapes |= {
            **linear(f"{block}.attn.query", width, width),
            **linear(f"{block}.attn.key", width, width, bias=False),
            **linear(f"{block}.attn.value", width, width),
            **linear(f"{block}.attn.out", width, width),
            **_norm(f"{block}.attn_ln", width),
            **linear(f"{block}.mlp.0", width, 4 * width),
            **linear(f"{block}.mlp.2", 4 * width, width),
            **_norm(f"{block}.mlp_ln", width),
        }
    return shapes


def _vision(shape: FlashShape) -> Shapes:
    width, merged = shape.vision_hidden, shape.vision_hidden * MERGED**2
    shapes: Shapes = {
        "vision.patch_embed.proj.weight": (width, 3, FRAMES_TOGETHER, PATCH, PATCH),
        "vision.patch_embed.proj.bias": (width,),
        "vision.pos_embed.weight": (POSITION_GRID**2, width),
        **_norm("vision.merger.norm", width),
        **linear("vision.merger.linear_fc1", merged, merged),
        **linear("vision.merger.linear_fc2", merged, shape.hidden),
        # The weights of deepstack are in the checkpoint, but the model doesn't use them.
        **_norm("vision.deepstack_merger_list.0.norm", merged),
        **linear("vision.deepstack_merger_list.0.linear_fc1", merged, merged),
        **linear("vision.deepstack_merger_list.0.linear_fc2", merged, shape.hidden),
    }
    for index in range(shape.vision_layers):
        block = f"vision.blocks.{index}"
        shapes |= {
            **_norm(f"{block}.norm1", width),
            **_norm(f"{block}.norm2", width),
            **linear(f"{block}.attn.qkv", width, 3 * width),
            **linear(f"{block}.attn.proj", width, width),
            **linear(f"{block}.mlp.linear_fc1", width, 2 * width),
            **linear(f"{block}.mlp.linear_fc2", 2 * width, width),
        }
    return shapes


def _norm(stem: str, width: int) -> Shapes:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}
