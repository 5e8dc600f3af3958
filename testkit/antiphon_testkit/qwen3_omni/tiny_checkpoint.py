"""Writes a complete Qwen3-Omni-MoE checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.qwen3_omni.tiny_checkpoint DIR`. The checkpoint contains
every part of the released model, and its files have the layout that `save_pretrained` uses. You can
use it in place of the released one wherever the audio doesn't matter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon_testkit.qwen3_omni.tiny_config import VOICES, make_config
from antiphon_testkit.qwen3_omni.tiny_shape import OTHER, SMALL, TinyShape
from antiphon_testkit.qwen3_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory, save_model

__all__ = ["COMMAND", "OTHER", "SMALL", "VOICES", "TinyShape", "build_tiny_checkpoint"]

SPEAKING_FIELDS = (
    "talker_config",
    "code2wav_config",
    "tts_pad_token_id",
    "tts_bos_token_id",
    "tts_eos_token_id",
)
PRESETS = {"small": SMALL, "other": OTHER}


def build_tiny_checkpoint(
    directory: Path,
    shape: TinyShape = SMALL,
    seed: int = 0,
    *,
    added: Sequence[str] = (),
    edit: Callable[[Any, Mapping[str, int]], None] | None = None,
    configure: Callable[[Any], None] | None = None,
    entries: int = 0,
) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. `added` contains additional tokens for the
    tokenizer, and `entries` is the minimum number of entries in its BPE. `configure` is called with
    the configuration before the model is created, and `edit` is called with the model and the ID of
    each token. Raises `FailedPrecondition` if the directory is not empty.
    """
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from antiphon_testkit.qwen3_omni.tiny_weights import fill_weights

    make_directory(directory)
    vocabulary = TOKENIZER.write(directory, added, entries=entries)
    PREPROCESSOR.write(directory)
    config = make_config(shape, vocabulary)
    if configure is not None:
        configure(config)
    model = Qwen3OmniMoeForConditionalGeneration(config)
    fill_weights(model, shape, vocabulary.spoken(raw_bytes=shape.raw_bytes), seed)
    if edit is not None:
        with torch.no_grad():
            edit(model, vocabulary.ids)
    save_model(model, directory, vocabulary)
    if not shape.speaks:
        leave_thinker(directory)


def leave_thinker(directory: Path) -> None:
    """Remove the talker and code2wav, including their configurations and IDs.

    The Thinking and Captioner models are released in this form.
    """
    from safetensors.torch import load_file, save_file

    index = directory / "model.safetensors.index.json"
    files: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    kept = {name: file for name, file in files.items() if name.startswith("thinker.")}
    for file in set(files.values()):
        tensors = {name: each for name, each in load_file(directory / file).items() if name in kept}
        (directory / file).unlink()
        if tensors:
            save_file(tensors, directory / file, metadata={"format": "pt"})
    index.write_text(json.dumps({"weight_map": kept}))
    path = directory / "config.json"
    config = json.loads(path.read_bytes()) | {"enable_audio_output": False}
    for name in SPEAKING_FIELDS:
        config.pop(name, None)
    path.write_text(json.dumps(config))


COMMAND = TinyCheckpointCommand(
    "Qwen3-Omni-MoE",
    "antiphon_testkit.qwen3_omni.tiny_checkpoint",
    PRESETS,
    build_tiny_checkpoint,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
