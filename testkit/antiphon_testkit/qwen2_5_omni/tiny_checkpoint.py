"""Writes a complete Qwen2.5-Omni checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.qwen2_5_omni.tiny_checkpoint DIR`. The checkpoint contains
every part of the released model, and its files have the layout that `save_pretrained` uses. You can
use it in place of the released one wherever the audio doesn't matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon_testkit.qwen2_5_omni.tiny_config import make_config
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory, save_model

SHAPE = TinyOmni25Shape()
VOICES_FILE = "spk_dict.pt"


def build_tiny_checkpoint(
    directory: Path,
    shape: TinyOmni25Shape = SHAPE,
    seed: int = 0,
    *,
    configure: Callable[[Any], None] | None = None,
) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. `configure` is called with the
    configuration before the model is created. Raises `FailedPrecondition` if the directory is not
    empty.
    """
    from transformers import Qwen2_5OmniForConditionalGeneration

    from antiphon_testkit.qwen2_5_omni.tiny_weights import fill_weights, write_voices

    make_directory(directory)
    vocabulary = TOKENIZER.write(directory)
    PREPROCESSOR.write(directory)
    model_class: Any = Qwen2_5OmniForConditionalGeneration
    config = make_config(shape, vocabulary)
    if configure is not None:
        configure(config)
    model = model_class(config)
    fill_weights(model, shape, vocabulary, seed)
    save_model(model, directory, vocabulary)
    write_voices(directory / VOICES_FILE, shape, vocabulary, seed)


COMMAND = TinyCheckpointCommand(
    "Qwen2.5-Omni",
    "antiphon_testkit.qwen2_5_omni.tiny_checkpoint",
    {"small": SHAPE},
    build_tiny_checkpoint,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
