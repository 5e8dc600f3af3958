"""Writes a complete Qwen2.5-Omni checkpoint of a few megabytes with random weights.

Every part of the released model is there and the files are laid out as `save_pretrained` lays
them out, so it stands in for the released one wherever no one listens to the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antiphon.errors import FailedPrecondition
from antiphon.testing.qwen2_5_omni.tiny_config import make_config
from antiphon.testing.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon.testing.qwen2_5_omni.tiny_tokenizer import TOKENIZER, write_preprocessor

SHAPE = TinyOmni25Shape()
MAX_SHARD_BYTES = 500_000
VOICES_FILE = "spk_dict.pt"


def build_tiny_checkpoint(directory: Path, shape: TinyOmni25Shape = SHAPE, seed: int = 0) -> None:
    """Write a checkpoint into `directory`, which is made if it is missing.

    The same shape and seed give the same weights. Raises `FailedPrecondition` if the
    directory holds something already.
    """
    from transformers import GenerationConfig, Qwen2_5OmniForConditionalGeneration

    from antiphon.testing.qwen2_5_omni.tiny_weights import fill_weights, write_voices

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FailedPrecondition(f"{directory}: is not an empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = TOKENIZER.write(directory)
    write_preprocessor(directory)
    model_class: Any = Qwen2_5OmniForConditionalGeneration
    model = model_class(make_config(shape, vocabulary))
    fill_weights(model, shape, vocabulary, seed)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=vocabulary.ids["<|im_end|>"], pad_token_id=vocabulary.ids["<|endoftext|>"]
    )
    model.save_pretrained(directory, max_shard_size=MAX_SHARD_BYTES)
    write_voices(directory / VOICES_FILE, shape, vocabulary, seed)
