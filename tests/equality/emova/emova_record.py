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
from unittest.mock import MagicMock

import numpy as np
import torch
from safetensors.torch import load_file

from antiphon_services.flow.normal_draws import normal_draws
from antiphon_testkit.emova import tiny_speech_tokenizer as tiny
from antiphon_testkit.emova import tiny_unit_encoder as heard
from tests.equality.emova.emova_cases import HEARD_CASES, SAMPLE_STEP, SEED, UNIT_CASES, UnitCase

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
        tensors = load_file(folder / "model.safetensors")
        arrays |= record_speech(vendor, tensors)
        arrays |= record_units(vendor, tensors)
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


class Fields(dict[str, Any]):
    """A configuration whose keys are attributes as well."""

    __getattr__ = dict.__getitem__


def record_units(vendor: Path, tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """A unit for every 40 ms of the heard cases, and which of them have margins."""
    root = vendor / SPEECH / "SPIRAL_L2_BN_FSQ_CTC"
    sys.path.insert(0, str(root))
    asr = "nemo.collections.asr"
    for name in ("nemo", "nemo.collections", asr, f"{asr}.parts"):
        package = types.ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
    # Packages and classes that only training, files and annotations need.
    for name in (
        "librosa",
        "librosa.util",
        "torch_stft",
        "nemo.core",
        "nemo.utils",
        f"{asr}.parts.perturb",
        f"{asr}.parts.segment",
        f"{asr}.models",
        f"{asr}.models.configs",
        f"{asr}.models.configs.common_config",
        f"{asr}.models.wav2vec",
        f"{asr}.models.wav2vec.wav2vec_config",
        f"{asr}.models.spec2vec",
        f"{asr}.models.spec2vec.spec2vec_config",
    ):
        sys.modules[name] = MagicMock()
    sys.modules["nemo.core"].NeuralModule = torch.nn.Module
    # The checkpoint has the filters.
    shape = heard.BINS, heard.FFT // 2 + 1
    sys.modules["librosa"].filters.mel = lambda *_given, **_named: np.zeros(shape)
    sys.modules["torch_stft"].STFT = object
    from my_scripts.fsq import FSQ
    from nemo.collections.asr.parts.features import FilterbankFeatures
    from nemo.collections.asr.parts.spec2vec import FeatureEncoder

    spectrum = FilterbankFeatures(
        n_window_size=heard.WINDOW,
        nfilt=heard.BINS,
        dither_train_only=True,
        normalize_time_domain=True,
    )
    rows = list(zip(heard.WIDTHS, heard.KERNELS, heard.STRIDES, strict=True))
    stacks = list(zip((rows[:3], rows[3:]), heard.LAYERS, strict=True))
    encoder = FeatureEncoder(
        heard.BINS,
        use_conv_mask=True,
        conv2d_block=None,
        conv_transformer_blocks=[transformer(convs, layers) for convs, layers in stacks],
        use_tf_pad=True,
    )
    head = torch.nn.Linear(heard.WIDTHS[-1], heard.NUMBERS)
    fsq = FSQ([8] * heard.NUMBERS)
    for part, prefix in (
        (spectrum, "encoder.encoder.wav2spec.featurizer."),
        (encoder, "encoder.encoder.feature_encoder."),
        (head, "encoder.pre_quant."),
        (fsq, "encoder.quantizer."),
    ):
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        part.load_state_dict(own)
        part.eval()
    arrays: dict[str, np.ndarray] = {}
    for case in HEARD_CASES:
        samples = torch.from_numpy(case.samples)[None]
        features, lengths = spectrum(samples, torch.tensor([case.count]))
        made, lengths, _ = encoder(features, lengths)
        numbers = head(made.transpose(1, 2)[0, : int(lengths[0])])
        units = fsq.codes_to_indexes(fsq(numbers)).to(torch.int).numpy()
        bounded = fsq.bound(numbers)
        clear = ((bounded - bounded.floor() - 0.5).abs() > LEAST_MARGIN).all(1).numpy()
        arrays |= {f"{case.name}/units": units.astype(np.uint16), f"{case.name}/clear": clear}
        print(case.name, len(units), len(set(units.tolist())), clear.sum())
    return arrays


def transformer(convs: list[tuple[int, int, int]], layers: int) -> Fields:
    """The configuration of convolutions and the layers after them."""
    width = convs[-1][0]
    return Fields(
        conv_layers=[
            Fields(
                filters=filters,
                kernel_size=(kernel,),
                stride=(stride,),
                dilation=(1,),
                norm_type="ln",
                act_func="relu" if kernel > 1 else None,
                bias=True,
            )
            for filters, kernel, stride in convs
        ],
        transformer_block=Fields(
            dropout=0.1,
            conv=Fields(conv_pos=heard.POSITIONS, conv_pos_groups=heard.GROUPS, layer_drop=0.0),
            encoder=Fields(
                embedding_dim=width,
                ffn_embedding_dim=heard.INNER,
                num_attention_heads=width // heard.HEAD_WIDTH,
                attention_dropout=0.1,
                activation_dropout=0.1,
                activation_fn=types.SimpleNamespace(value="gelu"),
                layer_norm_first=True,
                encoder_layers=layers,
                encoder_layerdrop=0.0,
            ),
        ),
    )


if __name__ == "__main__":
    main()
