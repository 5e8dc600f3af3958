"""The tokenizer files of a tiny Qwen3-TTS checkpoint: those of a slow `Qwen2Tokenizer`.

As in a released checkpoint there is no `tokenizer.json`, so that any release of transformers
makes the fast tokenizer from vocabulary and merges.
"""

from __future__ import annotations

import json
from pathlib import Path

from antiphon.testing.tiny_tokenizer import PLAIN_ADDED_TOKENS, tiny_vocabulary

# Some of the released ones, in their order.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)


def write_tokenizer(directory: Path) -> dict[str, int]:
    """Write the files; return the ids by token."""
    ids, merges = tiny_vocabulary()
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False) + "\n")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n")
    tokens = (*SPECIAL_TOKENS, *PLAIN_ADDED_TOKENS)
    added = {token: len(ids) + index for index, token in enumerate(tokens)}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in SPECIAL_TOKENS,
            }
            for token, index in added.items()
        },
        "additional_special_tokens": [each for each in SPECIAL_TOKENS if each != "<|endoftext|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return ids | added
