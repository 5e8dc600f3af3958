"""The text tokenizer, and the ids of the marks of speech. No torch here."""

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
"""The vendor's code adds those that the tokenizer's files lack, in this order."""


@dataclass(frozen=True, slots=True)
class MarkIds:
    """Ids of marks. A recording stands between `clip_start` and `clip_end`, an answer's speech
    between `speech_start` and `speech_end`; its text ends with `text_end`. `group` stands for a
    group of frames, `ends` end every answer."""

    clip_start: int
    clip_end: int
    group: int
    speech_start: int
    speech_end: int
    text_end: int
    ends: frozenset[int]


class PromptTokenizer:
    """Encodes the texts of messages and of the prompt's layout.

    Raises `FailedPrecondition` if an id is not below `vocabulary`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.text = LiteralTokenizer(tokenizer)
        self._layout: Tokenizer = untruncated(tokenizer)
        known = tokenizer.get_vocab()
        for mark in SPEECH_MARKS:
            known.setdefault(mark, len(known))
        if max(known.values()) >= vocabulary:
            raise FailedPrecondition(
                f"the tokenizer has {max(known.values()) + 1} ids, the model {vocabulary}; {REMEDY}"
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
        """The tokenizer of a checkpoint, and Hugging Face's. Raises `FailedPrecondition`."""
        tokenizer = load_tokenizer(model_dir)
        return cls(tokenizer, vocabulary), tokenizer

    def layout(self, text: str) -> list[int]:
        """Ids of a text of the prompt's layout, which may spell control tokens."""
        return text_ids(self._layout, text)

    def literal(self, text: str, field: str) -> list[int]:
        """Ids of a text that people gave: none of them is a control token's.

        Raises `InvalidArgument` that names the field.
        """
        return self.text.encode(text, field=field)
