"""The audio encoder of Ming TTS. Tensors have the same names as in its checkpoint
(`audio.encoder`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus
from transformers import Qwen2Config, Qwen2Model

from antiphon.pipelines.ming_tts import LATENT_ROWS, LATENT_WIDTH, ROW_SAMPLES

AGGREGATOR_LAYERS = 4
LEAST_SPREAD = 1e-4


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """The sizes of the encoder.

    `backbone` is the object of this name in the checkpoint's `audio_tokenizer_config.enc_kwargs`.
    """

    backbone: dict[str, Any]

    def config(self, **changes: int) -> Qwen2Config:
        """Return the configuration of the layers.

        In the vendor's version of transformers, the window applies to every layer.
        """
        windows = {"max_window_layers": 0} if self.backbone.get("use_sliding_window") else {}
        made: Qwen2Config = Qwen2Config.from_dict(self.backbone | windows | changes)
        return made


class AudioEncoderModule(nn.Module):
    """Encodes samples at 44.1 kHz to the mean and the standard deviation of latents."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        config = sizes.config()
        width = config.hidden_size
        self.encoder = Qwen2Model(config)
        self.aggregator = Qwen2Model(sizes.config(num_hidden_layers=AGGREGATOR_LAYERS))
        self.fc1 = nn.Linear(ROW_SAMPLES, width, bias=False)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 2 * LATENT_WIDTH)
        # The checkpoint contains these weights, but they are not used.
        self.norm = nn.LayerNorm(width)
        self.cls_embed = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation, each of shape [latents, 64].

        `samples` has shape [n], in which n must be at least 1.
        """
        samples = pad(samples, (0, -len(samples) % (LATENT_ROWS * ROW_SAMPLES)))
        rows = self.fc2(self.fc1(samples.view(1, -1, ROW_SAMPLES)))
        rows = self.encoder(inputs_embeds=rows).last_hidden_state[0]
        latents = rows.view(-1, LATENT_ROWS, rows.shape[-1])
        last = self.cls_embed.expand(len(latents), 1, -1)
        joined = torch.cat((latents, last), 1).flatten(0, 1)
        heard = self.aggregator(inputs_embeds=joined[None]).last_hidden_state[0]
        mean, scale = self.fc3(heard[LATENT_ROWS :: LATENT_ROWS + 1]).chunk(2, 1)
        return mean, softplus(scale) + LEAST_SPREAD
