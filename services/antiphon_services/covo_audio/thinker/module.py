"""The weights of the thinker. Tensors have the same names as in Covo-Audio's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from antiphon_services.covo_audio.thinker.front_end import WINDOW_FRAMES, positions_of
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.qwen2_stack import Qwen2Stack
from antiphon_services.thinker.towers import TowerInputs

ADAPTER_WIDTH = 2048
LEAST_MEL, MEL_RANGE = -1.5, 2.0
"""Constants used to pad a window with silence. A silent frame has the loudest value of the window
minus `MEL_RANGE`, but never less than `LEAST_MEL`.
"""


@dataclass(frozen=True, slots=True)
class ThinkerParts:
    """The configurations of the language model and the encoder, and the downsampling factor of the
    adapter.
    """

    text: Qwen2Config
    encoder: WhisperConfig
    downsampling: int


class RecordingThinkerModule(nn.Module):
    """A thinker without vision, with the interface that `antiphon_services.thinker.model`
    requires.
    """

    def __init__(self, parts: ThinkerParts) -> None:
        super().__init__()
        text = parts.text
        self.llm = nn.Module()
        self.llm.model = Qwen2Stack(text, words=True)
        self.llm.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.encoder = WhisperEncoder(parts.encoder)
        self.audio_adapter = _Adapter(
            parts.encoder.d_model, text.hidden_size, parts.downsampling.bit_length() - 1
        )
        self.visual = None

    @property
    def device(self) -> torch.device:
        """The device that stores the weights."""
        weight: Tensor = self.lm_head.weight
        return weight.device

    @property
    def model(self) -> Any:
        """The decoder of the language model."""
        return self.llm.model

    @property
    def lm_head(self) -> Any:
        """The output head of the language model."""
        return self.llm.lm_head

    def audio_tower(self, *, windows: Tensor, kept: Tensor, return_dict: bool) -> SimpleNamespace:
        """Encode the windows of a recording.

        `windows` is a float32 tensor of shape [n, bins, frames]. `kept`, an int64 tensor of shape
        [m], contains the indices of the rows to return.
        """
        features = windows.to(self.lm_head.weight.dtype)
        rows = self.audio_adapter(self.encoder(features, return_dict=True).last_hidden_state)
        return SimpleNamespace(last_hidden_state=rows.flatten(0, 1)[kept])


class _Adapter(nn.Module):
    def __init__(self, inputs: int, outputs: int, layers: int) -> None:
        super().__init__()
        widths = [inputs] * (layers - 1) + [outputs]
        self.downsample_layers = nn.ModuleList(_Downsampled(inputs, width) for width in widths)

    def forward(self, rows: Tensor) -> Tensor:
        """Downsample rows of shape [n, frames, inputs] to [n, frames / 2 ** layers, outputs]."""
        for layer in self.downsample_layers:
            rows = layer(rows)
        return rows


class _Downsampled(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(inputs, inputs, 3, stride=2, padding=1)
        self.linear1 = nn.Linear(inputs, ADAPTER_WIDTH)
        self.linear2 = nn.Linear(ADAPTER_WIDTH, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        inner = self.linear1(relu(self.conv1d(rows.mT)).mT)
        made: Tensor = self.linear2(relu(inner))
        return made


class WindowedTowers:
    """Implements `antiphon_services.thinker.towers.TowerPlan` for a model without vision."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield the inputs of one call for each recording. The last window is padded with
        silence.
        """
        for recording in torch.split(features, frames.tolist(), dim=1):
            windows = []
            for window in torch.split(recording, WINDOW_FRAMES, dim=1):
                silence = max(LEAST_MEL, float(window.max()) - MEL_RANGE)
                whole = window.new_full((len(window), WINDOW_FRAMES), silence)
                whole[:, : window.shape[1]] = window
                windows.append(whole)
            kept = torch.arange(positions_of(recording.shape[1]))
            yield {"windows": torch.stack(windows), "kept": kept}

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Raises `NotImplementedError`, because the model has no vision."""
        raise NotImplementedError
