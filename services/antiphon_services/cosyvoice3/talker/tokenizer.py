"""Loads the tokenizer of the checkpoint and adds the tokens that the vendor's code adds."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY
from antiphon_services.cosyvoice3.talker.added_tokens import ADDED_TOKENS
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer

END_OF_PROMPT = "<|endofprompt|>"


def load_speech_tokenizer(folder: Path, entries: int) -> LiteralTokenizer:
    """Load the tokenizer in `folder`. Its token IDs must be below `entries`.

    Tokens such as `[breath]` and `<strong>` can be written in a text. Tokens that are enclosed in
    `<|` and `|>` are control tokens, which cannot be part of a text. Raises `FailedPrecondition` if
    the tokenizer cannot be loaded.
    """
    tokenizer = load_tokenizer(folder, registered="Qwen2Tokenizer")
    tokenizer.add_tokens(
        [AddedToken(each, special=each.startswith("<|"), normalized=False) for each in ADDED_TOKENS]
    )
    if len(tokenizer) > entries:
        raise FailedPrecondition(
            f"{folder}: the tokenizer has {len(tokenizer)} IDs including added tokens, but the "
            f"embedding table has {entries} rows; {REMEDY}"
        )
    return LiteralTokenizer(tokenizer, tags=False)
