"""Records what the vendor's package says to `cases.py`, on tiny checkpoints made by seed.

Runs in an environment of its own: see the README beside this file.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import math
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import librosa  # noqa: F401  # before the stand-ins below, which would mislead it
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoFeatureExtractor, AutoModel, AutoProcessor  # noqa: F401
from transformers.generation import GenerationMixin, LogitsProcessor

from antiphon_testkit.qwen3_tts.tiny_checkpoint import PRESETS, build_tiny_tts
from tests.equality.qwen3_tts.cases import (
    AUDIO_STEP,
    DECODED_FRAMES,
    RECORDINGS,
    REFERENCE,
    REFERENCE_TEXT,
    Case,
    Recording,
    all_cases,
)
from tests.equality.recording import SEED, reference_voice, write_recorded

HERE = Path(__file__).parent
MIN_MARGIN = 1e-4
GREEDY = {"do_sample": False, "subtalker_dosample": False}

Arrays = dict[str, np.ndarray]


class Margin(LogitsProcessor):
    """Notes the narrowest gap between the two highest logits; comes behind all others."""

    def __init__(self) -> None:
        self.smallest = math.inf

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        top = scores[0].topk(2).values
        self.smallest = min(self.smallest, float(top[0] - top[1]))
        return scores


def import_vendor() -> Any:
    """`qwen_tts`, with stand-ins for what only its 25 Hz tokenizer uses."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    module = types.ModuleType("onnxruntime")
    module.__spec__ = importlib.machinery.ModuleSpec("onnxruntime", None)
    sys.modules["onnxruntime"] = module
    import qwen_tts

    return qwen_tts


def watch_margins() -> Margin:
    """Put a `Margin` behind the logits processors of every generation from now on."""
    margin, original = Margin(), GenerationMixin._get_logits_processor

    def with_margin(self: Any, *args: Any, **kwargs: Any) -> Any:
        processors = original(self, *args, **kwargs)
        processors.append(margin)
        return processors

    GenerationMixin._get_logits_processor = with_margin
    return margin


def check_strict(directory: Path, tts: Any) -> None:
    """Raise unless models and files have the same tensors."""
    codec = tts.model.speech_tokenizer.model
    for model, path in ((tts.model, directory), (codec, directory / "speech_tokenizer")):
        with safe_open(path / "model.safetensors", framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        held = model.state_dict()
        different = held.keys() ^ stored.keys()
        if different:
            raise SystemExit(f"{path}: not in both model and file: {sorted(different)}")
        wrong = [name for name in held if not torch.equal(held[name], stored[name])]
        if wrong:
            raise SystemExit(f"{path}: did not arrive: {wrong}")


def ask(tts: Any, case: Case, clone: Any) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint16 [n, groups] and audio float32 [1920 n] of one case."""
    codes: list[torch.Tensor] = []
    generate = tts.model.generate

    def listening(**kwargs: Any) -> Any:
        made = generate(**kwargs)
        codes.extend(made[0])
        return made

    settings = {
        "text": case.text,
        "language": case.language,
        "non_streaming_mode": case.whole_text,
        "max_new_tokens": case.max_new_tokens,
        **GREEDY,
    }
    tts.model.generate = listening
    try:
        if case.kind == "custom_voice":
            audio, _ = tts.generate_custom_voice(
                speaker=case.voice, instruct=case.instruction or None, **settings
            )
        else:
            prompt = [
                each for each in clone[case.recording] if each.icl_mode == (case.clone == "codes")
            ]
            audio, _ = tts.generate_voice_clone(voice_clone_prompt=prompt, **settings)
    finally:
        del tts.model.generate
    return codes[0].numpy().astype(np.uint16), audio[0]


def record_recordings(tts: Any, arrays: Arrays) -> dict[Recording, Any]:
    """What the package takes from each recording: the vector alone, and with the frames."""
    arrays["reference/audio"] = reference_voice(REFERENCE.samples)
    prompts = {}
    for recording in (REFERENCE, *RECORDINGS):
        samples = recording.of(arrays["reference/audio"])
        heard = (samples.astype(np.float32) / 32768, recording.rate_hz)
        vector, codes = prompts[recording] = tts.create_voice_clone_prompt(
            [heard, heard], [REFERENCE_TEXT, REFERENCE_TEXT], [True, False]
        )
        arrays[f"{recording.name}/vector"] = vector.ref_spk_embedding.numpy()
        arrays[f"{recording.name}/codes"] = codes.ref_code.numpy().astype(np.uint16)
    return prompts


def record_kind(kind: str, vendor: Any, margin: Margin, arrays: Arrays) -> list[dict[str, Any]]:
    """Answer the cases of one kind of checkpoint; what else is known of each is returned."""
    told = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / kind
        build_tiny_tts(directory, PRESETS[kind], SEED)
        tts = vendor.Qwen3TTSModel.from_pretrained(str(directory), attn_implementation="sdpa")
        check_strict(directory, tts)
        clone = record_recordings(tts, arrays) if kind == "base" else None
        for case in (each for each in all_cases() if each.kind == kind):
            margin.smallest = math.inf
            codes, audio = ask(tts, case, clone)
            if margin.smallest < MIN_MARGIN:
                raise SystemExit(f"{case.name}: chose narrowly ({margin.smallest}); change it")
            arrays[f"{case.name}/codes"] = codes
            arrays[f"{case.name}/audio"] = audio[::AUDIO_STEP]
            told.append(
                {"case": case.name, "frames": len(codes), "samples": len(audio)}
                | {"margin": round(margin.smallest, 6)}
            )
        decoder = tts.model.speech_tokenizer.model.decoder
        shape = PRESETS[kind]
        codes = np.random.default_rng(SEED).integers(
            0, shape.codebook_size, (DECODED_FRAMES, shape.code_groups)
        )
        with torch.inference_mode():
            audio = decoder(torch.from_numpy(codes.T[None]))[0, 0].numpy()
        arrays[f"decoded-{kind}/codes"] = codes.astype(np.uint16)
        arrays[f"decoded-{kind}/audio"] = audio[::AUDIO_STEP]
        print(kind, "loudest", float(np.abs(audio).max()))
    return told


def main() -> None:
    """Write `recorded.npz` and `recorded.json`."""
    vendor, margin = import_vendor(), watch_margins()
    arrays: Arrays = {}
    told = [row for kind in PRESETS for row in record_kind(kind, vendor, margin, arrays)]
    write_recorded(HERE, arrays, told, {"qwen-tts": importlib.metadata.version("qwen-tts")})


if __name__ == "__main__":
    main()
