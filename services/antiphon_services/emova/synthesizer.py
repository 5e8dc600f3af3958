"""Converts speech units to samples, in two steps.

The first step computes all latents of an utterance at once, because the attention layers and the
flow process the entire utterance. The second step generates the samples. Each sample depends only
on nearby latents, so the samples can be generated in windows. This limits the memory usage and the
duration of each call. A window is computed with `UnitDecoderSizes.reach` additional latents on each
side, so that its samples are identical to the result of a single pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, reading
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.transport.device_edge import host_array, on_device
from antiphon.values.chunk import Tensor as Array
from antiphon_services.emova.normed_convolution import fold_all
from antiphon_services.emova.unit_decoder import TRAINED_WITH, UnitDecoderModule
from antiphon_services.emova.unit_decoder_sizes import PREFIX, UNIT_ENTRIES, UnitDecoderSizes
from antiphon_services.flow.normal_draws import normal_draws

STYLES = "style_embedding.weight"
SAMPLE_RATE_HZ = 22_050
MOST_UNITS = 1000
"""The maximum number of units in an utterance. The decoder was not trained on longer inputs."""
MOST_SPEECH_S = 120
"""The maximum duration of speech in seconds. The predicted durations are otherwise unbounded."""

DURATION_STEP, LATENT_STEP = 0, 1
"""The steps that are used to derive random numbers from a key."""
DURATION_NOISE, LATENT_NOISE = 0.8, 0.667
"""The noise scales that EMOVA's code uses for synthesis."""


@dataclass(frozen=True, slots=True)
class SpeechLatents:
    """The latents of an utterance, of shape [latent, frames], and its style, of shape [width,
    1].
    """

    values: Tensor
    style: Tensor

    @property
    def frames(self) -> int:
        """The number of latents."""
        return self.values.shape[1]


class UnitSynthesizer:
    """Synthesizes speech from units in a given style.

    `styles` is the style embedding table of the checkpoint, of shape [styles, width].
    """

    def __init__(self, module: UnitDecoderModule, sizes: UnitDecoderSizes, styles: Tensor) -> None:
        self._module, self._styles = module, styles
        self._first_symbol = sizes.symbols - UNIT_ENTRIES
        self._reach = sizes.reach
        self._most_frames = MOST_SPEECH_S * SAMPLE_RATE_HZ // sizes.hop
        self.hop = sizes.hop
        """The number of samples per latent."""

    @torch.inference_mode()
    def latents(self, units: Array, style: int, key: int) -> SpeechLatents:
        """Compute the latents of an utterance.

        `units` is a non-empty uint16 array of shape [n], with values below `UNIT_ENTRIES`. The
        noise depends only on the 128-bit `key` and on the index of the unit or latent. Raises
        `InvalidArgument` if the speech would be longer than `MOST_SPEECH_S`.
        """
        module, device = self._module, self._styles.device
        symbols = on_device(units.astype("int64") + self._first_symbol, device)
        vector = self._styles[style][:, None]
        rows, means, logs = module.enc_p(symbols)
        noise = self._noise(key, DURATION_STEP, len(units), 2) * DURATION_NOISE
        frames = module.dp(rows, vector, noise).float().exp().ceil()
        total = float(frames.sum())
        if not total <= self._most_frames:
            raise InvalidArgument(
                f"the speech for {len(units)} units is longer than {MOST_SPEECH_S} s"
            )
        if total:
            counts = frames.long()
            means, logs = (each.repeat_interleave(counts, 1) for each in (means, logs))
        else:
            # If all durations are zero, the reference implementation generates a single frame.
            means, logs = means.new_zeros(len(means), 1), logs.new_zeros(len(logs), 1)
        drawn = self._noise(key, LATENT_STEP, means.shape[1], len(means))
        latents = means + drawn * logs.exp() * LATENT_NOISE
        return SpeechLatents(module.flow(latents, vector), vector)

    @torch.inference_mode()
    def samples(self, latents: SpeechLatents, first: int, stop: int) -> Array:
        """Generate the samples of the latents from `first` up to, but not including, `stop`.

        Returns a float32 array of shape [hop * (stop - first)].
        """
        left, right = max(first - self._reach, 0), min(stop + self._reach, latents.frames)
        made = self._module.dec(latents.values[:, left:right], latents.style)
        return host_array(made[self.hop * (first - left) : self.hop * (stop - left)].float())

    def _noise(self, key: int, step: int, count: int, channels: int) -> Tensor:
        """Return noise of shape [channels, count]. The values in a column depend only on its
        index.
        """
        drawn = normal_draws(key, step, count * channels).reshape(count, channels)
        return torch.from_numpy(drawn.T.copy()).to(self._styles)


@torch.inference_mode()
def load_synthesizer(
    weights: Weights, *, dtype: torch.dtype, device: torch.device
) -> tuple[UnitSynthesizer, int]:
    """Load the synthesizer from the directory of EMOVA's speech tokenizer.

    Returns the synthesizer and the number of styles. Raises `FailedPrecondition` if the parts of
    the checkpoint do not match.
    """
    with reading(weights.folder / CONFIG_FILE):
        sizes = UnitDecoderSizes.read(weights)
        table = weights.read(STYLES).to(device, dtype)
    bare = (name.removeprefix(PREFIX) for name in weights.files if name.startswith(PREFIX))
    module = load_submodule(
        UnitDecoderModule,
        sizes,
        PREFIX,
        weights,
        dtype=dtype,
        device=device,
        ignored=[name for name in bare if name.startswith(TRAINED_WITH)],
    )
    fold_all(module)
    return UnitSynthesizer(module, sizes, table), len(table)


def read_styles(weights: Weights, config: Mapping[str, Any], count: int) -> dict[str, int]:
    """Read the style names from `config.json` and map them to their indices.

    Raises `FailedPrecondition` if there are no styles, or if an index is not below `count`.
    """
    path = weights.folder / CONFIG_FILE
    with reading(path):
        styles = {str(name): int(number) for name, number in config["u2s_style2idx"].items()}
    if not styles or not all(0 <= number < count for number in styles.values()):
        raise FailedPrecondition(
            f"{path}: u2s_style2idx doesn't contain the {count} styles of {STYLES}; {REMEDY}"
        )
    return styles
