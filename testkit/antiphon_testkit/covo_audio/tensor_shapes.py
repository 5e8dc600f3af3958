"""The names and shapes of all tensors in a tiny Covo-Audio checkpoint."""

from __future__ import annotations

from antiphon_testkit.covo_audio.tiny_config import (
    ADAPTER_INNER,
    CODE_ENTRIES,
    DILATIONS,
    DOWNSAMPLING,
    ENCODER_POSITIONS,
    MEL_BINS,
    UPSAMPLING,
)
from antiphon_testkit.covo_audio.tiny_shape import POSITION_GROUPS, CovoShape
from antiphon_testkit.tensor_shapes import Shapes, convolution, decoder_layer, linear

FILTER = 12
TIME_WIDTH = 256
POSITION_KERNEL = 31


def model_shapes(shape: CovoShape, vocabulary: int) -> Shapes:
    """Return the shapes of the language model, its encoder and the adapter."""
    width, heard = shape.hidden, shape.encoder_hidden
    shapes: Shapes = {
        "llm.model.embed_tokens.weight": (vocabulary, width),
        "llm.model.norm.weight": (width,),
        "llm.lm_head.weight": (vocabulary, width),
        **convolution("encoder.conv1", MEL_BINS, heard, 3),
        **convolution("encoder.conv2", heard, heard, 3),
        "encoder.embed_positions.weight": (ENCODER_POSITIONS, heard),
        **_norm("encoder.layer_norm", heard),
    }
    for index in range(shape.layers):
        shapes |= decoder_layer(
            f"llm.model.layers.{index}",
            width,
            shape.intermediate,
            shape.heads,
            shape.kv_heads,
            width // shape.heads,
            biased=True,
        )
    for index in range(shape.encoder_layers):
        layer = f"encoder.layers.{index}"
        shapes |= {
            **linear(f"{layer}.self_attn.k_proj", heard, heard, bias=False),
            **linear(f"{layer}.self_attn.q_proj", heard, heard),
            **linear(f"{layer}.self_attn.v_proj", heard, heard),
            **linear(f"{layer}.self_attn.out_proj", heard, heard),
            **_norm(f"{layer}.self_attn_layer_norm", heard),
            **linear(f"{layer}.fc1", heard, 2 * heard),
            **linear(f"{layer}.fc2", 2 * heard, heard),
            **_norm(f"{layer}.final_layer_norm", heard),
        }
    count = DOWNSAMPLING.bit_length() - 1
    for index in range(count):
        layer = f"audio_adapter.downsample_layers.{index}"
        shapes |= {
            **convolution(f"{layer}.conv1d", heard, heard, 3),
            **linear(f"{layer}.linear1", heard, ADAPTER_INNER),
            **linear(f"{layer}.linear2", ADAPTER_INNER, width if index == count - 1 else heard),
        }
    return shapes


def flow_shapes(shape: CovoShape) -> Shapes:
    """Return the shapes below `token2latent.`, except for the position frequencies."""
    width = shape.flow_hidden
    shapes: Shapes = {
        "token_embedding.weight": (CODE_ENTRIES, shape.token_width),
        **linear("token_proj.0", shape.token_width, width),
        "token_proj.1.weight": (width, width, 2 * UPSAMPLING),
        "token_proj.1.bias": (width,),
        **linear("cond_proj", width + shape.speaker, width),
        **linear("transformer_input_proj", width + 2 * shape.latent, width),
        **linear("time_embedder.mlp.0", TIME_WIDTH, width),
        **linear("time_embedder.mlp.2", width, width),
        "conv_embed.conv.weight": (width, width // POSITION_GROUPS, POSITION_KERNEL),
        "conv_embed.conv.bias": (width,),
        **linear("output_layer.adaLN_modulation.1", width, 2 * width),
        **linear("output_layer.linear", width, shape.latent),
    }
    for index in range(shape.flow_layers):
        block = f"blocks.{index}"
        shapes |= {
            **linear(f"{block}.attn.q_proj", width, width, bias=False),
            **linear(f"{block}.attn.k_proj", width, width, bias=False),
            **linear(f"{block}.attn.v_proj", width, width, bias=False),
            **linear(f"{block}.attn.o_proj", width, width),
            **linear(f"{block}.ffn.fc1", width, shape.flow_inner),
            **linear(f"{block}.ffn.fc2", shape.flow_inner, width),
            **linear(f"{block}.modulation_layer.1", width, 6 * width),
        }
    return shapes


def vocoder_shapes(shape: CovoShape) -> Shapes:
    """Return the shapes below `wavegan.`, except for the filters."""
    width = shape.vocoder_hidden
    shapes = _normed("conv_pre", (width, shape.latent, 7), width)
    for level, rate in enumerate(shape.upsampling):
        inputs, width = width, width // 2
        shapes |= _normed(f"ups.{level}.0", (inputs, width, 2 * rate), width)
        for kind, kernel in enumerate(shape.kernels):
            block = f"resblocks.{level * len(shape.kernels) + kind}"
            for number in range(len(DILATIONS)):
                for convs in ("convs1", "convs2"):
                    kernels = (width, width, kernel)
                    shapes |= _normed(f"{block}.{convs}.{number}", kernels, width)
            for number in range(2 * len(DILATIONS)):
                shapes |= _snake(f"{block}.activations.{number}", width)
    return shapes | _snake("activation_post", width) | _normed("conv_post", (1, width, 7), 1)


def filters_of(shapes: Shapes) -> list[str]:
    """Return the names of the activation filters among these tensors."""
    stems = [name.removesuffix(".act.alpha") for name in shapes if name.endswith(".act.alpha")]
    return [
        f"{stem}.{kind}"
        for stem in stems
        for kind in ("upsample.filter", "downsample.lowpass.filter")
    ]


def _snake(stem: str, width: int) -> Shapes:
    return {f"{stem}.act.alpha": (width,), f"{stem}.act.beta": (width,)}


def _normed(stem: str, kernel: tuple[int, int, int], outputs: int) -> Shapes:
    return {
        f"{stem}.weight_v": kernel,
        f"{stem}.weight_g": (kernel[0], 1, 1),
        f"{stem}.bias": (outputs,),
    }


def _norm(stem: str, width: int) -> Shapes:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}
