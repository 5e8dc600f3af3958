"""The special tokens for tasks and media, and the ranges of image tokens and speech units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.dynin_omni import IMAGE_ENTRIES, UNIT_ENTRIES
from antiphon.pipelines.files import REMEDY

RESERVED: Mapping[str, int] = {
    "<|soi|>": 126084,
    "<|eoi|>": 126085,
    "<|t2i|>": 126088,
    "<|mmu|>": 126089,
    "[iPAD]": 126093,
    "<|i2i|>": 126095,
    "<|s2t|>": 126096,
    "<|soa|>": 126097,
    "<|eoa|>": 126098,
    "<|t2s|>": 126099,
    "<|s2s|>": 126101,
}
"""The IDs that the vendor's code uses for these special tokens. LLaDA's tokenizer does not contain
their names.
"""

HEADER_START, HEADER_END, TURN_END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"


@dataclass(frozen=True, slots=True)
class TaskTokens:
    """Token IDs. The fields use the vendor's names. For example, `t2i` stands for text-to-image.

    If the tokenizer contains a special token under its name, that ID is used instead of the
    reserved one. The vendor's training code does the same for tokenizers other than LLaDA's.
    """

    soi: int
    eoi: int
    t2i: int
    mmu: int
    ipad: int
    i2i: int
    s2t: int
    soa: int
    eoa: int
    t2s: int
    s2s: int
    text_start: int
    text_end: int
    header_start: int
    header_end: int
    turn_end: int
    mask: int
    first_image: int
    first_unit: int

    @classmethod
    def read(
        cls, file: Path, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, rows: int
    ) -> TaskTokens:
        """Read the token IDs of a checkpoint whose embedding table has `rows` rows.

        `config` is the content of `file`. Raises `FailedPrecondition` if the configuration and the
        tokenizer do not match.
        """
        ids, size = tokenizer.get_vocab(), len(tokenizer)
        marks = {name: ids.get(name, number) for name, number in RESERVED.items()}
        found: dict[str, Any] = {
            "bos_token": tokenizer.bos_token_id,
            "eos_token": tokenizer.eos_token_id,
            HEADER_START: ids.get(HEADER_START),
            HEADER_END: ids.get(HEADER_END),
            TURN_END: ids.get(TURN_END),
        }
        if missing := [name for name, number in found.items() if number is None]:
            raise FailedPrecondition(f"{file.parent}: the tokenizer has no {missing[0]}; {REMEDY}")
        if beyond := [name for name, number in marks.items() if number >= size]:
            raise FailedPrecondition(
                f"{file.parent}: {beyond[0]} has the ID {marks[beyond[0]]}, but the tokenizer "
                f"has {size} IDs; {REMEDY}"
            )
        needed = size + IMAGE_ENTRIES + UNIT_ENTRIES
        mask = config.get("mask_token_id")
        if not isinstance(mask, int) or not 0 <= mask < size or needed > rows:
            raise FailedPrecondition(
                f"{file}: mask_token_id is {mask} and there are {rows} embeddings, but the "
                f"tokenizer has {size} IDs, which are followed by {IMAGE_ENTRIES} image tokens "
                f"and {UNIT_ENTRIES} speech units; {REMEDY}"
            )
        return cls(
            **{name.strip("<|>[]").lower(): number for name, number in marks.items()},
            text_start=found["bos_token"],
            text_end=found["eos_token"],
            header_start=found[HEADER_START],
            header_end=found[HEADER_END],
            turn_end=found[TURN_END],
            mask=mask,
            first_image=size,
            first_unit=size + IMAGE_ENTRIES,
        )
