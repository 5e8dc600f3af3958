"""Puts the trained parts together as `save_pretrained` writes a released checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from antiphon.errors import FailedPrecondition
from antiphon.testing.tiny_tokenizer import TinyVocabulary
from tools.speaking_checkpoint.model import make_configuration

MAX_SHARD_BYTES = 6_000_000
LARGEST_BYTES = 20_000_000
STORED_DTYPE = torch.bfloat16

# How the parts were trained to speak; Hugging Face's `generate` takes these by keyword.
SETTINGS: dict[str, Any] = {
    "do_sample": False,
    "thinker_temperature": 0.0,
    "thinker_max_new_tokens": 128,
    "talker_temperature": 0.0,
    "talker_repetition_penalty": 1.05,
    "talker_max_new_tokens": 1024,
}


def write_checkpoint(
    directory: Path, vocabulary: TinyVocabulary, parts: dict[str, torch.nn.Module]
) -> int:
    """Add weights, `config.json` and `generation_config.json` to a tokenizer's directory.

    `parts` are "thinker", "talker" and "code2wav". Returns the directory's size in
    bytes; raises `FailedPrecondition` if that is above 20 MB.
    """
    from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration

    config = make_configuration(vocabulary)
    config.dtype = "bfloat16"
    model: Any = Qwen3OmniMoeForConditionalGeneration(config)
    for name, part in parts.items():
        getattr(model, name).load_state_dict(part.state_dict())
    model.to(STORED_DTYPE)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=vocabulary.ids["<|im_end|>"],
        pad_token_id=vocabulary.ids["<|endoftext|>"],
        **SETTINGS,
    )
    model.save_pretrained(directory, max_shard_size=MAX_SHARD_BYTES)
    for shard in directory.glob("*.safetensors"):
        shard.chmod(0o644)
    size = sum(each.stat().st_size for each in directory.iterdir())
    if size > LARGEST_BYTES:
        raise FailedPrecondition(f"{directory}: is {size} bytes, more than {LARGEST_BYTES}")
    return size


def averages(state: Path) -> dict[str, torch.Tensor]:
    """The averaged weights in a training's state file."""
    stored = load_file(state)
    return {
        name.removeprefix("average."): tensor
        for name, tensor in stored.items()
        if name.startswith("average.")
    }
