"""The MAGVITv2 decoder, which converts image tokens to pixels. Tensors have the same names as in
the checkpoint.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from antiphon.errors import InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.transport.device_edge import host_array, on_device
from antiphon.values.chunk import Tensor as Array
from antiphon_services.magvit.image_layers import (
    DoubledPixels,
    MiddlePixels,
    PixelLevel,
    codebook_vectors,
    group_norm,
    same_convolution,
)
from antiphon_services.magvit.image_sizes import (
    IMAGE_BITS,
    MOST_SIDE_TOKENS,
    PixelSizes,
)

PREFIX = "decoder."
CHANNELS = 3


class ImageDecoderModule(nn.Module):
    """The tensors whose names start with `decoder.`."""

    def __init__(self, sizes: PixelSizes) -> None:
        super().__init__()
        widest, narrowest = sizes.levels[-1][0], sizes.levels[0][-1]
        self.post_quant_conv = nn.Conv2d(IMAGE_BITS, IMAGE_BITS, 1)
        self.conv_in = same_convolution(IMAGE_BITS, widest)
        self.mid = MiddlePixels(widest)
        self.up = nn.ModuleList(
            PixelLevel(widths, DoubledPixels if level else None, "upsample")
            for level, widths in enumerate(sizes.levels)
        )
        self.norm_out = group_norm(narrowest)
        self.conv_out = same_convolution(narrowest, CHANNELS)

    def forward(self, latents: Tensor) -> Tensor:
        """Decode latents of shape [1, bits, rows, columns].

        Returns pixels of shape [1, 3, scale * rows, scale * columns].
        """
        x = self.mid(self.conv_in(self.post_quant_conv(latents)))
        for level in reversed(self.up):
            x = level(x)
        out: Tensor = self.conv_out(silu(self.norm_out(x)))
        return out


class ImageDecoder:
    """Converts image tokens to square images."""

    def __init__(self, module: ImageDecoderModule, sizes: PixelSizes) -> None:
        self._module = module
        self.scale = sizes.scale
        """The side length, in pixels, of the square that a token covers."""

    @torch.inference_mode()
    def pixels(self, ids: Array) -> Array:
        """Return the RGB pixels for image tokens, as a uint8 array of shape [side, side, 3].

        `ids` is a uint16 array of shape [n] in row-major order, with values below `IMAGE_ENTRIES`.
        The image has `side_of(n)` tokens per side. Like the vendor's code, this method rounds pixel
        values down.
        """
        shares = ((self.values(ids) + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0
        return host_array(shares.permute(1, 2, 0).to(torch.uint8))

    @torch.inference_mode()
    def values(self, ids: Array) -> Tensor:
        """Return the unrounded pixel values, as a float32 tensor of shape [3, side, side].

        The nominal range is from -1, which is black, to 1. Values may slightly exceed it.
        """
        side = side_of(len(ids))
        weight = self._module.conv_in.weight
        rows = codebook_vectors(on_device(ids.astype("int64"), weight.device), IMAGE_BITS)
        latents = rows.to(weight.dtype).T.reshape(1, IMAGE_BITS, side, side)
        made: Tensor = self._module(latents)[0].float()
        return made


def side_of(count: int) -> int:
    """Return the number of tokens per side of a square image with `count` tokens.

    Raises `InvalidArgument` if `count` is not a square number, or if a side would exceed
    `MOST_SIDE_TOKENS`.
    """
    side = math.isqrt(count)
    if not count or side * side != count or side > MOST_SIDE_TOKENS:
        raise InvalidArgument(
            f"{count} image tokens don't form a square image; the number must be a square of at "
            f"most {MOST_SIDE_TOKENS}² = {MOST_SIDE_TOKENS**2}"
        )
    return side


def load_image_decoder(
    weights: Weights, *, dtype: torch.dtype, device: torch.device
) -> ImageDecoder:
    """Load the decoder from the released directory.

    Raises `FailedPrecondition` if it cannot be loaded.
    """
    with reading(weights.folder / CONFIG_FILE):
        sizes = PixelSizes.read(weights, f"{PREFIX}up.")
    module = load_submodule(ImageDecoderModule, sizes, PREFIX, weights, dtype=dtype, device=device)
    return ImageDecoder(module, sizes)
