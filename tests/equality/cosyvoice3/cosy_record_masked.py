"""Records the audio that the vendor's code makes with the block mask, in one pass over all codes.

That is the flow with `streaming=True, finalize=True`, then the vocoder. It is not the vendor's
`tts(stream=True)`, whose last part is computed without the mask. Random codes are also recorded
without the mask, as longer utterances than those of the texts. Run it after `cosy_record`, in the
same environment: it reads the codes that were recorded.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from antiphon.pipelines.cosyvoice3 import FIRST
from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from tests.equality.cosyvoice3.cosy_cases import AUDIO_STEP, all_cases, reference_audio
from tests.equality.cosyvoice3.cosy_masked import CODES_CASES, MEL_STEP, long_mel, voice_and_codes
from tests.equality.cosyvoice3.cosy_record import Draws, import_vendor, inject
from tests.equality.recording import RATE_HZ, SEED

HERE = Path(__file__).parent


def speak(
    model: Any, voice: dict[str, torch.Tensor], codes: np.ndarray, *, masked: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Mel frames [2 n, bins] and samples of codes [n] of one utterance."""

    def length(part: torch.Tensor) -> torch.Tensor:
        return torch.tensor([part.shape[1]], dtype=torch.int32)

    prompt, mel = voice["flow_prompt_speech_token"], voice["prompt_speech_feat"]
    token = torch.tensor(codes.astype(np.int32))[None]
    made, _ = model.flow.inference(
        token=token,
        token_len=length(token),
        prompt_token=prompt,
        prompt_token_len=length(prompt),
        prompt_feat=mel,
        prompt_feat_len=length(mel),
        embedding=voice["flow_embedding"],
        streaming=masked,
        finalize=True,
    )
    samples, _ = model.hift.inference(speech_feat=made, finalize=True)
    return made[0].T.numpy(), samples[0].numpy()


def main() -> None:
    """Write `masked.npz`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="folder of the vendor's checkouts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    vendor = import_vendor(given.vendor, given.torchaudio)
    logging.disable(logging.INFO)
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary, np.load(HERE / "recorded.npz") as recorded:
        folder = Path(temporary)
        build_tiny_cosyvoice(folder / "tiny", VOICES, SEED)
        speaker = vendor(str(folder / "tiny"))
        inject(speaker, Draws())
        path = str(folder / "reference.wav")
        soundfile.write(path, reference_audio(), RATE_HZ)
        voices = {"": speaker.frontend.frontend_zero_shot("a", "a", path, RATE_HZ, "")}
        for each, told in speaker.frontend.spk2info.items():
            empty = {
                "flow_prompt_speech_token": torch.zeros(1, 0, dtype=torch.int32),
                "prompt_speech_feat": torch.zeros(1, 0, 80),
                "flow_embedding": told.get("embedding"),
            }
            voices[each.lower()] = {**empty, **told}
        for case in all_cases():
            codes = recorded[f"{case.name}/codes"]
            parts = np.split(codes, np.flatnonzero(codes >= FIRST))
            made = [
                speak(speaker.model, voices[case.voice], part % FIRST)[1]
                for part in parts
                if len(part)
            ]
            arrays[case.name] = np.concatenate(made)[::AUDIO_STEP]
            print(case.name, len(codes), flush=True)
        for random in CODES_CASES:
            tensors, codes = voice_and_codes(random)
            voice = {
                "flow_prompt_speech_token": torch.tensor(tensors["prompt_codes"])[None],
                "prompt_speech_feat": torch.tensor(tensors["prompt_mel"])[None],
                "flow_embedding": torch.tensor(tensors["speaker"]),
            }
            for name, masked in ((random.name, True), (random.whole_name, False)):
                frames, samples = speak(speaker.model, voice, codes, masked=masked)
                arrays[f"{name}/mel"] = frames.reshape(-1)[::MEL_STEP]
                arrays[name] = samples[::AUDIO_STEP]
            print(random.name, flush=True)
        samples, _ = speaker.model.hift.inference(
            speech_feat=torch.tensor(long_mel().T[None]), finalize=True
        )
        arrays["long-mel"] = samples[0].numpy()[::AUDIO_STEP]
    np.savez_compressed(HERE / "masked.npz", **arrays)


if __name__ == "__main__":
    main()
