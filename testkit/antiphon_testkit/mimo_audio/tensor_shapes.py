"""The names and shapes of the tensors in a MiMo-Audio checkpoint.

They are listed here instead of being derived from a model, because the checkpoint is loaded by both
the vendor's code and antiphon, and the tests should not depend on the modules of either.
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
from antiphon_testkit.tensor_shapes import Shapes, convolution, decoder_layer, linear


def model_shapes(shape: MimoShape, vocabulary: int) -> Shapes:
    """Return the shapes of the language model's directory."""
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
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
        ),
        **_small_stack(
            "local_transformer",
            local,
            shape.local_intermediate,
            shape.local_layers,
            shape.local_heads,
        ),
        **_small_stack(
            "input_local_transformer", group, 4 * group, shape.group_layers, shape.local_heads
        ),
    }
    for channel, empty in enumerate(EMPTY_CODES):
        shapes[f"local_transformer_lm_heads.{channel}.weight"] = (empty + 1, local)
        shapes[f"speech_embeddings.{channel}.weight"] = (empty + 1, group)
    if group != local:
        shapes["speech_embeddings_to_local.weight"] = (local, group)
    return shapes


def codec_shapes(shape: MimoShape) -> Shapes:
    """Return the shapes of the audio tokenizer's directory, including buffers."""
    width, vocoder = shape.codec_hidden, shape.vocoder_hidden
    shapes: Shapes = {
        **convolution("encoder.conv1", MEL_BINS, width, KERNEL),
        **convolution("encoder.conv2", width, width, KERNEL),
        **_layers("encoder", width, shape.codec_intermediate, shape.encoder_layers),
        **_norm("encoder.layer_norm", width),
        "encoder.down_sample_layer.0.weight": (width, width, POOLED),
        **_norm("encoder.down_sample_norm", width),
        **_transposed("decoder.dconv1", width, width, POOLED),
        **_layers("decoder", width, shape.codec_intermediate, shape.decoder_layers),
        **_norm("decoder.layer_norm", width),
        **_transposed("decoder.dconv2", width, MEL_BINS, KERNEL),
        "decoder.vocoder.embeddings.weight": (vocoder, MEL_BINS),
        **_layers("decoder.vocoder", vocoder, shape.vocoder_intermediate, shape.vocoder_layers),
        **_norm("decoder.vocoder.layer_norm", vocoder),
        **linear("decoder.vocoder.head.out", vocoder, FFT + 2),
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
    stem: str, width: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int
) -> Shapes:
    """Return the shapes of the layers and the final norm."""
    shapes: Shapes = {f"{stem}.norm.weight": (width,)}
    for index in range(layers):
        layer = f"{stem}.layers.{index}"
        shapes |= decoder_layer(layer, width, inner, heads, kv_heads, head_dim, biased=True)
    return shapes


def _small_stack(stem: str, width: int, inner: int, layers: int, heads: int) -> Shapes:
    """Return the shapes of a stack that has as many key heads as query heads."""
    return _qwen2_stack(stem, width, inner, layers, heads, heads, width // heads)


def _layers(stem: str, width: int, intermediate: int, layers: int) -> Shapes:
    """Return the shapes of the tokenizer's transformer layers. Keys don't have a bias."""
    shapes: Shapes = {}
    for index in range(layers):
        layer = f"{stem}.layers.{index}"
        shapes |= {
            f"{layer}.self_attn.k_proj.weight": (width, width),
            **linear(f"{layer}.self_attn.q_proj", width, width),
            **linear(f"{layer}.self_attn.v_proj", width, width),
            **linear(f"{layer}.self_attn.out_proj", width, width),
            **_norm(f"{layer}.self_attn_layer_norm", width),
            **linear(f"{layer}.fc1", width, intermediate),
            **linear(f"{layer}.fc2", intermediate, width),
            **_norm(f"{layer}.final_layer_norm", width),
        }
    return shapes


def _norm(stem: str, width: int) -> Shapes:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}


def _transposed(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {
        f"{stem}.conv.weight": (inputs, outputs, kernel),
        f"{stem}.conv.bias": (outputs,),
        **_norm(f"{stem}.norm", outputs),
    }
