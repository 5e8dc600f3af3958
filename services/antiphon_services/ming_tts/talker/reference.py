"""What a reference recording gives a clone: the speaker's vector, and latents."""

from __future__ import annotations

import numpy as np
import torch

from antiphon.pipelines.files import reading
from antiphon.pipelines.ming_tts import (
    LATENT_SAMPLES,
    LATENT_WIDTH,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
    MingCheckpoint,
)
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.clips.cache import ClipCache, Samples
from antiphon_services.clips.features import kaldi_fbank, resampled
from antiphon_services.clips.onnx import OnnxNetwork
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_services.ming_tts.talker.encoder_module import AudioEncoderModule, EncoderSizes
from antiphon_services.ming_tts.talker.prompt import RecordedVoice
from antiphon_services.stage.memory_plan import StoredPart
from antiphon_services.stage.precision import FLOAT32

SPEAKER_FILE, ENCODER = "campplus.onnx", "encoder."
NETWORK_RATE_HZ = 16_000
SPEAKER_BINS = 80
CLIP_KEY = 0
"""Of the numbers that latents of a recording are drawn with: the same in every request, so that a
recording is the same voice in each."""


def encoder_part(checkpoint: MingCheckpoint) -> StoredPart:
    """Return the tensors that a `ReferenceVoiceEncoder` loads. Raises `FailedPrecondition`."""
    weights, prefix = Weights(checkpoint.audio_folder), checkpoint.audio_prefix + ENCODER
    return StoredPart(weights, prefix, dtype=FLOAT32, on_host=True)


class ReferenceVoiceEncoder:
    """Encodes recordings of 44.1 kHz with the networks of a checkpoint, in float32 on a CPU.

    Mirrors `preprocess_one_prompt_wav`, `pad_waveform` and `encode_latent` of the vendor. Raises
    `FailedPrecondition` if a file of the checkpoint or onnxruntime is missing.
    """

    def __init__(self, checkpoint: MingCheckpoint) -> None:
        self._speaker = OnnxNetwork(checkpoint.folder / SPEAKER_FILE)
        # The vendor's code fills up the last step of a recording behind it, and the first one
        # before it in Ming-flash-omni.
        self._fills_before = checkpoint.flash
        audio = checkpoint.audio()
        with reading(checkpoint.config_file):
            backbone = audio["enc_kwargs"]["backbone"]
        self._encoder = load_submodule(
            AudioEncoderModule,
            EncoderSizes(backbone),
            checkpoint.audio_prefix + ENCODER,
            Weights(checkpoint.audio_folder),
            dtype=torch.float32,
            device="cpu",
        )
        self._voices = ClipCache(self._encode)

    def voice(self, samples: Samples) -> RecordedVoice:
        """Return the voice of samples [n]; its arrays are shared and read-only.

        Takes long, so that it should run on a worker thread.
        """
        return self._voices.of(samples)

    @torch.inference_mode()
    def _encode(self, samples: Samples) -> RecordedVoice:
        # A copy: the samples of a message are read-only, which torch warns of.
        heard = torch.tensor(samples)
        rows = kaldi_fbank(resampled(heard, SAMPLE_RATE_HZ, NETWORK_RATE_HZ).numpy(), SPEAKER_BINS)
        speaker = self._speaker((rows - rows.mean(0, keepdims=True))[None])
        step = STEP_LATENTS * LATENT_SAMPLES
        missing = -len(heard) % step
        filled = (missing, 0) if self._fills_before else (0, missing)
        mean, spread = self._encoder(torch.nn.functional.pad(heard, filled))
        numbers = normal_draws(CLIP_KEY, 0, mean.numel()).reshape(-1, LATENT_WIDTH)
        latents = (mean + spread * torch.from_numpy(numbers)).numpy()
        made = RecordedVoice(speaker.astype(np.float32).reshape(-1), latents)
        for array in (made.speaker, made.latents):
            array.flags.writeable = False
        return made
