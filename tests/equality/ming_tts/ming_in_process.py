"""The parts of the stages in this process, without their engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.pipelines.ming_tts import LATENT_WIDTH, MingCheckpoint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.sampling import Sampling, stream_key
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.ming_tts.code2wav.module import DECODER, AudioDecoderModule, DecoderSizes
from antiphon_services.ming_tts.code2wav.module import UNUSED as UNUSED_BY_DECODER
from antiphon_services.ming_tts.talker.caption import STYLE as STYLE_PART
from antiphon_services.ming_tts.talker.caption import VOICE as VOICE_PART
from antiphon_services.ming_tts.talker.caption import caption_of
from antiphon_services.ming_tts.talker.module import (
    AUDIO,
    UNUSED,
    BlockSizes,
    MingTalkerModule,
    TalkerSizes,
)
from antiphon_services.ming_tts.talker.prompt import LatentPrompt, make_prompt
from antiphon_services.ming_tts.talker.reference import ReferenceVoiceEncoder
from antiphon_services.ming_tts.talker.talker import LatentDrawn, LatentTurn, MingTalker, is_last
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer
from tests.equality.ming_tts.ming_cases import (
    CLIP,
    DESCRIPTION,
    NAMED,
    REFERENCE_TEXT,
    STYLE,
    VOICE,
    VOICE_NAME,
    Case,
    reference_audio,
)

CAPTIONS = {DESCRIPTION: {STYLE_PART: STYLE}, NAMED: {VOICE_PART: VOICE_NAME}}
POSITIONS = 512
SLOTS = 8


@dataclass(frozen=True)
class Said:
    """`latents` float32 [4 * steps, 64]; `stop` float32 [steps, 2]."""

    latents: npt.NDArray[np.float32]
    stop: npt.NDArray[np.float32]


def load_decoder(folder: Path) -> AudioDecoderModule:
    """The audio decoder of a checkpoint."""
    checkpoint = MingCheckpoint.read(folder)
    return load_submodule(
        AudioDecoderModule,
        DecoderSizes(checkpoint.audio()["dec_kwargs"]["backbone"]),
        checkpoint.audio_prefix + DECODER,
        Weights(checkpoint.audio_folder),
        dtype=torch.float32,
        device="cpu",
        ignored=UNUSED_BY_DECODER,
    )


class TalkerInProcess:
    """The talker of a checkpoint, without its engine."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "config.json").read_text())
        sizes = TalkerSizes(
            Qwen2Config.from_dict(told["llm_config"]),
            BlockSizes.of(told["ditar_config"]),
            BlockSizes.of(told["aggregator_config"]),
        )
        module = load_submodule(
            MingTalkerModule,
            sizes,
            "",
            Weights(folder),
            dtype=torch.float32,
            device="cpu",
            skip=(AUDIO,),
            ignored=UNUSED,
        )
        self.model = MingTalker(module, context_limit=POSITIONS, slots=SLOTS)
        self._tokenizer = LiteralTokenizer(load_tokenizer(folder), tags=True)
        self.encoder = ReferenceVoiceEncoder(MingCheckpoint.read(folder))

    def prompt(self, case: Case) -> LatentPrompt:
        """What the vendor's code makes of the case."""
        samples = reference_audio().astype(np.float32) / np.float32(32768)
        voice = self.encoder.voice(samples) if case.mode in (CLIP, VOICE) else None
        return make_prompt(
            lambda text: self._tokenizer.encode(text, field="messages"),
            self._tokenizer.control,
            case.text,
            voice=voice,
            reference_text=REFERENCE_TEXT if case.mode == CLIP else "",
            instruction=caption_of(CAPTIONS[case.mode]) if case.mode in CAPTIONS else None,
            nameless=case.mode in CAPTIONS,
        )

    @torch.inference_mode()
    def speak(self, case: Case, prompt: LatentPrompt, seed: int, slot: int = 0) -> Said:
        """All steps of the case."""
        drawn = [(each.frame, each.stop) for each, _ in self._draws(case, prompt, seed, slot)]
        frames, stops = zip(*drawn, strict=True)
        return Said(np.concatenate(frames).reshape(-1, LATENT_WIDTH), np.array(stops))

    def steps(
        self, case: Case, prompt: LatentPrompt, seed: int, slot: int = 0
    ) -> Iterator[tuple[npt.NDArray[np.float32], bool]]:
        """The latents [4, 64] of each step of the case, and whether they are the last ones."""
        for drawn, last in self._draws(case, prompt, seed, slot):
            yield drawn.frame.reshape(-1, LATENT_WIDTH), last

    def _draws(
        self, case: Case, prompt: LatentPrompt, seed: int, slot: int
    ) -> Iterator[tuple[LatentDrawn, bool]]:
        text: Any = SimpleNamespace(current=prompt)
        self.model.begin(slot, prompt)
        last = len(prompt.ids) - 1
        self.model.step([LatentTurn([PromptPart(slot, 0, last, text, "")])])
        key = stream_key(seed, "talker")
        sampling = Sampling(case.temperature, 0, 1.0, 1.0, seed=key, max_tokens=case.most_steps)
        for step in range(case.most_steps):
            turn = LatentTurn(draw=FrameDraw(slot, last + step, None, sampling, step))
            drawn = self.model.step([turn])[0].drawn
            assert drawn is not None
            ends = is_last(step, drawn.stop)
            yield drawn, ends or step + 1 == case.most_steps
            if ends:
                return
