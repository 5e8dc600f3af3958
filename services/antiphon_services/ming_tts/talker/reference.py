"""Extracts the speaker vector and the latents of a reference recording for voice cloning."""

from __future__ import annotations

from functools import partial

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
"""The key for the random numbers that are used to draw the latents of a recording.

It is the same in every request, so that a recording always results in the same voice.
"""


def encoder_part(checkpoint: MingCheckpoint) -> StoredPart:
    """Return the tensors that a `ReferenceVoiceEncoder` loads.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    weights, prefix = Weights(checkpoint.audio_folder), checkpoint.audio_prefix + ENCODER
    return StoredPart(weights, prefix, dtype=FLOAT32, on_host=True)


class ReferenceVoiceEncoder:
    """Encodes recordings at 44.1 kHz with the networks of a checkpoint, in float32 on a CPU.

    This class mirrors the vendor's `preprocess_one_prompt_wav`, `pad_waveform` and `encode_latent`.
    Raises `FailedPrecondition` if a file of the checkpoint is missing or onnxruntime is not
    installed.
    """

    def __init__(self, checkpoint: MingCheckpoint) -> None:
        self._speaker = OnnxNetwork(checkpoint.folder / SPEAKER_FILE)
        # The vendor's code pads a recording to complete steps at its end. In Ming-flash-omni, it
        # pads the start instead.
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
        self._voices = ClipCache(partial(self.voice_of_file, rate_hz=SAMPLE_RATE_HZ))

    def voice(self, samples: Samples) -> RecordedVoice:
        """Return the voice of samples with shape [n] at 44.1 kHz. Its arrays are shared and
        read-only.

        This takes a long time, so call it on a worker thread.
        """
        return self._voices.of(samples)

    @torch.inference_mode()
    def voice_of_file(self, samples: Samples, rate_hz: int) -> RecordedVoice:
        """Return the voice of samples with shape [n] at `rate_hz`. Its arrays are read-only.

        The samples are resampled separately for both networks, as in the vendor's
        `register_prompt_wav`.
        """
        # Message arrays are read-only and torch warns about them, so the samples are copied.
        recorded = torch.tensor(samples)
        heard = resampled(recorded, rate_hz, SAMPLE_RATE_HZ)
        rows = kaldi_fbank(resampled(recorded, rate_hz, NETWORK_RATE_HZ).numpy(), SPEAKER_BINS)
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
