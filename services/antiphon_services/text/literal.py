"""Loads a checkpoint's tokenizer and tokenizes untrusted text without control tokens.

The tokenizer starts by splitting a text at added tokens, so the text between two added tokens has
the same IDs if it is tokenized separately. If control tokens are disabled, text that contains the
spelling of one is tokenized as a sequence of ordinary characters.

Control tokens are the special tokens, and also tokens such as `<tool_call>`, `</tool_response>` and
`<think>`. Qwen's tokenizers don't declare the latter as special, so that decoding keeps them.
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
"""The maximum factor by which normalization can shorten a text. With Hangul, for example, 9 bytes
can become 3.
"""


_TAG = re.compile(r"</?[^<>\s]+>")
"""Matches control tokens that were added as non-special tokens."""


# Each text is tokenized by a single thread. A thread pool for batches wouldn't survive a fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class LiteralTokenizer:
    """Tokenizes text as a sequence of ordinary characters. `control` contains the IDs of control
    tokens.

    If `tags` is false, only special tokens are control tokens. This is useful for a model that
    reads text aloud, because tags have no meaning for it. An ID represents at most `bytes_per_id`
    bytes. `written` contains the added tokens that a text can spell. This class is thread-safe.
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
        # Only the tokens that this tokenizer treats as special are disabled.
        self._literal.add_special_tokens(
            [
                AddedToken(each.content, special=True, normalized=each.normalized)
                for each in found.values()
                if not each.special
            ]
        )
        self.bytes_per_id = _bytes_per_id(tokenizer)

    def encode(self, text: str, *, field: str) -> list[int]:
        """Return the IDs of a text, which never include a control token.

        Raises `InvalidArgument` with the field if the tokenizer produces one anyway.
        """
        ids = text_ids(self._literal, text)
        if not set(ids).isdisjoint(self.control.values()):
            raise InvalidArgument(f"{field}: contains the text of a control token", field=field)
        return ids


def load_tokenizer(
    model_dir: Path, *, registered: str = "", generic: bool = False
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint directory. Only local files are used.

    `registered` is the class that transformers registers for the family. If the checkpoint
    specifies this class, it is used directly, with the same result as `AutoTokenizer`. If `generic`
    is true, the checkpoint's own class is ignored, because it is Python code that a stage doesn't
    run. In this case, there must be a `tokenizer.json`. Raises `FailedPrecondition` if the
    vocabulary is missing, because transformers would otherwise create an empty one.
    """
    path = model_dir / TOKENIZER_FILE
    if not path.is_file():
        if generic or not all((model_dir / name).is_file() for name in OLD_FILES):
            raise FailedPrecondition(
                f"{model_dir}: {TOKENIZER_FILE} is missing (or {' and '.join(OLD_FILES)}); {REMEDY}"
            )
        path = model_dir / OLD_FILES[0]
    for name in (TOKENIZER_FILE, SETTINGS_FILE):
        if (model_dir / name).exists():
            read_json(model_dir / name)
    with reading(path):
        chosen: Any = transformers.PreTrainedTokenizerFast
        if not generic:
            chosen = _tokenizer_class(model_dir, registered)
        tokenizer: PreTrainedTokenizerBase = chosen.from_pretrained(
            model_dir, local_files_only=True
        )
    return tokenizer


def _tokenizer_class(model_dir: Path, registered: str) -> Any:
    """Return the tokenizer's class, or `AutoTokenizer` if nothing else can determine it.

    Importing `AutoTokenizer` imports transformers' modelling code, which stages avoid for the
    reason given in `antiphon_services.lm.modules`.
    """
    path = model_dir / SETTINGS_FILE
    settings = read_json(path) if registered and path.exists() else {}
    named = settings.get("tokenizer_class")
    known = isinstance(named, str) and registered in (named, named.removesuffix("Fast"))
    if known and "auto_map" not in settings:
        return getattr(transformers, registered)
    return transformers.AutoTokenizer


def untruncated(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return Hugging Face's backend tokenizer with truncation disabled. It is thread-safe."""
    backend: Tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    return backend


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the IDs of a text, without holding the GIL during the computation.

    `Tokenizer.encode` holds the GIL, so a long text would block all other threads of the stage for
    seconds. The fast method for batches releases the GIL and computes the same IDs, but without
    offsets.
    """
    (encoding,) = tokenizer.encode_batch_fast([text])
    ids: list[int] = encoding.ids
    return ids


def _bytes_per_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the maximum number of bytes of text that one ID can represent.

    A byte-level vocabulary uses one character for each byte.
    """
    longest = max(map(len, tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)))
    added = (len(t.content.encode()) for t in tokenizer.added_tokens_decoder.values())
    normalizer = tokenizer.backend_tokenizer.normalizer
    return max(longest, *added) * (MOST_COMPOSED if normalizer is not None else 1)
