"""A checkpoint's tokenizer, and tokenization of untrusted text without control tokens.

The tokenizer splits a text at added tokens first. So text between two of them has the same ids as
in the whole when it is tokenized separately. With control tokens disabled, text that spells one is
tokenized as its characters.

Control tokens are the special ones, and those that Qwen's tokenizers add as not special so that
decoding keeps them: `<tool_call>`, `</tool_response>`, `<think>`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import REMEDY, read_json, reading

TOKENIZER_FILE, OLD_FILES = "tokenizer.json", ("vocab.json", "merges.txt")
SETTINGS_FILE = "tokenizer_config.json"

MOST_COMPOSED = 3
"""Largest factor by which normalization shortens text: Hangul composes 9 bytes to 3."""


_TAG = re.compile(r"</?[^<>\s]+>")
"""Pattern of control tokens among added tokens that are not special."""


# Each text is tokenized by one thread; a thread pool for batches would not survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class LiteralTokenizer:
    """Tokenizes text as characters; `control` are the ids of control tokens.

    Without `tags` only special tokens are control tokens: for a model that reads text aloud, tags
    have no meaning. Thread-safe. No id stands for more than `bytes_per_id` bytes. `written` are the
    added tokens that a text can spell.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tags: bool = True) -> None:
        self._literal = untruncated(tokenizer)
        self._literal.encode_special_tokens = True
        found = {
            id_: token
            for id_, token in tokenizer.added_tokens_decoder.items()
            if token.special or (tags and _TAG.fullmatch(token.content))
        }
        self.control: Mapping[str, int] = {each.content: id_ for id_, each in found.items()}
        self.written = tuple(
            each.content for id_, each in tokenizer.added_tokens_decoder.items() if id_ not in found
        )
        # Only tokens that this tokenizer treats as special are disabled.
        self._literal.add_special_tokens(
            [
                AddedToken(each.content, special=True, normalized=each.normalized)
                for each in found.values()
                if not each.special
            ]
        )
        self.bytes_per_id = _bytes_per_id(tokenizer)

    def encode(self, text: str, *, field: str) -> list[int]:
        """Return ids of a text without control tokens.

        Raises `InvalidArgument` with the field if the tokenizer yields one nevertheless.
        """
        ids = text_ids(self._literal, text)
        if not set(ids).isdisjoint(self.control.values()):
            raise InvalidArgument(f"{field}: a text spells a control token", field=field)
        return ids


def load_tokenizer(model_dir: Path, *, registered: str = "") -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint directory, from local files only.

    `registered` is the class that transformers registers for the family. A checkpoint that names it
    is read with it, as `AutoTokenizer` would choose. Raises `FailedPrecondition` if the vocabulary
    is missing, for which transformers would create an empty one.
    """
    path = model_dir / TOKENIZER_FILE
    if not path.is_file():
        if not all((model_dir / name).is_file() for name in OLD_FILES):
            raise FailedPrecondition(
                f"{model_dir}: {TOKENIZER_FILE} is missing (or {' and '.join(OLD_FILES)}); {REMEDY}"
            )
        path = model_dir / OLD_FILES[0]
    for name in (TOKENIZER_FILE, SETTINGS_FILE):
        if (model_dir / name).exists():
            read_json(model_dir / name)
    with reading(path):
        chosen = _tokenizer_class(model_dir, registered)
        tokenizer: PreTrainedTokenizerBase = chosen.from_pretrained(
            model_dir, local_files_only=True
        )
    return tokenizer


def _tokenizer_class(model_dir: Path, registered: str) -> Any:
    """Return the tokenizer's class; `AutoTokenizer` if only that can determine it.

    Importing `AutoTokenizer` imports transformers' modelling code, which a stage avoids: see
    `antiphon_services.lm.modules`.
    """
    path = model_dir / SETTINGS_FILE
    settings = read_json(path) if registered and path.exists() else {}
    named = settings.get("tokenizer_class")
    known = isinstance(named, str) and named.removesuffix("Fast") == registered
    if known and "auto_map" not in settings:
        return getattr(transformers, registered)
    return transformers.AutoTokenizer


def untruncated(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return Hugging Face's backend tokenizer, which is thread-safe, without truncation."""
    backend: Tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    return backend


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return ids of a text, computed without holding the GIL.

    `Tokenizer.encode` holds the GIL, so one long text would block every other thread of the stage
    for seconds. The fast batch call releases it and computes the same ids without offsets.
    """
    (encoding,) = tokenizer.encode_batch_fast([text])
    ids: list[int] = encoding.ids
    return ids


def _bytes_per_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most bytes of text that one id can stand for.

    A byte-level vocabulary writes each byte as a character.
    """
    longest = max(map(len, tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)))
    added = (len(t.content.encode()) for t in tokenizer.added_tokens_decoder.values())
    normalizer = tokenizer.backend_tokenizer.normalizer
    return max(longest, *added) * (MOST_COMPOSED if normalizer is not None else 1)
