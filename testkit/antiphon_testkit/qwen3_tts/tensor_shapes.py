"""The names and shapes of the tensors in a Qwen3-TTS checkpoint.

They are listed here instead of being derived from a model, because transformers doesn't have a
class for this model. The tests need a checkpoint that both the vendor's package and antiphon can
load, and must not depend on the package to write it.
"""

from __future__ import annotations

from typing import Any

from antiphon_testkit.qwen3_tts.tiny_config import speaker_config
from antiphon_testkit.qwen3_tts.tiny_shape import BASE_KIND, TtsShape
from antiphon_testkit.tensor_shapes import Shapes, convolution, decoder_layer, linear


def model_shapes(shape: TtsShape, text_vocabulary: int) -> Shapes:
    """Return the shapes of `model.safetensors`."""
    hidden, middle, codes = shape.hidden, shape.text_hidden, shape.codebook_size
    shapes: Shapes = {
        "talker.codec_head.weight": (shape.talker_vocabulary, hidden),
        "talker.model.codec_embedding.weight": (shape.talker_vocabulary, hidden),
        "talker.model.norm.weight": (hidden,),
        "talker.model.text_embedding.weight": (text_vocabulary, middle),
        **linear("talker.text_projection.linear_fc1", middle, middle),
        **linear("talker.text_projection.linear_fc2", middle, hidden),
        "talker.code_predictor.model.norm.weight": (shape.predictor_hidden,),
    }
    sizes = (shape.heads, shape.kv_heads, shape.head_dim)
    for layer in range(shape.layers):
        stem = f"talker.model.layers.{layer}"
        shapes |= decoder_layer(stem, hidden, shape.intermediate, *sizes)
        shapes |= _head_norms(stem, shape.head_dim)
    sizes = (shape.predictor_heads, shape.predictor_kv_heads, shape.predictor_head_dim)
    for layer in range(shape.predictor_layers):
        stem = f"talker.code_predictor.model.layers.{layer}"
        width, inner = shape.predictor_hidden, shape.predictor_intermediate
        shapes |= decoder_layer(stem, width, inner, *sizes)
        shapes |= _head_norms(stem, shape.predictor_head_dim)
    for group in range(shape.code_groups - 1):
        table = f"talker.code_predictor.model.codec_embedding.{group}.weight"
        shapes[table] = (codes, hidden)
        shapes |= linear(
            f"talker.code_predictor.lm_head.{group}", shape.predictor_hidden, codes, bias=False
        )
    if shape.predictor_hidden != hidden:
        stem = "talker.code_predictor.small_to_mtp_projection"
        shapes |= linear(stem, hidden, shape.predictor_hidden)
    if shape.kind == BASE_KIND:
        shapes |= _speaker_encoder(speaker_config(shape))
    return shapes


def decoder_shapes(shape: TtsShape) -> tuple[Shapes, dict[str, int]]:
    """Return the shapes of the codec's decoder, and the stride of each transposed convolution."""
    latent, hidden, width = shape.latent, shape.decoder_hidden, shape.codebook_dim
    shapes: Shapes = {
        **convolution("decoder.pre_conv.conv", width, latent, 3),
        **linear("decoder.pre_transformer.input_proj", latent, hidden),
        **linear("decoder.pre_transformer.output_proj", hidden, latent),
        "decoder.pre_transformer.norm.weight": (hidden,),
        **convolution("decoder.decoder.0.conv", latent, shape.decoder_dim, 7),
    }
    for part, books in (("rvq_first", 1), ("rvq_rest", shape.code_groups - 1)):
        shapes |= _quantizer(f"decoder.quantizer.{part}", books, shape.codebook_size, width)
    sizes = (shape.decoder_heads, shape.decoder_kv_heads, shape.decoder_head_dim)
    for layer in range(shape.decoder_layers):
        stem = f"decoder.pre_transformer.layers.{layer}"
        shapes |= decoder_layer(stem, hidden, shape.decoder_intermediate, *sizes)
        shapes |= {f"{stem}.{part}_layer_scale.scale": (hidden,) for part in ("self_attn", "mlp")}
    strides: dict[str, int] = {}
    for index, stride in enumerate((2, 2)):
        up = f"decoder.upsample.{index}.0.conv"
        shapes |= {f"{up}.weight": (latent, latent, stride), f"{up}.bias": (latent,)}
        strides[f"{up}.weight"] = stride
        shapes |= _conv_next(f"decoder.upsample.{index}.1", latent)
    channels = shape.decoder_dim
    for index, stride in enumerate((8, 5, 4, 3), 1):
        stem = f"decoder.decoder.{index}.block"
        inputs, channels = channels, channels // 2
        shapes |= _snake(f"{stem}.0", inputs)
        up = f"{stem}.1.conv"
        shapes |= {f"{up}.weight": (inputs, channels, 2 * stride), f"{up}.bias": (channels,)}
        strides[f"{up}.weight"] = stride
        for unit in (2, 3, 4):
            for number, kernel in ((1, 7), (2, 1)):
                shapes |= _snake(f"{stem}.{unit}.act{number}", channels)
                conv = f"{stem}.{unit}.conv{number}.conv"
                shapes |= convolution(conv, channels, channels, kernel)
    shapes |= _snake("decoder.decoder.5", channels)
    shapes |= convolution("decoder.decoder.6.conv", channels, 1, 7)
    return shapes, strides


def _head_norms(stem: str, head_dim: int) -> Shapes:
    return {f"{stem}.self_attn.{part}_norm.weight": (head_dim,) for part in "qk"}


def _quantizer(stem: str, books: int, entries: int, width: int) -> Shapes:
    shapes: Shapes = {
        f"{stem}.input_proj.weight": (width // 2, width, 1),
        f"{stem}.output_proj.weight": (width, width // 2, 1),
    }
    for book in range(books):
        table = f"{stem}.vq.layers.{book}._codebook"
        shapes[f"{table}.cluster_usage"] = (entries,)
        shapes[f"{table}.embedding_sum"] = (entries, width // 2)
    return shapes


def _conv_next(stem: str, width: int) -> Shapes:
    return {
        f"{stem}.dwconv.conv.weight": (width, 1, 7),
        f"{stem}.dwconv.conv.bias": (width,),
        f"{stem}.norm.weight": (width,),
        f"{stem}.norm.bias": (width,),
        **linear(f"{stem}.pwconv1", width, 4 * width),
        **linear(f"{stem}.pwconv2", 4 * width, width),
        f"{stem}.gamma": (width,),
    }


def _speaker_encoder(config: dict[str, Any]) -> Shapes:
    """Return the shapes of an ECAPA-TDNN."""
    channels, kernels = config["enc_channels"], config["enc_kernel_sizes"]
    scale, squeezed = config["enc_res2net_scale"], config["enc_se_channels"]
    last, attention = channels[-1], config["enc_attention_channels"]
    stem = "speaker_encoder"
    shapes = convolution(f"{stem}.blocks.0.conv", config["mel_dim"], channels[0], kernels[0])
    for index in range(1, len(channels) - 1):
        block, width = f"{stem}.blocks.{index}", channels[index]
        shapes |= convolution(f"{block}.tdnn1.conv", channels[index - 1], width, 1)
        for part in range(scale - 1):
            conv = f"{block}.res2net_block.blocks.{part}.conv"
            shapes |= convolution(conv, width // scale, width // scale, kernels[index])
        shapes |= convolution(f"{block}.tdnn2.conv", width, width, 1)
        shapes |= convolution(f"{block}.se_block.conv1", width, squeezed, 1)
        shapes |= convolution(f"{block}.se_block.conv2", squeezed, width, 1)
    shapes |= convolution(f"{stem}.mfa.conv", last, last, kernels[-1])
    shapes |= convolution(f"{stem}.asp.tdnn.conv", 3 * last, attention, 1)
    shapes |= convolution(f"{stem}.asp.conv", attention, last, 1)
    return shapes | convolution(f"{stem}.fc", 2 * last, config["enc_dim"], 1)


def _snake(stem: str, channels: int) -> Shapes:
    return {f"{stem}.{part}": (channels,) for part in ("alpha", "beta")}
