"""The tensors of the tiny speech tokenizer's encoder, with the same names as in the vendor's
classes.
"""

from __future__ import annotations

import torch
from transformers.audio_utils import mel_filter_bank

from antiphon_testkit.tensor_shapes import Shapes, convolution, linear
from antiphon_testkit.tiny_weights import WeightRules

BINS, FFT, WINDOW, RATE_HZ = 128, 512, 320, 16_000
WIDTHS = (32, 64, 128, 96, 128)
"""The output widths of the convolutions. Transformer layers follow the third and the fifth."""
KERNELS, STRIDES = (5, 5, 1, 5, 1), (2, 2, 1, 1, 1)
LAYERS = (1, 2)
HEAD_WIDTH, INNER, POSITIONS, GROUPS = 64, 64, 128, 16
NUMBERS = 4

RULES = WeightRules(
    uniform=((r"norm\.weight$", 0.6, 1.4),),
    normal=((r"bias$", 0.1), (r"weight_g$", 1.0)),
    gains=((r"(q|k)_proj\.weight$", 1.6), (r"", 1.0)),
)


def unit_encoder_shapes() -> Shapes:
    """Return the names and shapes below `encoder.`, without buffers, but including one that is only
    used for training.
    """
    shapes: Shapes = {"encoder.projector.linear.weight": (8, WIDTHS[-1])}
    inputs, index, stacks = BINS, 0, iter(LAYERS)
    for number, (width, kernel) in enumerate(zip(WIDTHS, KERNELS, strict=True)):
        stem = f"encoder.feature_encoder.block_modules.{index}"
        shapes |= convolution(f"{stem}.conv.conv", inputs, width, kernel)
        shapes |= _norm(f"{stem}.norm", width)
        inputs, index = width, index + 1
        if number in (2, 4):
            stem = f"encoder.feature_encoder.block_modules.{index}"
            shapes |= _transformer(stem, width, next(stacks))
            index += 1
    return {**shapes, **linear("pre_quant", inputs, NUMBERS)}


def unit_encoder_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Return all of the encoder's tensors, without a name prefix."""
    tensors = RULES.draw_each(unit_encoder_shapes(), seed)
    for name, tensor in tensors.items():
        if name.endswith("weight_g"):
            tensor.abs_().add_(0.5)
    filters = mel_filter_bank(
        FFT // 2 + 1, BINS, 0.0, RATE_HZ / 2, RATE_HZ, norm="slaney", mel_scale="slaney"
    )
    stem = "encoder.wav2spec.featurizer"
    tensors[f"{stem}.fb"] = torch.from_numpy(filters.T.copy()).float()[None]
    tensors[f"{stem}.window"] = torch.hann_window(WINDOW, periodic=False)
    tensors["quantizer._levels_np"] = torch.full((NUMBERS,), 8.0)
    tensors["quantizer._basis"] = 8.0 ** torch.arange(NUMBERS)
    return tensors


def _transformer(stem: str, width: int, layers: int) -> Shapes:
    shapes: Shapes = {
        f"{stem}.pos_conv.0.weight_g": (1, 1, POSITIONS),
        f"{stem}.pos_conv.0.weight_v": (width, width // GROUPS, POSITIONS),
        f"{stem}.pos_conv.0.bias": (width,),
        **_norm(f"{stem}.layer_norm", width),
    }
    for layer in range(layers):
        each = f"{stem}.layers.{layer}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= linear(f"{each}.self_attn.{name}", width, width)
        shapes |= {
            **_norm(f"{each}.self_attn_layer_norm", width),
            **linear(f"{each}.fc1", width, INNER),
            **linear(f"{each}.fc2", INNER, width),
            **_norm(f"{each}.final_layer_norm", width),
        }
    return shapes


def _norm(stem: str, width: int) -> Shapes:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}
