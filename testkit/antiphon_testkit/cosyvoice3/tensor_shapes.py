"""The names and shapes of the tensors in a CosyVoice3 checkpoint.

They are listed here instead of being derived from a model, because the checkpoint is loaded by both
the vendor's code and antiphon, and the tests should not depend on the modules of either.
"""

from __future__ import annotations

from antiphon.pipelines.cosyvoice3 import MEL_BINS, SPEAKER_WIDTH, SPEECH_IDS
from antiphon_testkit.cosyvoice3.tiny_shape import CosyVoiceShape
from antiphon_testkit.tensor_shapes import Shapes, convolution, decoder_layer, linear

TABLE_ROWS = SPEECH_IDS + 200
HARMONICS, BINS = 8, 18
DIRECTION = "parametrizations.weight.original1"
LENGTH = "parametrizations.weight.original0"


def layer_shapes(shape: CosyVoiceShape, vocabulary: int) -> Shapes:
    """Return the shapes of `CosyVoice-BlankEN/model.safetensors`."""
    width = shape.hidden
    sizes = (shape.heads, shape.kv_heads, width // shape.heads)
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
    }
    for index in range(shape.layers):
        stem = f"model.layers.{index}"
        shapes |= decoder_layer(stem, width, shape.intermediate, *sizes, biased=True)
    return shapes


def talker_shapes(shape: CosyVoiceShape, vocabulary: int) -> Shapes:
    """Return the shapes of `llm.pt`."""
    layers = layer_shapes(shape, vocabulary)
    return {
        **{f"llm.model.{name}": size for name, size in layers.items()},
        "llm.model.lm_head.weight": (vocabulary, shape.hidden),
        "llm_decoder.weight": (TABLE_ROWS, shape.hidden),
        "speech_embedding.weight": (TABLE_ROWS, shape.hidden),
    }


def flow_shapes(shape: CosyVoiceShape) -> Shapes:
    """Return the shapes of `flow.pt`."""
    width, inner = shape.flow_width, shape.flow_heads * shape.flow_head_dim
    stem = "decoder.estimator"
    shapes: Shapes = {
        "input_embedding.weight": (SPEECH_IDS, MEL_BINS),
        **linear("spk_embed_affine_layer", SPEAKER_WIDTH, MEL_BINS),
        **convolution("pre_lookahead_layer.conv1", MEL_BINS, shape.look_ahead_channels, 4),
        **convolution("pre_lookahead_layer.conv2", shape.look_ahead_channels, MEL_BINS, 3),
        **linear(f"{stem}.time_embed.time_mlp.0", 256, width),
        **linear(f"{stem}.time_embed.time_mlp.2", width, width),
        **linear(f"{stem}.input_embed.proj", 4 * MEL_BINS, width),
        f"{stem}.rotary_embed.inv_freq": (shape.flow_head_dim // 2,),
    }
    for number in (1, 2):
        conv = f"{stem}.input_embed.conv_pos_embed.conv{number}.0"
        shapes |= {f"{conv}.weight": (width, width // 16, 31), f"{conv}.bias": (width,)}
    for index in range(shape.flow_layers):
        block = f"{stem}.transformer_blocks.{index}"
        shapes |= {
            **linear(f"{block}.attn_norm.linear", width, 6 * width),
            **linear(f"{block}.attn.to_q", width, inner),
            **linear(f"{block}.attn.to_k", width, inner),
            **linear(f"{block}.attn.to_v", width, inner),
            **linear(f"{block}.attn.to_out.0", inner, width),
            **linear(f"{block}.ff.ff.0.0", width, 2 * width),
            **linear(f"{block}.ff.ff.2", 2 * width, width),
        }
    shapes |= linear(f"{stem}.norm_out.linear", width, 2 * width)
    return shapes | linear(f"{stem}.proj_out", width, MEL_BINS)


def vocoder_shapes(shape: CosyVoiceShape) -> Shapes:
    """Return the shapes of `hift.pt`."""
    width = shape.vocoder_channels
    widths = [width // 2, width // 4, width // 8]
    shapes: Shapes = {
        **linear("m_source.l_linear", HARMONICS + 1, 1),
        **_normed("conv_pre", MEL_BINS, width, 5),
        **_normed("conv_post", widths[-1], BINS, 7),
        **linear("f0_predictor.classifier", shape.pitch_channels, 1),
    }
    for index, (inputs, outputs, kernel, stride, source_kernel) in enumerate(
        zip([width, *widths], widths, (16, 11, 7), (15, 3, 1), (7, 7, 11), strict=False)
    ):
        down = 2 * stride if stride > 1 else 1
        shapes |= _normed(f"ups.{index}", inputs, outputs, kernel)
        shapes |= convolution(f"source_downs.{index}", BINS, outputs, down)
        shapes |= _block(f"source_resblocks.{index}", outputs, source_kernel)
        for kind, size in enumerate((3, 7, 11)):
            shapes |= _block(f"resblocks.{3 * index + kind}", outputs, size)
    for index in range(5):
        inputs, kernel = (shape.pitch_channels, 3) if index else (MEL_BINS, 4)
        conv = f"f0_predictor.condnet.{2 * index}"
        shapes |= _normed(conv, inputs, shape.pitch_channels, kernel)
    return {f"generator.{name}": size for name, size in shapes.items()}


def _block(stem: str, channels: int, kernel: int) -> Shapes:
    shapes: Shapes = {}
    for index in range(3):
        for number in (1, 2):
            shapes |= _normed(f"{stem}.convs{number}.{index}", channels, channels, kernel)
            shapes[f"{stem}.activations{number}.{index}.alpha"] = (channels,)
    return shapes


def _normed(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {
        f"{stem}.{DIRECTION}": (outputs, inputs, kernel),
        f"{stem}.{LENGTH}": (outputs, 1, 1),
        f"{stem}.bias": (outputs,),
    }
