"""The names and shapes of the tensors in a Ming TTS checkpoint.

They are listed here instead of being derived from a model, because the checkpoint is loaded by both
the vendor's code and antiphon, and the tests should not depend on the modules of either.
"""

from __future__ import annotations

from antiphon.pipelines.ming_tts import LATENT_WIDTH, ROW_SAMPLES, SPEAKER_WIDTH
from antiphon_testkit.ming_tts.tiny_shape import MingShape
from antiphon_testkit.tensor_shapes import Shapes, decoder_layer, linear

TIME_WIDTH = 256
MLP_RATIO = 2
SPECTRUM = 4 * ROW_SAMPLES + 2
AGGREGATOR_LAYERS_OF_THE_ENCODER = 4
VAE_VOCABULARY = 8


def language_model_shapes(shape: MingShape, vocabulary: int) -> Shapes:
    """Return the shapes of the Qwen2 model, whose head is tied to its embedding table."""
    return _qwen2(
        "model.model",
        shape.hidden,
        shape.intermediate,
        shape.layers,
        (shape.heads, shape.kv_heads),
        vocabulary,
    )


def head_shapes(shape: MingShape) -> Shapes:
    """Return the shapes of the flow head, the aggregator, the stop head and the speaker
    projection.
    """
    flow, aggregator = "flowloss.cfm.model", "linear_proj_audio"
    return {
        **linear(f"{flow}.t_embedder.time_mlp.0", TIME_WIDTH, shape.flow_width),
        **linear(f"{flow}.t_embedder.time_mlp.2", shape.flow_width, shape.flow_width),
        **linear(f"{flow}.c_embedder.cond_embedder", shape.hidden, shape.flow_width),
        **_blocks(flow, shape.flow_width, shape.flow_layers, shape.flow_heads, LATENT_WIDTH),
        f"{aggregator}.word_embedder.weight": (1, shape.aggregator_width),
        **_blocks(
            aggregator,
            shape.aggregator_width,
            shape.aggregator_layers,
            shape.aggregator_heads,
            shape.hidden,
        ),
        **linear("stop_head", shape.hidden, 2),
        **linear("spk_head", SPEAKER_WIDTH, shape.hidden),
    }


def vae_shapes(shape: MingShape) -> Shapes:
    """Return the shapes of the audio encoder and decoder."""
    encoder, decoder = "audio.encoder", "audio.decoder"
    heads = (shape.vae_heads, shape.vae_kv_heads)
    width = shape.encoder_width
    vae = "audio."
    shapes: Shapes = {
        f"{encoder}.cls_embed": (1, 1, width),
        f"{encoder}.fc1.weight": (width, ROW_SAMPLES),
        **linear(f"{encoder}.fc2", width, width),
        **linear(f"{encoder}.fc3", width, 2 * LATENT_WIDTH),
        f"{encoder}.norm.weight": (width,),
        f"{encoder}.norm.bias": (width,),
        **linear(f"{decoder}.fc1", LATENT_WIDTH, shape.decoder_width),
        **linear(f"{decoder}.head.out", shape.decoder_width, SPECTRUM),
    }
    for part, layers in (
        ("encoder.encoder", shape.encoder_layers),
        ("encoder.aggregator", AGGREGATOR_LAYERS_OF_THE_ENCODER),
    ):
        shapes |= _qwen2(vae + part, width, 2 * width, layers, heads, VAE_VOCABULARY)
    width, layers = shape.decoder_width, shape.decoder_layers
    return shapes | _qwen2(f"{decoder}.decoder", width, 2 * width, layers, heads, VAE_VOCABULARY)


def _qwen2(
    stem: str, width: int, inner: int, layers: int, heads: tuple[int, int], vocabulary: int
) -> Shapes:
    shapes: Shapes = {
        f"{stem}.embed_tokens.weight": (vocabulary, width),
        f"{stem}.norm.weight": (width,),
    }
    for index in range(layers):
        shapes |= decoder_layer(
            f"{stem}.layers.{index}", width, inner, *heads, width // heads[0], biased=True
        )
    return shapes


def _blocks(stem: str, width: int, layers: int, heads: int, outputs: int) -> Shapes:
    """Return the shapes that the flow head and the aggregator have in common."""
    shapes: Shapes = {
        **linear(f"{stem}.x_embedder", LATENT_WIDTH, width),
        f"{stem}.rotary_embed.inv_freq": (width // heads // 2,),
        f"{stem}.final_layer.norm_final.weight": (width,),
        **linear(f"{stem}.final_layer.linear", width, outputs),
    }
    for index in range(layers):
        block = f"{stem}.blocks.{index}"
        shapes |= {
            f"{block}.norm1.weight": (width,),
            f"{block}.norm2.weight": (width,),
            **linear(f"{block}.attn.to_q", width, width),
            **linear(f"{block}.attn.to_k", width, width),
            **linear(f"{block}.attn.to_v", width, width),
            **linear(f"{block}.attn.to_out.0", width, width),
            **linear(f"{block}.mlp.ff.0.0", width, MLP_RATIO * width),
            **linear(f"{block}.mlp.ff.2", MLP_RATIO * width, width),
        }
    return shapes
