"""Combines the trained parts to a checkpoint in the format of `save_pretrained`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import INDEX_FILE
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe.model import make_configuration

MAX_SHARD_BYTES = 6_000_000
LARGEST_BYTES = 25_000_000
THINKER, TOWER = "thinker.", "thinker.audio_tower."
STORED_DTYPE = torch.bfloat16

# The settings that the parts were trained for, as keyword arguments of Hugging Face's `generate`.
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
    """Add the weights, `config.json` and `generation_config.json` to a tokenizer's directory.

    The keys of `parts` are "thinker", "talker" and "code2wav". Returns the size of the directory in
    bytes. Raises `FailedPrecondition` if it exceeds 25 MB.
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
    model.save_pretrained(directory)
    (whole,) = directory.glob("*.safetensors")
    weights = load_file(whole)
    whole.unlink()
    _write_shards(directory, weights)
    size = sum(each.stat().st_size for each in directory.iterdir())
    if size > LARGEST_BYTES:
        raise FailedPrecondition(f"{directory}: is {size} bytes, more than {LARGEST_BYTES}")
    return size


def _write_shards(directory: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write the weights of the speech modules, of the audio tower and of the thinker to separate
    files.

    This way, files only change if the corresponding part has been trained again.
    """
    shards: list[dict[str, torch.Tensor]] = []
    for hears, thinks in ((False, False), (True, True), (False, True)):
        size = MAX_SHARD_BYTES
        for name, tensor in sorted(weights.items()):
            if (name.startswith(TOWER), name.startswith(THINKER)) != (hears, thinks):
                continue
            size += tensor.nbytes
            if size > MAX_SHARD_BYTES:
                shards.append({})
                size = tensor.nbytes
            shards[-1][name] = tensor.contiguous()
    names = [f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, directory / name, {"format": "pt"})
        (directory / name).chmod(0o644)
    where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def load_part(module: torch.nn.Module, part: str, checkpoint: Path) -> None:
    """Load a part from a checkpoint, except for an audio tower with different sizes.

    Raises `FailedPrecondition` if the part has different shapes in the checkpoint.
    """
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32
    )
    own, stored = module.state_dict(), getattr(model, part).state_dict()
    fitting = {n: t for n, t in stored.items() if n in own and own[n].shape == t.shape}
    if any(not f"{part}.{name}".startswith(TOWER) for name in own.keys() - fitting.keys()):
        raise FailedPrecondition(f"{checkpoint}: its {part} is not of this recipe")
    module.load_state_dict(fitting, strict=False)


def averages(state: Path) -> dict[str, torch.Tensor]:
    """Return the averaged weights in the state file of a training run."""
    stored = load_file(state)
    return {
        name.removeprefix("average."): tensor
        for name, tensor in stored.items()
        if name.startswith("average.")
    }
