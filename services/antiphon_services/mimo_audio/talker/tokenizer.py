"""The text tokenizer and the special tokens for speech. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer, text_ids, untruncated

SPEECH_MARKS = (
    "<|sosp|>",
    "<|eosp|>",
    "<|empty|>",
    "<|Human|>",
    "<|SpeechLM|>",
    "<|sostm|>",
    "<|eostm|>",
    "<|eot|>",
)
"""If the tokenizer's files lack some of these tokens, the vendor's code adds them in this order."""


@dataclass(frozen=True, slots=True)
class MarkIds:
    """The IDs of special tokens.

    A recording is enclosed in `clip_start` and `clip_end`. The speech of an answer is enclosed in
    `speech_start` and `speech_end`, and its text ends with `text_end`. `group` stands for a group
    of frames. Each of the tokens in `ends` ends an answer.
    """

    clip_start: int
    clip_end: int
    group: int
    speech_start: int
    speech_end: int
    text_end: int
    ends: frozenset[int]


class PromptTokenizer:
    """Tokenizes the texts of messages and of the prompt layout.

    Raises `FailedPrecondition` if a token ID is not below `vocabulary`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.text = LiteralTokenizer(tokenizer)
        self._layout: Tokenizer = untruncated(tokenizer)
        known = tokenizer.get_vocab()
        for mark in SPEECH_MARKS:
            known.setdefault(mark, len(known))
        if max(known.values()) >= vocabulary:
            raise FailedPrecondition(
                f"the tokenizer has {max(known.values()) + 1} IDs, but the model {vocabulary}; "
                f"{REMEDY}"
            )
        clip_start, clip_end, group, _, _, speech_start, speech_end, text_end = (
            known[mark] for mark in SPEECH_MARKS
        )
        ends = {tokenizer.eos_token_id, known.get("<|im_end|>")}
        self.ids = MarkIds(
            clip_start,
            clip_end,
            group,
            speech_start,
            speech_end,
            text_end,
            frozenset(each for each in ends if isinstance(each, int)),
        )

    @classmethod
    def load(
        cls, model_dir: Path, vocabulary: int
    ) -> tuple[PromptTokenizer, PreTrainedTokenizerBase]:
        """Load the tokenizer of a checkpoint. Returns it together with the Hugging Face tokenizer.

        Raises `FailedPrecondition` if it cannot be loaded.
        """
        tokenizer = load_tokenizer(model_dir, registered="Qwen2Tokenizer")
        return cls(tokenizer, vocabulary), tokenizer

    def layout(self, text: str) -> list[int]:
        """Tokenize a text of the prompt layout, which may contain control tokens."""
        return text_ids(self._layout, text)

    def literal(self, text: str, field: str) -> list[int]:
        """Tokenize a text from a user. The result never contains control tokens.

        Raises `InvalidArgument`, with the name of the field, if the text is invalid.
        """
        return self.text.encode(text, field=field)
