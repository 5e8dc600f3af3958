"""Writes a complete Ming-flash-omni checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.ming_flash_omni.flash_checkpoint DIR`. Files, fields and
tensors have the same names as in the released checkpoint, so that the vendor's code can load it.
The folder `talker` is the same as in a tiny Ming TTS checkpoint. The image generator is not
included.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphon_testkit.ming_flash_omni.flash_config import (
    SPECIAL_TOKENS,
    flash_omni_config,
    preprocessor_config,
)
from antiphon_testkit.ming_flash_omni.flash_shape import RELEASED, WIDE, FlashShape
from antiphon_testkit.ming_flash_omni.flash_tensors import POSITIONAL_EMBEDDING, thinker_shapes
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand
from antiphon_testkit.tiny_tokenizer import write_tokenizer_json
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"released": RELEASED, "wide": WIDE}

ROUNDED_TO = 64
SHARDS = 2

SPOKEN_IDS = (32, *range(97, 123))
"""The bytes for a space and for lowercase letters, which are used for replies."""
PERIOD_ID = 46
END_GAIN, PERIOD_GAIN = 1.1, 1.2
LONGEST_WAVE = 10_000.0

RULES = WeightRules(
    uniform=((r"(norm|ln)\w*\.weight$", 0.6, 1.4), (r"\.norm\.weight$|norm\d\.weight$", 0.6, 1.4)),
    normal=(
        # The bias decides between experts whose scores are close.
        (r"expert_bias$", 0.15),
        (r"\.bias$", 0.1),
        (r"word_embeddings\.weight$", 1.0),
        (r"pos_embed\.weight$", 0.5),
    ),
    gains=((r"lm_head", 3.0), (r"gate\.weight$", 1.5), (r"query_key_value", 1.4), (r"", 1.2)),
)


def build_tiny_flash(directory: Path, shape: FlashShape = RELEASED, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    build_tiny_ming(directory, FLASH, seed)
    ids = write_tokenizer_json(
        directory,
        SPECIAL_TOKENS,
        {
            "add_bos_token": False,
            "add_eos_token": False,
            "auto_map": {"AutoTokenizer": ["tokenization_bailing.BailingTokenizer", None]},
            "bos_token": "<|startoftext|>",
            "cls_token": "[CLS]",
            "eos_token": "<|role_end|>",
            "gmask_token": "[gMASK]",
            "pad_token": "<|role_end|>",
            "tokenizer_class": "BailingTokenizer",
        },
    )
    vocabulary = -(-(max(ids.values()) + 1) // ROUNDED_TO) * ROUNDED_TO
    _write_json(directory / "config.json", flash_omni_config(shape, ids, vocabulary))
    _write_json(directory / "preprocessor_config.json", preprocessor_config())
    tensors = RULES.draw_each(thinker_shapes(shape, vocabulary), seed)
    positions = tensors[POSITIONAL_EMBEDDING]
    tensors[POSITIONAL_EMBEDDING] = sinusoids(*positions.shape)
    _shape_replies(tensors["model.lm_head.weight"], ids)
    _write_shards(directory, tensors)


def sinusoids(positions: int, width: int) -> torch.Tensor:
    """Return Whisper's position embeddings [positions, width]."""
    half = width // 2
    rates = LONGEST_WAVE ** -(torch.arange(half) / (half - 1))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def _shape_replies(head: torch.Tensor, ids: dict[str, int]) -> None:
    """Change the head so that replies consist of letters and sentences, and end by themselves."""
    end = ids["<|role_end|>"]
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[[*SPOKEN_IDS, PERIOD_ID, end]] = False
    head[silent] = 0.0
    head[PERIOD_ID] *= PERIOD_GAIN
    head[end] *= END_GAIN


def _write_shards(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    listed: dict[str, str] = {}
    names = sorted(tensors)
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        content = {name: tensors[name] for name in names[number::SHARDS]}
        save_file(content, directory / file, {"format": "pt"})
        listed |= dict.fromkeys(content, file)
    size = sum(each.numel() * each.element_size() for each in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": listed}
    _write_json(directory / "model.safetensors.index.json", index)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


COMMAND = TinyCheckpointCommand(
    "Ming-flash-omni",
    "antiphon_testkit.ming_flash_omni.flash_checkpoint",
    PRESETS,
    build_tiny_flash,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
