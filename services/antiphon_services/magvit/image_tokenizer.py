"""Images to tokens: MAGVITv2's encoder, with the names of its checkpoint."""

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
    """The tensors below `encoder.`."""

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
        """Latents [1, bits, rows, columns] of pixels [1, 3, scale * rows, scale * columns]."""
        x = self.conv_in(pixels)
        for level in self.down:
            x = level(x)
        out: Tensor = self.quant_conv(self.conv_out(silu(self.norm_out(self.mid(x)))))
        return out


class ImageTokenizer:
    """Reads square images; see `square_pixels` for others."""

    def __init__(self, module: ImageEncoderModule, sizes: PixelSizes) -> None:
        self._module = module
        self.scale = sizes.scale
        """Pixels of a token's side."""

    @torch.inference_mode()
    def ids(self, pixels: Array) -> Array:
        """uint16 [(side / scale)²], row by row, of pixels uint8 [side, side, 3].

        Raises `InvalidArgument` for a side that no number of tokens has, or more than
        `MOST_SIDE_TOKENS`.
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
    """Load the encoder of the released directory. Raises `FailedPrecondition`."""
    with reading(weights.folder / CONFIG_FILE):
        sizes = PixelSizes.read(weights, f"{PREFIX}down.")
    module = load_submodule(ImageEncoderModule, sizes, PREFIX, weights, dtype=dtype, device=device)
    return ImageTokenizer(module, sizes)
