"""Records what the vendor's code says to `cosy_cases.py`, on a tiny checkpoint made by seed.

Runs in an environment of its own: see the README beside this file. The vendor's code draws codes
with `Tensor.multinomial`: here its numbers are antiphon's.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import logging
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from antiphon.pipelines.cosyvoice3 import FIRST
from antiphon.values.sampling import stream_key
from antiphon_services.cosyvoice3.code2wav.vocoder import noise_of
from antiphon_services.lm.sampler import uniform
from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from tests.equality.cosyvoice3.cosy_cases import (
    ADDED_VOICE,
    AUDIO_STEP,
    CROSS_LINGUAL,
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    SFT,
    Case,
    all_cases,
    clips,
)
from tests.equality.recording import RATE_HZ, SEED, write_recorded

HERE = Path(__file__).parent
MIN_MARGIN = 3e-6
RELEASED_END_OF_PROMPT = 151646
NOISE_FRAMES = 4000
SAMPLES_PER_FRAME, HARMONICS = 480, 9
SYSTEM = "You are a helpful assistant."
END_OF_PROMPT = "<|endofprompt|>"
TOP_P = 0.8
FEATURE_STEP = 7


class Narrow(Exception):
    """Another machine could have drawn otherwise."""


class Draws:
    """The numbers of one request's draws, in place of torch's."""

    def __init__(self) -> None:
        self.key, self.step, self.group = 0, -1, 0

    def begin(self, seed: int) -> None:
        self.key, self.step = stream_key(seed, "talker"), -1

    def multinomial(self, weights: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        """What `Tensor.multinomial` gives: the place of one number among the sums of weights."""
        number = uniform(self.key, self.step, self.group)
        self.group += 1
        sums = weights.double().cumsum(0)
        shares = sums / sums[-1]
        if float((shares - number).abs().min()) < MIN_MARGIN:
            raise Narrow("a number lies at a boundary")
        if len(weights) < 25 and self.group == 1:
            reached = weights.double().cumsum(0)
            if float((reached - TOP_P).abs().min()) < MIN_MARGIN:
                raise Narrow("the nucleus is cut at a boundary")
        return torch.tensor([int((shares <= number).sum())])


def import_vendor(vendor: Path, torchaudio: Path) -> Any:
    """`cosyvoice`, with stand-ins for what only training and downloads use."""

    def stub(name: str, **content: Any) -> Any:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(content)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    sys.path[:0] = [str(vendor / "FunAudioLLM+CosyVoice"), str(torchaudio)]
    stub("modelscope", snapshot_download=None)
    stub("pyworld")
    stub("pyarrow").__path__ = []
    stub("pyarrow.parquet")
    # The packages' own __init__ files import what trains.
    matcha = vendor / "shivammehta25+Matcha-TTS" / "matcha"
    for name in ("", ".utils", ".models", ".models.components", ".hifigan"):
        stub(f"matcha{name}").__path__ = [str(matcha / name.replace(".", "/").lstrip("/"))]
    stub("matcha.utils.pylogger", get_pylogger=logging.getLogger)
    import torchaudio as audio

    def load(path: str, backend: str = "") -> tuple[torch.Tensor, int]:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T.copy()), rate

    audio.load = load
    random = torch.rand

    def rand(*size: Any, **how: Any) -> torch.Tensor:
        """The constructor's 65 million numbers are replaced afterwards."""
        long = len(size) == 3 and size[1] == 300 * RATE_HZ
        return torch.zeros(1, 1, 1) if long else random(*size, **how)

    torch.rand = rand  # type: ignore[assignment]
    from cosyvoice.cli.cosyvoice import CosyVoice3

    return CosyVoice3


def inject(speaker: Any, draws: Draws) -> None:
    """Put antiphon's draws and source noise, and the checkpoint's own ids, into the vendor's."""
    from cosyvoice.llm.llm import Qwen2LM

    tokenizer = speaker.frontend.tokenizer.tokenizer
    end = tokenizer.convert_tokens_to_ids(END_OF_PROMPT)
    for inference in (Qwen2LM.inference.__wrapped__, Qwen2LM.inference_bistream.__wrapped__):
        code = inference.__code__
        constants = tuple(
            end if each == RELEASED_END_OF_PROMPT else each for each in code.co_consts
        )
        assert constants != code.co_consts
        inference.__code__ = code.replace(co_consts=constants)
    original = Qwen2LM.sampling_ids

    def sampling_ids(self: Any, *given: Any, **named: Any) -> int:
        draws.step, draws.group = draws.step + 1, 0
        return int(original(self, *given, **named))

    Qwen2LM.sampling_ids = sampling_ids
    torch.Tensor.multinomial = (  # type: ignore[method-assign,assignment]
        lambda self, count, replacement=False: draws.multinomial(self, count, replacement)
    )
    noise = noise_of(0, NOISE_FRAMES, SAMPLES_PER_FRAME, HARMONICS)
    source = speaker.model.hift.m_source
    source.l_sin_gen.sine_waves = torch.from_numpy(noise)[None]
    source.uv = torch.zeros(1, len(noise), 1)


@contextmanager
def watching(model: Any, threads: list[BaseException]) -> Iterator[list[np.ndarray]]:
    """The codes that go to the flow, part by part; errors of the vendor's threads are kept."""
    import threading

    codes: list[np.ndarray] = []
    original, hook = model.token2wav, threading.excepthook

    def token2wav(token: torch.Tensor, **named: Any) -> torch.Tensor:
        if threads:
            raise threads[0]
        codes.append(token.flatten().numpy().astype(np.uint16))
        made: torch.Tensor = original(token=token, **named)
        return made

    model.token2wav = token2wav
    threading.excepthook = lambda told: threads.append(told.exc_value)  # type: ignore[arg-type]
    try:
        yield codes
    finally:
        model.token2wav, threading.excepthook = original, hook


def ask(speaker: Any, case: Case, wav: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The codes of each part, and all samples."""
    head = f"{SYSTEM}{END_OF_PROMPT}"
    with watching(speaker.model, []) as codes:
        if case.mode == INSTRUCT:
            asked = f"{SYSTEM} {INSTRUCTION}{END_OF_PROMPT}"
            spoken = speaker.inference_instruct2(case.text, asked, wav)
        elif case.mode == CROSS_LINGUAL:
            spoken = speaker.inference_cross_lingual(head + case.text, wav)
        elif case.mode == SFT:
            spoken = speaker.inference_sft(head + case.text, case.voice.capitalize())
        elif case.voice == ADDED_VOICE:
            name = case.voice.capitalize()
            spoken = speaker.inference_zero_shot(case.text, "", "", zero_shot_spk_id=name)
        else:
            spoken = speaker.inference_zero_shot(case.text, head + REFERENCE_TEXT, wav)
        audio = torch.cat([each["tts_speech"] for each in spoken], dim=1)[0].numpy()
    return codes, audio


def record_clips(speaker: Any, folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """What the vendor's front end takes from each recording."""
    for name, samples in clips().items():
        path = str(folder / f"{name}.wav")
        soundfile.write(path, samples, RATE_HZ)
        told = speaker.frontend.frontend_zero_shot("a", "a", path, RATE_HZ, "")
        arrays[f"clip-{name}/codes"] = told["flow_prompt_speech_token"][0].numpy()
        mel = told["prompt_speech_feat"][0].numpy()
        arrays[f"clip-{name}/frames"] = np.array(len(mel))
        arrays[f"clip-{name}/mel"] = mel.reshape(-1)[::FEATURE_STEP]
        arrays[f"clip-{name}/speaker"] = told["flow_embedding"][0].numpy()


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="folder of the vendor's checkouts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    vendor = import_vendor(given.vendor, given.torchaudio)
    logging.disable(logging.INFO)
    arrays: dict[str, np.ndarray] = {}
    told, draws = [], Draws()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tiny_cosyvoice(folder / "tiny", VOICES, SEED)
        speaker = vendor(str(folder / "tiny"))
        inject(speaker, draws)
        record_clips(speaker, folder, arrays)
        for number, case in enumerate(all_cases()):
            for seed in range(number, 10_000, 100):
                draws.begin(seed)
                try:
                    codes, audio = ask(speaker, case, str(folder / "reference.wav"))
                except Narrow:
                    continue
                except RuntimeError as error:
                    # The vendor's code cannot make audio of an utterance without codes.
                    print(case.name, seed, str(error)[:80])
                    continue
                break
            joined = np.concatenate(
                [
                    part + np.uint16(FIRST if at else 0) * (np.arange(len(part)) == 0)
                    for at, part in enumerate(codes)
                ]
            ).astype(np.uint16)
            arrays[f"{case.name}/codes"] = joined
            arrays[f"{case.name}/audio"] = audio[::AUDIO_STEP]
            row = {"case": case.name, "seed": seed, "parts": len(codes), "codes": len(joined)}
            told.append(
                row
                | {
                    "samples": len(audio),
                    "draws": draws.step + 1,
                    "loudest": round(float(np.abs(audio).max()), 4),
                }
            )
            print(told[-1], flush=True)
    write_recorded(HERE, arrays, told, {"cosyvoice": "ace7c47"})


if __name__ == "__main__":
    main()
