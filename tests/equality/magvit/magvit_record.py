"""Records what the vendor's MAGVITv2 makes of `magvit_cases.py`.

Needs a checkout of AIDASLab/Dynin-Omni (recorded: d6e3ca8), and torch, torchvision, einops,
omegaconf, jaxtyping, typeguard, safetensors, pillow and numpy:

    PYTHONPATH=.:testkit:services python -m tests.equality.magvit.magvit_record ../Dynin-Omni

The networks run on a CPU in float32. diffusers' classes, which only read files, are replaced by
empty ones; `tiny_image_tokenizer.py` has the sizes. Images pass through torchvision's transforms in
the vendor's order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms

from antiphon_testkit.magvit import tiny_image_tokenizer as tiny
from tests.equality.magvit.magvit_cases import DRAWN_CASES, SEED, SEEN_CASES, SIDE

LEAST_MARGIN = 1e-4
"""Of a latent to zero. Only tokens whose latents all have it are compared."""


def main() -> None:
    """Write `recorded.npz`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path)
    vendor = parser.parse_args().vendor
    models = types.ModuleType("models")
    models.__path__ = [str(vendor / "models")]
    loading = types.ModuleType("models.modeling_utils")
    empty = types.SimpleNamespace(ConfigMixin=type("ConfigMixin", (), {}))
    loading.__dict__.update(
        vars(empty), ModelMixin=torch.nn.Module, register_to_config=lambda function: function
    )
    sys.modules |= {"models": models, "models.modeling_utils": loading}
    from models.modeling_magvitv2 import LFQuantizer, MAGVITv2, VQGANDecoder, VQGANEncoder

    network = MAGVITv2.__new__(MAGVITv2)
    torch.nn.Module.__init__(network)
    network.encoder = VQGANEncoder(
        ch=tiny.WIDTH,
        ch_mult=list(tiny.ENCODER_MULTIPLES),
        num_res_blocks=list(tiny.ENCODER_BLOCKS),
    )
    network.decoder = VQGANDecoder(
        ch=tiny.WIDTH,
        ch_mult=list(tiny.DECODER_MULTIPLES),
        num_res_blocks=list(tiny.DECODER_BLOCKS),
    )
    network.quantize = LFQuantizer()
    arrays: dict[str, np.ndarray] = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as made:
        tiny.write_tiny_image_tokenizer(Path(made) / "magvitv2", SEED)
        network.load_state_dict(load_file(Path(made) / "magvitv2" / "pytorch_model.safetensors"))
        network.eval()
        for case in DRAWN_CASES:
            values = network.decode_code(torch.from_numpy(case.ids.astype("int64"))[None])
            arrays[f"{case.name}/values"] = values[0].numpy()
            print(case.name, values.shape, values.std(), values.abs().max())
        for seen in SEEN_CASES:
            pixels = transformed(Image.fromarray(seen.pixels))
            latents = network.encoder(pixels[None])
            clear = (latents[0].abs().flatten(1) > LEAST_MARGIN).all(0).numpy()
            ids = network.get_code(pixels[None])[0].numpy().astype(np.uint16)
            arrays |= {f"{seen.name}/ids": ids, f"{seen.name}/clear": clear}
            print(seen.name, len(set(ids.tolist())), "ids,", clear.sum(), "of", len(ids), "clear")
    np.savez_compressed(Path(__file__).parent / "recorded.npz", **arrays)


def transformed(image: Image.Image) -> torch.Tensor:
    """float32 [3, SIDE, SIDE]."""
    image = transforms.Resize(SIDE, interpolation=transforms.InterpolationMode.BICUBIC)(image)
    image = transforms.CenterCrop((SIDE, SIDE))(image)
    pixels = transforms.ToTensor()(image)
    return transforms.Normalize(mean=[0.5] * 3, std=[0.5] * 3, inplace=True)(pixels)


if __name__ == "__main__":
    main()
