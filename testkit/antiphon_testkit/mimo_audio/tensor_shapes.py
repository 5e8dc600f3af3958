"""Names and shapes of the tensors in a MiMo-Audio checkpoint.

Written down rather than taken from a model: the vendor's code and antiphon both load the
checkpoint, and the tests need neither's modules for it.
"""

from __future__ import annotations

from antiphon_testkit.mimo_audio.tiny_config import (
    CODEBOOK_SIZES,
    EMPTY_CODES,
    FFT,
    GROUP,
    KERNEL,
    MEL_BINS,
    POOLED,
)
from antiphon_testkit.mimo_audio.tiny_shape import MimoShape

Shapes = dict[str, tuple[int, ...]]


def model_shapes(shape: MimoShape, vocabulary: int) -> Shapes:
    """Those of the language model's directory."""
    hidden, local, group = shape.hidden, shape.local_hidden, shape.group_hidden
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
        "speech_group_downcast.weight": (hidden, GROUP * group),
        "hidden_states_downcast.weight": (local, hidden),
        **_qwen2_stack(
            "model",
            hidden,
            shape.intermediate,
            shape.layers,
            queries=shape.heads * shape.head_dim,
            keys=shape.kv_heads * shape.head_dim,
        ),
        **_qwen2_stack("local_transformer", local, shape.local_intermediate, shape.local_layers),
        **_qwen2_stack("input_local_transformer", group, 4 * group, shape.group_layers),
    }
    for channel, empty in enumerate(EMPTY_CODES):
        shapes[f"local_transformer_lm_heads.{channel}.weight"] = (empty + 1, local)
        shapes[f"speech_embeddings.{channel}.weight"] = (empty + 1, group)
    if group != local:
        shapes["speech_embeddings_to_local.weight"] = (local, group)
    return shapes


def codec_shapes(shape: MimoShape) -> Shapes:
    """Those of the audio tokenizer's directory, buffers included."""
    width, vocoder = shape.codec_hidden, shape.vocoder_hidden
    shapes: Shapes = {
        **_weighted("encoder.conv1", width, MEL_BINS, KERNEL),
        **_weighted("encoder.conv2", width, width, KERNEL),
        **_layers("encoder", width, shape.codec_intermediate, shape.encoder_layers),
        **_weighted("encoder.layer_norm", width),
        "encoder.down_sample_layer.0.weight": (width, width, POOLED),
        **_weighted("encoder.down_sample_norm", width),
        **_transposed("decoder.dconv1", width, width, POOLED),
        **_layers("decoder", width, shape.codec_intermediate, shape.decoder_layers),
        **_weighted("decoder.layer_norm", width),
        **_transposed("decoder.dconv2", width, MEL_BINS, KERNEL),
        "decoder.vocoder.embeddings.weight": (vocoder, MEL_BINS),
        **_layers("decoder.vocoder", vocoder, shape.vocoder_intermediate, shape.vocoder_layers),
        **_weighted("decoder.vocoder.layer_norm", vocoder),
        **_weighted("decoder.vocoder.head.out", FFT + 2, vocoder),
        "decoder.vocoder.head.istft.window": (FFT,),
    }
    for index, size in enumerate(CODEBOOK_SIZES[: shape.quantizers]):
        stem = f"encoder.quantizer.vq.layers.{index}._codebook"
        shapes |= {
            f"{stem}.inited": (1,),
            f"{stem}.cluster_size": (size,),
            f"{stem}.embed": (size, width),
            f"{stem}.embed_avg": (size, width),
        }
    return shapes


def _qwen2_stack(
    stem: str, width: int, intermediate: int, layers: int, *, queries: int = 0, keys: int = 0
) -> Shapes:
    """Layers and final norm; queries and keys are as wide as the stack where they are not given."""
    queries, keys = queries or width, keys or width
    shapes: Shapes = {f"{stem}.norm.weight": (width,)}
    for index in range(layers):
        layer = f"{stem}.layers.{index}"
        shapes |= {
            **_weighted(f"{layer}.self_attn.q_proj", queries, width),
            **_weighted(f"{layer}.self_attn.k_proj", keys, width),
            **_weighted(f"{layer}.self_attn.v_proj", keys, width),
            f"{layer}.self_attn.o_proj.weight": (width, queries),
            f"{layer}.mlp.gate_proj.weight": (intermediate, width),
            f"{layer}.mlp.up_proj.weight": (intermediate, width),
            f"{layer}.mlp.down_proj.weight": (width, intermediate),
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
        }
    return shapes


def _layers(stem: str, width: int, intermediate: int, layers: int) -> Shapes:
    """The tokenizer's transformer layers; keys have no bias."""
    shapes: Shapes = {}
    for index in range(layers):
        layer = f"{stem}.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.k_proj.weight": (width, width),
            **_weighted(f"{layer}.self_attn.q_proj", width, width),
            **_weighted(f"{layer}.self_attn.v_proj", width, width),
            **_weighted(f"{layer}.self_attn.out_proj", width, width),
            **_weighted(f"{layer}.self_attn_layer_norm", width),
            **_weighted(f"{layer}.fc1", intermediate, width),
            **_weighted(f"{layer}.fc2", width, intermediate),
            **_weighted(f"{layer}.final_layer_norm", width),
        }
    return shapes


def _weighted(stem: str, outputs: int, *rest: int) -> Shapes:
    return {f"{stem}.weight": (outputs, *rest), f"{stem}.bias": (outputs,)}


def _transposed(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {
        f"{stem}.conv.weight": (inputs, outputs, kernel),
        f"{stem}.conv.bias": (outputs,),
        **_weighted(f"{stem}.norm", outputs),
    }
