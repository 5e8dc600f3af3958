"""Hugging Face's module beside ours, over the weights of a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.qwen2_5_omni.token2wav.decoder import Token2Wav
from antiphon_services.qwen2_5_omni.token2wav.load import STORED_BUFFERS
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.qwen2_5_omni.token2wav.voices import read_voices
from antiphon_testkit.qwen2_5_omni.noise import KeyedNoise
from tests.replayed_graphs import ReplayPool

TOLERANCE = 1e-5
HELD_BLOCKS = StageConfig().decoding.held_blocks


@dataclass(frozen=True)
class Speech:
    codes: torch.Tensor
    voice: str
    seed: int


def speech(count: int, voice: str = "Chelsie", seed: int = 3) -> Speech:
    generator = torch.Generator().manual_seed(count)
    return Speech(torch.randint(0, 66, (count,), generator=generator), voice, seed)


class Rig:
    """The reference's module, and ours over the same weights."""

    def __init__(self, directory: Path) -> None:
        config: Any = Qwen2_5OmniConfig.from_pretrained(directory)
        self.module: Any = load_submodule(
            Qwen2_5OmniToken2WavModel,
            config.token2wav_config,
            "token2wav.",
            Weights(directory),
            dtype=torch.float32,
            device="cpu",
            ignored=STORED_BUFFERS,
        )
        self.voices = read_voices(directory, condition_width=24, mel_width=80)
        self.pool = ReplayPool()
        """The graphs of what is `replayed`, which is ours as a GPU runs it."""
        self.plain = self.ours = Token2Wav(self.module, self.voices)
        self.replayed = Token2Wav(self.module, self.voices, self.pool)
        self._truths: dict[tuple[bytes, str, int], torch.Tensor] = {}
        self._wholes: dict[tuple[Token2Wav, bytes, str, int], torch.Tensor] = {}

    def truth(self, wanted: Speech) -> torch.Tensor:
        """What the reference makes of it, once for all who ask."""
        asked = (wanted.codes.numpy().tobytes(), wanted.voice, wanted.seed)
        if asked not in self._truths:
            self._truths[asked] = self._truth(wanted)
        return self._truths[asked]

    def _truth(self, wanted: Speech) -> torch.Tensor:
        voice = self.voices[wanted.voice]
        with KeyedNoise(wanted.seed):
            made: torch.Tensor = self.module(
                wanted.codes[None], conditioning=voice.condition, reference_mel=voice.mel
            )
        return made.reshape(-1)

    def open(self, wanted: Speech, held_blocks: int = HELD_BLOCKS) -> Utterance:
        return self.ours.open(wanted.voice.lower(), seed=wanted.seed, held_blocks=held_blocks)

    def whole(self, *wanted: Speech) -> list[torch.Tensor]:
        utterances = [self.open(each) for each in wanted]
        for utterance, each in zip(utterances, wanted, strict=True):
            utterance.add(each.codes, finished=True)
        return self.ours.begin(utterances).run()

    def whole_once(self, wanted: Speech) -> torch.Tensor:
        """What `whole` makes of one, computed once for all who compare a stream with it."""
        asked = (self.ours, wanted.codes.numpy().tobytes(), wanted.voice, wanted.seed)
        if asked not in self._wholes:
            (self._wholes[asked],) = self.whole(wanted)
        return self._wholes[asked]

    def streamed(
        self, wanted: Speech, sizes: Sequence[int], held_blocks: int = HELD_BLOCKS
    ) -> torch.Tensor:
        """Codes come in pieces of these sizes, again and again."""
        utterance, made = self.open(wanted, held_blocks), []
        start, count = 0, len(wanted.codes)
        while start < count:
            for size in sizes:
                piece = wanted.codes[start : start + size]
                start += size
                utterance.add(piece, finished=start >= count)
                if utterance.ready:
                    made += self.ours.begin([utterance]).run()
                if start >= count:
                    break
        return torch.cat(made)


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    assert first.shape == second.shape
    return float((first - second).abs().max())
