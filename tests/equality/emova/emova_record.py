"""Records what EMOVA's own code makes of `emova_cases.py`.

Needs a checkout of AIDASLab/Dynin-Omni (recorded: d6e3ca8), which contains EMOVA's package, and
torch, safetensors and numpy:

    PYTHONPATH=.:testkit:services python -m tests.equality.emova.emova_record ../Dynin-Omni

The networks run on a CPU in float32. Normal draws of the unit decoder are antiphon's, keyed by
case; packages that only training or the command line needs are replaced by empty ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from antiphon_services.flow.normal_draws import normal_draws
from antiphon_testkit.emova import tiny_speech_tokenizer as tiny
from tests.equality.emova.emova_cases import SAMPLE_STEP, SEED, UNIT_CASES, UnitCase

HERE = Path(__file__).parent
SPEECH = "tokenizers/EMOVA_speech_tokenizer/emova_speech_tokenizer/speech_tokenization"
LEAST_MARGIN = 1e-4
"""Of a duration to the next whole number of frames."""
TRAINED_WITH = ("enc_q.", "enc_r.", "emb_g.", "dp.post_")


def main() -> None:
    """Write `recorded.npz`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path)
    vendor = parser.parse_args().vendor
    arrays: dict[str, np.ndarray] = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "speech"
        tiny.write_tiny_speech_tokenizer(folder, SEED)
        arrays |= record_speech(vendor, load_file(folder / "model.safetensors"))
    np.savez_compressed(HERE / "recorded.npz", **arrays)


def record_speech(vendor: Path, tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Samples of the unit cases, and the frames of each unit."""
    sys.path.insert(0, str(vendor / SPEECH / "UVITS"))
    for name in ("monotonic_align", "script", "scipy"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["script"].vae_utils = None  # type: ignore[attr-defined]
    from models import SynthesizerTrn

    network = SynthesizerTrn(
        tiny.SYMBOLS,
        513,
        32,
        inter_channels=tiny.LATENT,
        hidden_channels=tiny.HIDDEN,
        filter_channels=tiny.INNER,
        n_heads=tiny.HEADS,
        n_layers=tiny.LAYERS,
        kernel_size=tiny.KERNEL,
        p_dropout=0.1,
        resblock="1",
        resblock_kernel_sizes=tiny.KERNELS,
        resblock_dilation_sizes=[tiny.DILATIONS] * len(tiny.KERNELS),
        upsample_rates=tiny.RATES,
        upsample_initial_channel=tiny.WIDEST,
        upsample_kernel_sizes=[2 * rate for rate in tiny.RATES],
        n_speakers=tiny.SPEAKERS,
        gin_channels=tiny.STYLE,
    ).eval()
    decoder = {
        name.removeprefix("decoder."): each
        for name, each in tensors.items()
        if name.startswith("decoder.")
    }
    missing, unexpected = network.load_state_dict(decoder, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith(TRAINED_WITH) for name in missing), missing
    table = tensors["style_embedding.weight"]
    arrays: dict[str, np.ndarray] = {}
    for case in UNIT_CASES:
        style = table[tiny.STYLES.index(case.style)][None, :, None]
        samples, frames = speak(network, case, style)
        arrays[f"{case.name}/samples"] = samples[::SAMPLE_STEP]
        arrays[f"{case.name}/frames"] = frames
        print(
            case.name,
            len(samples),
            frames[:20],
            frames.sum(),
            "rms",
            samples.std(),
            abs(samples).max(),
        )
    sys.path.pop(0)
    return arrays


def speak(network: Any, case: UnitCase, style: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Samples and frames by unit, with antiphon's draws."""

    def draws(step: int, channels: int, count: int) -> torch.Tensor:
        drawn = normal_draws(case.key, step, channels * count)
        return torch.from_numpy(drawn.reshape(count, channels).T.copy())[None]

    logs: list[torch.Tensor] = []
    hook = network.dp.register_forward_hook(lambda _module, _given, made: logs.append(made))
    kept = torch.randn, torch.randn_like
    torch.randn = lambda _batch, channels, count: draws(0, channels, count)  # type: ignore
    torch.randn_like = lambda like: draws(1, *like.shape[1:])  # type: ignore
    try:
        symbols = torch.from_numpy(case.units.astype("int64"))[None] + tiny.SYMBOLS - 4096
        made = network.synthesis_from_content_unit_style_embedding(
            symbols,
            torch.tensor([case.count]),
            style,
            noise_scale=0.667,
            noise_scale_w=0.8,
            length_scale=1,
        )
    finally:
        torch.randn, torch.randn_like = kept
        hook.remove()
    widths = logs[0][0, 0].exp()
    assert (widths - widths.round()).abs().min() > LEAST_MARGIN, f"{case.name}: choose another key"
    return made[0][0, 0].numpy(), widths.ceil().numpy().astype(np.int32)


if __name__ == "__main__":
    main()
