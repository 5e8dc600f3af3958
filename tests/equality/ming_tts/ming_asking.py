"""What was recorded, and the parts of the stages in the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen2Config

from antiphon.pipelines.ming_tts import STEP_LATENTS
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.sampling import stream_key
from services.ming_tts.talker.caption import caption_of
from services.ming_tts.talker.module import (
    AUDIO,
    UNUSED,
    BlockSizes,
    MingTalkerModule,
    TalkerSizes,
)
from services.ming_tts.talker.prompt import LatentPrompt, make_prompt
from services.ming_tts.talker.reference import VoiceEncoder
from services.ming_tts.talker.talker import FIRST_STOP, LatentDraw, MingTalker
from services.text.literal import LiteralTokenizer, load_tokenizer
from tests.equality.ming_tts.ming_cases import (
    CLIP,
    DESCRIPTION,
    REFERENCE_TEXT,
    STYLE,
    VOICE,
    Case,
    reference_audio,
)

HERE = Path(__file__).parent
POSITIONS = 512
SLOTS = 8


@dataclass(frozen=True)
class Recorded:
    """`recorded.npz` and `recorded.json`."""

    arrays: dict[str, npt.NDArray[Any]]
    rows: dict[str, dict[str, Any]]

    @classmethod
    def read(cls) -> Recorded:
        """The files beside this one."""
        with np.load(HERE / "recorded.npz") as archive:
            arrays = dict(archive)
        told = json.loads((HERE / "recorded.json").read_text())
        return cls(arrays, {each["case"]: each for each in told["cases"]})

    def of(self, case: Case) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a case."""
        stem = f"{case.name}/"
        return {
            name.removeprefix(stem): array
            for name, array in self.arrays.items()
            if name.startswith(stem)
        }

    def seed(self, case: Case) -> int:
        """The request's seed."""
        return int(self.rows[case.name]["seed"])


@dataclass(frozen=True)
class Said:
    """`latents` float32 [4 * steps, 64]; `stop` float32 [steps, 2]."""

    latents: npt.NDArray[np.float32]
    stop: npt.NDArray[np.float32]


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
        self.encoder = VoiceEncoder(folder)

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
            instruction=caption_of(STYLE) if case.mode == DESCRIPTION else None,
            nameless=case.mode == DESCRIPTION,
        )

    @torch.inference_mode()
    def speak(self, case: Case, prompt: LatentPrompt, seed: int, slot: int = 0) -> Said:
        """All steps of the case."""
        rows = self.model.rows(prompt)
        self.model.begin(slot, prompt, rows)
        self.model.prefill(slot, 0, rows[:-1])
        key = stream_key(seed, "talker")
        latents, stop = [], []
        for step in range(case.most_steps):
            draw = LatentDraw(slot, len(rows) - 1 + step, step, key, case.temperature)
            drawn = self.model.draw([draw])
            latents.append(drawn.latents[0].numpy())
            stop.append(drawn.stop[0].numpy())
            if step >= FIRST_STOP and stop[-1][1] > stop[-1][0]:
                break
        assert latents[0].shape[0] == STEP_LATENTS
        return Said(np.concatenate(latents), np.array(stop))
