"""Encodes a reference recording for voice cloning.

The result consists of speech codes, mel frames and a speaker vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from antiphon.errors import InvalidArgument
from antiphon.pipelines.cosyvoice3 import (
    FRAMES_PER_CODE,
    MEL_BINS,
    SAMPLE_RATE_HZ,
    SPEAKER_WIDTH,
    SPEECH_IDS,
)
from antiphon_services.clips.cache import ClipCache, Samples
from antiphon_services.clips.features import LogMel, kaldi_fbank, resampled, whisper_mel
from antiphon_services.clips.onnx import OnnxNetwork
from antiphon_services.cosyvoice3.talker.prompt import Voice

SPEAKER_FILE, CODES_FILE = "campplus.onnx", "speech_tokenizer_v3.onnx"
NETWORK_RATE_HZ = 16_000
WHISPER_BINS = 128
MEL = LogMel(SAMPLE_RATE_HZ, MEL_BINS, window=1920, hop=480, highest_hz=12_000.0)


class VoiceEncoder:
    """Encodes recordings at 24 kHz with the networks of a checkpoint.

    This class mirrors the vendor's `frontend_zero_shot`. Raises `FailedPrecondition` if a file of
    the checkpoint is missing or onnxruntime is not installed.
    """

    def __init__(self, model_dir: Path) -> None:
        self._speaker = OnnxNetwork(model_dir / SPEAKER_FILE)
        self._codes = OnnxNetwork(model_dir / CODES_FILE)
        self._voices = ClipCache(self._encode)

    def voice(self, samples: Samples) -> Voice:
        """Return the voice of a recording.

        `samples` has shape [n] and must contain at least 0.1 seconds of audio. The arrays of the
        result are shared and read-only. This takes a long time, so call it on a worker thread.
        Raises `FailedPrecondition` if a network has unexpected inputs or outputs.
        """
        return self._voices.of(samples)

    @torch.inference_mode()
    def _encode(self, samples: Samples) -> Voice:
        # Message arrays are read-only and torch warns about them, so the samples are copied.
        heard = torch.tensor(samples)
        at_network_rate = resampled(heard, SAMPLE_RATE_HZ, NETWORK_RATE_HZ)
        features = whisper_mel(at_network_rate, WHISPER_BINS)[None].numpy()
        length = np.array([features.shape[2]], np.int32)
        codes = self._codes(features, length).reshape(-1).astype(np.int32)
        if codes.size and not 0 <= codes.min() <= codes.max() < SPEECH_IDS:
            raise InvalidArgument(
                "options.reference_audio: the checkpoint's network generates invalid codes for it; "
                "use another recording",
                field="options.reference_audio",
            )
        rows = kaldi_fbank(at_network_rate.numpy(), MEL_BINS)
        speaker = self._speaker((rows - rows.mean(0, keepdims=True))[None])
        mel = MEL.of(heard).T.contiguous().numpy()
        count = min(len(mel) // FRAMES_PER_CODE, len(codes))
        made = Voice(
            speaker.astype(np.float32).reshape(1, SPEAKER_WIDTH),
            codes[:count],
            mel[: FRAMES_PER_CODE * count],
        )
        for array in (made.speaker, made.codes, made.mel):
            array.flags.writeable = False
        return made
