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

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason
from antiphon.pipelines.ming_tts import FRAME_SAMPLES, FRAME_WIDTH, LATENT_WIDTH
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.sampling import Sampling, stream_key
from antiphon_services.lm.frames import FrameDraw, PromptPart
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
from antiphon_services.ming_tts.talker.segment import LatentText
from antiphon_services.ming_tts.talker.talker import LatentTurn, MingTalker, is_last
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer
from tests.equality.ming_tts.ming_cases import (
    AUDIO_STEP,
    CLIP,
    DESCRIPTION,
    LATENT_STEP,
    NAMED,
    RATE_HZ,
    REFERENCE_TEXT,
    STYLE,
    VOICE,
    VOICE_NAME,
    Case,
    reference_audio,
)
from tests.equality.read_aloud import Options, Speech, listen, wav

HERE = Path(__file__).parent
TOLERANCE = 1e-4
CAPTIONS = {DESCRIPTION: {STYLE_PART: STYLE}, NAMED: {VOICE_PART: VOICE_NAME}}
CLIP_FILE = wav(reference_audio(), RATE_HZ)
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

    def steps(self, case: Case) -> int:
        """How many steps it took."""
        return int(self.rows[case.name]["steps"])

    def seed(self, case: Case) -> int:
        """The request's seed."""
        return int(self.rows[case.name]["seed"])


def options_of(case: Case) -> Options:
    """The options of a request."""
    match case.mode:
        case mode if mode == DESCRIPTION:
            return {"instruction": STYLE}
        case mode if mode == CLIP:
            return {"reference_audio": CLIP_FILE, "reference_text": REFERENCE_TEXT}
        case mode if mode == VOICE:
            return {"reference_audio": CLIP_FILE}
    return {}


async def speak(
    client: antiphon.AsyncClient,
    case: Case,
    seed: int,
    *,
    delivery: Delivery | None = None,
    policy: ChunkPolicy | None = None,
) -> Speech:
    """Send a case through the services."""
    generation = client.generate(
        case.text,
        modalities=("audio",),
        voice=VOICE_NAME if case.mode == NAMED else "",
        seed=seed,
        temperature=case.temperature,
        max_tokens=case.most_steps,
        options=options_of(case),
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=240,
    )
    return await listen(generation, FRAME_WIDTH)


def check(speech: Speech, case: Case, recorded: Recorded) -> None:
    """The speech is what is recorded of a case: 14,112 samples for each step."""
    steps = recorded.steps(case)
    assert speech.codes.shape == (steps, FRAME_WIDTH)
    latents = speech.codes.reshape(-1, LATENT_WIDTH)[:, ::LATENT_STEP]
    arrays = recorded.of(case)
    np.testing.assert_allclose(latents, arrays["latents"], rtol=0, atol=TOLERANCE)
    assert len(speech.samples) == FRAME_SAMPLES * steps
    np.testing.assert_allclose(
        speech.samples[::AUDIO_STEP], arrays["audio"], rtol=0, atol=TOLERANCE
    )
    assert speech.finished.usage.completion_audio_frames == steps
    ended = recorded.rows[case.name]["ended"]
    assert speech.finished.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


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
        self.encoder = ReferenceVoiceEncoder(folder)

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
        text = LatentText("input", lambda size: None, lambda tensors: prompt, 0)
        text.hold(prompt)
        self.model.begin(slot, prompt)
        last = text.rows - 1
        self.model.step([LatentTurn([PromptPart(slot, 0, last, text, "")])])
        key = stream_key(seed, "talker")
        sampling = Sampling(case.temperature, 0, 1.0, 1.0, seed=key, max_tokens=case.most_steps)
        latents, stop = [], []
        for step in range(case.most_steps):
            turn = LatentTurn(draw=FrameDraw(slot, last + step, None, sampling, step))
            drawn = self.model.step([turn])[0].drawn
            assert drawn is not None
            latents.append(drawn.frame)
            stop.append(drawn.stop)
            if is_last(step, drawn.stop):
                break
        return Said(np.concatenate(latents).reshape(-1, LATENT_WIDTH), np.array(stop))
