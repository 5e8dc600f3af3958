"""The tokenizer files of a tiny Qwen3-TTS checkpoint, which are those of a slow `Qwen2Tokenizer`.

As in a released checkpoint, there is no `tokenizer.json`, so any release of transformers creates
the fast tokenizer from the vocabulary and merges.
"""

from __future__ import annotations

from pathlib import Path

from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer

# Some of the released tokens, in the released order.
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
    """Write the files, and return the ID of each token."""
    return write_slow_tokenizer(directory, SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
