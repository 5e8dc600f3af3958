"""Writes a complete Dynin-Omni checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.dynin_omni.tiny_checkpoint DIR`. Files, fields and tensors
have the names that the vendor's code expects. The directories of both tokenizers are inside the
model's directory. There are as many IDs for image tokens and speech units as in the released model,
because the size of the tokenizers is fixed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphon_testkit.emova.tiny_speech_tokenizer import write_tiny_speech_tokenizer
from antiphon_testkit.magvit.tiny_image_tokenizer import write_tiny_image_tokenizer
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_llada import (
    AS_RELEASED,
    GROUPED,
    PREFIX,
    RULES,
    LladaShape,
    LladaVocabulary,
    llada_config,
    llada_shapes,
)
from antiphon_testkit.tiny_tokenizer import tiny_vocabulary

PRESETS = {"released": AS_RELEASED, "grouped": GROUPED}
SPEECH_TOKENIZER, IMAGE_TOKENIZER = "emova_speech_tokenizer_hf", "magvitv2"
IMAGE_IDS, SPEECH_IDS = 8192, 4096
IMAGE_SIDE = 6
"""The number of tokens along each side of the largest image."""

START, END, MASK = "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"
TURN_END = "<|eot_id|>"
TASK_MARKS = (
    "<|soi|>",
    "<|eoi|>",
    "<|t2i|>",
    "<|mmu|>",
    "[iPAD]",
    "<|i2i|>",
    "<|s2t|>",
    "<|soa|>",
    "<|eoa|>",
    "<|t2s|>",
    "<|s2s|>",
)
"""In the released model, these tokens have no name. The vendor's code knows their IDs."""
SPECIAL_TOKENS = (
    START,
    END,
    *TASK_MARKS,
    MASK,
    "<|start_header_id|>",
    "<|end_header_id|>",
    TURN_END,
)

TEXT_GAIN, SPOKEN_GAIN = 3.0, 1.6
"""The logits of text IDs have a larger spread than those of other IDs, so that text consists of
text IDs.
"""
END_GAINS = {TURN_END: 4.2, END: 3.6, "<|eoa|>": 2.7}
FIRST_WORD = 256
"""The ID of the first word. Smaller IDs are byte tokens."""


def build_tiny_dynin(directory: Path, shape: LladaShape = AS_RELEASED, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    ids = write_tokenizer(directory)
    vocabulary = LladaVocabulary(len(ids), IMAGE_IDS, SPEECH_IDS)
    config = llada_config(shape, vocabulary) | {
        "architectures": ["DyninOmniModelLM"],
        "mask_token_id": ids[MASK],
        "max_sequence_length": 2048,
        "num_vq_tokens": IMAGE_SIDE**2,
        "eos_token_id": ids[END],
        "pad_token_id": ids[END],
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = RULES.draw_each(llada_shapes(shape, vocabulary), seed)
    _shape_answers(tensors[f"{PREFIX}ff_out.weight"], ids)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    write_tiny_speech_tokenizer(directory / SPEECH_TOKENIZER, seed)
    write_tiny_image_tokenizer(directory / IMAGE_TOKENIZER, seed)


def write_tokenizer(directory: Path) -> dict[str, int]:
    """Write a byte-level tokenizer like LLaDA's to `tokenizer.json`, and return the ID of each
    token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    ids, merges = tiny_vocabulary()
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "bos_token": START,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "mask_token": MASK,
        "model_max_length": 131072,
        "pad_token": END,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(settings, indent=2) + "\n")
    return ids | {each: len(ids) + at for at, each in enumerate(SPECIAL_TOKENS)}


def _shape_answers(head: torch.Tensor, ids: dict[str, int]) -> None:
    """Change the head so that text consists of words, and both text and speech end by
    themselves.
    """
    size = len(ids)
    words = size - len(SPECIAL_TOKENS)
    head[:FIRST_WORD] = 0.0
    head[words:size] = 0.0
    head[FIRST_WORD:words] *= TEXT_GAIN
    head[size:] *= SPOKEN_GAIN
    generator = torch.Generator().manual_seed(size)
    for token, gain in END_GAINS.items():
        row = torch.randn(head.shape[1], generator=generator) * 3.0 / head.shape[1] ** 0.5
        head[ids[token]] = row * gain


COMMAND = TinyCheckpointCommand(
    "Dynin-Omni", "antiphon_testkit.dynin_omni.tiny_checkpoint", PRESETS, build_tiny_dynin
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
