"""The MAGVITv2 encoder, which converts images to tokens. Tensors have the same names as in the
checkpoint.
"""

from __future__ import annotations

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
    HalvedPixels,
    MiddlePixels,
    PixelLevel,
    codebook_ids,
    group_norm,
    same_convolution,
)
from antiphon_services.magvit.image_sizes import IMAGE_BITS, MOST_SIDE_TOKENS, PixelSizes

PREFIX = "encoder."
CHANNELS = 3


class ImageEncoderModule(nn.Module):
    """The tensors whose names start with `encoder.`."""

    def __init__(self, sizes: PixelSizes) -> None:
        super().__init__()
        narrowest, widest = sizes.levels[0][0], sizes.levels[-1][-1]
        last = len(sizes.levels) - 1
        self.conv_in = same_convolution(CHANNELS, narrowest)
        self.down = nn.ModuleList(
            PixelLevel(widths, HalvedPixels if level < last else None, "downsample")
            for level, widths in enumerate(sizes.levels)
        )
        self.mid = MiddlePixels(widest)
        self.norm_out = group_norm(widest)
        self.conv_out = same_convolution(widest, IMAGE_BITS)
        self.quant_conv = nn.Conv2d(IMAGE_BITS, IMAGE_BITS, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pixels of shape [1, 3, scale * rows, scale * columns].

        Returns latents of shape [1, bits, rows, columns].
        """
        x = self.conv_in(pixels)
        for level in self.down:
            x = level(x)
        out: Tensor = self.quant_conv(self.conv_out(silu(self.norm_out(self.mid(x)))))
        return out


class ImageTokenizer:
    """Converts square images to tokens.

    Use `square_pixels` to crop an image to a square.
    """

    def __init__(self, module: ImageEncoderModule, sizes: PixelSizes) -> None:
        self._module = module
        self.scale = sizes.scale
        """The side length, in pixels, of the square that a token covers."""

    @torch.inference_mode()
    def ids(self, pixels: Array) -> Array:
        """Return the image tokens in row-major order, as a uint16 array of shape [(side / scale)²].

        `pixels` is a uint8 array of shape [side, side, 3]. Raises `InvalidArgument` if `side` is
        not a multiple of `scale`, or if it exceeds `MOST_SIDE_TOKENS` tokens.
        """
        side = pixels.shape[0]
        most = MOST_SIDE_TOKENS * self.scale
        if pixels.shape != (side, side, CHANNELS) or not 0 < side <= most or side % self.scale:
            raise InvalidArgument(
                f"pixels must be [side, side, 3] with a side of {self.scale} to {most} pixels in "
                f"steps of {self.scale}, not {list(pixels.shape)}"
            )
        weight = self._module.conv_in.weight
        shares = on_device(pixels.copy(), weight.device).permute(2, 0, 1).float() / 255
        latents = self._module(((shares - 0.5) / 0.5)[None].to(weight.dtype))[0]
        return host_array(codebook_ids(latents.flatten(1).T)).astype("uint16")


def load_image_tokenizer(
    weights: Weights, *, dtype: torch.dtype, device: torch.device
) -> ImageTokenizer:
    """Load the encoder from the released directory.

    Raises `FailedPrecondition` if it cannot be loaded.
    """
    with reading(weights.folder / CONFIG_FILE):
        sizes = PixelSizes.read(weights, f"{PREFIX}down.")
    module = load_submodule(ImageEncoderModule, sizes, PREFIX, weights, dtype=dtype, device=device)
    return ImageTokenizer(module, sizes)
