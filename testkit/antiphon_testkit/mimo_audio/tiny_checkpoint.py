"""Writes a complete MiMo-Audio checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.mimo_audio.tiny_checkpoint DIR`. This writes both released
directories, `LANGUAGE_MODEL` and `AUDIO_TOKENIZER`, to DIR. Files, fields and tensors have the same
names as in the released ones, so that the vendor's code can load them. The vendor's code is not
required to write them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon_testkit.mimo_audio.tensor_shapes import codec_shapes, model_shapes
from antiphon_testkit.mimo_audio.tiny_config import (
    FFT,
    SPECIAL_TOKENS,
    SPEECH_MARKS,
    codec_config,
    model_config,
)
from antiphon_testkit.mimo_audio.tiny_shape import MARKS, WIDTHS, MimoShape
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_config import padded_vocabulary
from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"marks": MARKS, "widths": WIDTHS}

LANGUAGE_MODEL = "MiMo-Audio-7B-Instruct"
AUDIO_TOKENIZER = "MiMo-Audio-Tokenizer"

EMPTY, END_OF_SPEECH = "<|empty|>", "<|eostm|>"
SPOKEN_IDS = (32, *range(97, 123))
"""The bytes for a space and for lowercase letters, which are used for the text of replies."""
EMPTY_GAIN, END_GAIN = 4.0, 1.1
UPSAMPLING = (".dconv1.conv.weight", ".dconv2.conv.weight")
SHRINKING = 0.8
"""The factor by which entries shrink from one codebook to the next, because residuals become
smaller.
"""

MODEL_RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4),),
    normal=(
        (r"\.bias$", 0.1),
        (r"embed_tokens\.weight$|speech_embeddings\.\d+\.weight$", 1.0),
    ),
    gains=((r"lm_head", 3.0), (r"(q|k)_proj\.weight$", 1.6), (r"", 1.2)),
)
CODEC_RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4), (r"cluster_size$", 1.0, 9.0)),
    normal=((r"\.bias$", 0.1), (r"_codebook\.embed", 1.0)),
    gains=((r"(q|k)_proj\.weight$", 1.6), (r"", 1.2)),
)


def build_tiny_mimo(directory: Path, shape: MimoShape = MARKS, seed: int = 0) -> None:
    """Write both directories to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    _write_language_model(directory / LANGUAGE_MODEL, shape, seed)
    _write_audio_tokenizer(directory / AUDIO_TOKENIZER, shape, seed)


def build_nested_tiny_mimo(directory: Path, shape: MimoShape = MARKS, seed: int = 0) -> None:
    """Write the language model to `directory`, with the audio tokenizer in a subdirectory.

    Raises `FailedPrecondition` if the directory is not empty.
    """
    make_directory(directory)
    directory.rmdir()
    _write_language_model(directory, shape, seed)
    _write_audio_tokenizer(directory / AUDIO_TOKENIZER, shape, seed)


def _write_language_model(folder: Path, shape: MimoShape, seed: int) -> None:
    folder.mkdir()
    special = (*SPECIAL_TOKENS, *(SPEECH_MARKS if shape.marks else ()))
    ids = write_slow_tokenizer(folder, special, PLAIN_ADDED_TOKENS)
    for mark in SPEECH_MARKS:
        ids.setdefault(mark, len(ids))
    vocabulary = padded_vocabulary(len(ids))
    _write_config(folder, model_config(shape, vocabulary, ids["<|im_end|>"]))
    tensors = MODEL_RULES.draw_each(model_shapes(shape, vocabulary), seed)
    _shape_replies(tensors["lm_head.weight"], ids)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _write_audio_tokenizer(folder: Path, shape: MimoShape, seed: int) -> None:
    folder.mkdir()
    _write_config(folder, codec_config(shape))
    shapes = codec_shapes(shape)
    strides = {name: 2 for name in shapes if name.endswith(UPSAMPLING)}
    tensors = CODEC_RULES.draw_each(shapes, seed, strides)
    tensors["decoder.vocoder.head.istft.window"] = torch.hann_window(FFT)
    for name, tensor in tensors.items():
        if name.endswith(".inited"):
            tensor.fill_(1.0)
        elif "_codebook.embed" in name:
            tensor *= SHRINKING ** int(name.split(".")[4])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _shape_replies(head: torch.Tensor, ids: dict[str, int]) -> None:
    """Change the head so that replies consist of text and speech, and end by themselves."""
    kept = [*SPOKEN_IDS, ids[EMPTY], ids[END_OF_SPEECH], ids["<|im_end|>"], ids["<|eot|>"]]
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[kept] = False
    head[silent] = 0.0
    head[ids[EMPTY]] *= EMPTY_GAIN
    for end in (END_OF_SPEECH, "<|im_end|>"):
        head[ids[end]] *= END_GAIN


COMMAND = TinyCheckpointCommand(
    "MiMo-Audio", "antiphon_testkit.mimo_audio.tiny_checkpoint", PRESETS, build_tiny_mimo
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
