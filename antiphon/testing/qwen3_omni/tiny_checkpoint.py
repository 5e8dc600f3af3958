"""Writes a complete Qwen3-Omni-MoE checkpoint of a few megabytes with random weights.

Use `python -m antiphon.testing.qwen3_omni.tiny_checkpoint DIR`. Every part of the released model
is there and the files are laid out as `save_pretrained` lays them out, so it stands
in for the released one wherever no one listens to the result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.testing.qwen3_omni.tiny_config import VOICES, make_config
from antiphon.testing.qwen3_omni.tiny_shape import OTHER, SMALL, TinyShape
from antiphon.testing.qwen3_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from antiphon.testing.tiny_checkpoint import TinyCheckpointCommand, make_directory, save_model

__all__ = ["COMMAND", "OTHER", "SMALL", "VOICES", "TinyShape", "build_tiny_checkpoint"]

PRESETS = {"small": SMALL, "other": OTHER}


def build_tiny_checkpoint(directory: Path, shape: TinyShape = SMALL, seed: int = 0) -> None:
    """Write a checkpoint into `directory`, which is made if it is missing.

    The same shape and seed give the same weights. Raises `FailedPrecondition` if the
    directory holds something already.
    """
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from antiphon.testing.qwen3_omni.tiny_weights import fill_weights

    make_directory(directory)
    vocabulary = TOKENIZER.write(directory)
    PREPROCESSOR.write(directory)
    model = Qwen3OmniMoeForConditionalGeneration(make_config(shape, vocabulary))
    fill_weights(model, shape, vocabulary.spoken(raw_bytes=shape.raw_bytes), seed)
    save_model(model, directory, vocabulary)


COMMAND = TinyCheckpointCommand(
    "Qwen3-Omni-MoE",
    "antiphon.testing.qwen3_omni.tiny_checkpoint",
    PRESETS,
    build_tiny_checkpoint,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
