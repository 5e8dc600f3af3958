"""Writes a tiny Ming TTS checkpoint with random weights and the same files as a released one."""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from antiphon.pipelines.ming_tts import FLASH_ARCHITECTURE, TALKER_FOLDER, VOICES_FILE
from antiphon_testkit.cosyvoice3.tiny_networks import write_speaker_network
from antiphon_testkit.ming_tts.tensor_shapes import (
    head_shapes,
    language_model_shapes,
    vae_shapes,
)
from antiphon_testkit.ming_tts.tiny_config import SPECIAL_TOKENS, flash_config, model_config
from antiphon_testkit.ming_tts.tiny_shape import FLASH, UNBOUNDED, WINDOWED, MingShape
from antiphon_testkit.tensor_shapes import Shapes
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"windowed": WINDOWED, "unbounded": UNBOUNDED, "flash": FLASH}

ROUNDED_TO = 64

CONFIG_FILE, SINGLE_FILE, SPEAKER_FILE = "config.json", "model.safetensors", "campplus.onnx"
METADATA = {"format": "pt"}

FLASH_NAMES = {
    "model.model.": "model.",
    "linear_proj_audio.": "aggregator.",
    "flowloss.cfm.model.": "cfm.model.",
}
"""The name prefixes in Ming-omni-tts, and the corresponding prefixes in Ming-flash-omni."""
FLASH_VOICES = {
    "DB30": (16_000, 1, "The water is good."),
    "lingguang": (48_000, 2, "今天天气很好。"),
}
"""The sample rate, number of channels and transcript of each voice."""
FLASH_VOICE_S = 0.9

ROTARY_BASE = 10_000.0
STOP_LEAN = -2.0
LOUDNESS = 1.0
"""The mean of the log magnitudes that the audio decoder generates."""

RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4),),
    normal=(
        (r"head\.out\.bias$", 0.02),
        (r"\.bias$", 0.1),
        (r"(embed_tokens|word_embedder)\.weight$|cls_embed$", 1.0),
    ),
    gains=(
        (r"stop_head\.weight$", 2.0),
        (r"head\.out\.weight$", 0.7),
        (r"", 1.2),
    ),
)


def build_tiny_ming(directory: Path, shape: MingShape = WINDOWED, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    if shape.flash:
        _build_flash(directory, shape, seed)
        return
    ids = write_slow_tokenizer(directory, SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
    vocabulary = _vocabulary(ids)
    _write_json(directory / CONFIG_FILE, model_config(shape, vocabulary))
    save_file(_tensors(shape, vocabulary, seed), directory / SINGLE_FILE, METADATA)
    write_speaker_network(directory / SPEAKER_FILE, seed)


def _build_flash(directory: Path, shape: MingShape, seed: int) -> None:
    """Write the same weights as in the other layout to the folders of Ming-flash-omni."""
    talker = directory / TALKER_FOLDER
    for folder in ("llm", "vae", "data"):
        (talker / folder).mkdir(parents=True)
    ids = write_slow_tokenizer(talker / "llm", SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
    vocabulary = _vocabulary(ids)
    config = model_config(shape, vocabulary)
    _write_json(directory / CONFIG_FILE, {"architectures": [FLASH_ARCHITECTURE]})
    _write_json(talker / CONFIG_FILE, flash_config(config))
    _write_json(talker / "llm" / CONFIG_FILE, config["llm_config"])
    _write_json(talker / "vae" / CONFIG_FILE, config["audio_tokenizer_config"])
    own: dict[str, torch.Tensor] = {}
    audio: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(shape, vocabulary, seed).items():
        if name.startswith("audio."):
            audio[name.removeprefix("audio.")] = tensor
            continue
        for old, new in FLASH_NAMES.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        own[name] = tensor
    save_file(own, talker / SINGLE_FILE, METADATA)
    save_file(audio, talker / "vae" / SINGLE_FILE, METADATA)
    write_speaker_network(talker / SPEAKER_FILE, seed)
    _write_voices(talker)


def _write_voices(talker: Path) -> None:
    """Write recordings with different sample rates and numbers of channels, and the list of these
    recordings.
    """
    listed = {}
    for number, (name, (rate, channels, text)) in enumerate(FLASH_VOICES.items()):
        path = f"data/{name}.wav"
        listed[name] = {"prompt_wav_path": path, "prompt_text": text}
        time = np.arange(round(FLASH_VOICE_S * rate)) / rate
        tone = np.sin(2 * np.pi * (150 + 40 * number) * time) * (0.6 + 0.3 * np.sin(9 * time))
        # Without noise, the features of empty bands would be logarithms of rounding errors.
        noise = np.random.default_rng(number).standard_normal(len(time))
        whole = (12_000 * tone + 1_500 * noise).astype("<i2")
        with wave.open(str(talker / path), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.repeat(whole[:, None], channels, 1).tobytes())
    _write_json(talker / VOICES_FILE, listed)


def _vocabulary(ids: dict[str, int]) -> int:
    return -(-(max(ids.values()) + 1) // ROUNDED_TO) * ROUNDED_TO


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _tensors(shape: MingShape, vocabulary: int, seed: int) -> dict[str, torch.Tensor]:
    """Return all tensors, under the names used by Ming-omni-tts."""
    tensors = _draw(
        language_model_shapes(shape, vocabulary) | head_shapes(shape) | vae_shapes(shape), seed
    )
    tensors["stop_head.bias"] += torch.tensor([0.0, STOP_LEAN])
    bias = tensors["audio.decoder.head.out.bias"]
    bias[: len(bias) // 2] += LOUDNESS
    window = torch.hann_window(2 * (len(bias) // 2 - 1))
    tensors["audio.decoder.head.istft.window"] = window
    return tensors


def _draw(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    tensors = RULES.draw_each(shapes, seed)
    for name, tensor in tensors.items():
        if name.endswith(".inv_freq"):
            powers = torch.arange(len(tensor)).float() / len(tensor)
            tensors[name] = 1.0 / ROTARY_BASE**powers
    return tensors


COMMAND = TinyCheckpointCommand(
    "Ming TTS", "antiphon_testkit.ming_tts.tiny_checkpoint", PRESETS, build_tiny_ming
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
