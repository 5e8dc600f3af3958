"""The talker's special IDs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY
from antiphon.pipelines.qwen2_5_omni import code_entries


@dataclass(frozen=True, slots=True)
class TalkerIds:
    """The special IDs for speech. The first two are thinker IDs, and all others are talker IDs.

    `code_entries` is the number of codes for which token2wav has a row.
    """

    text_end: int
    text_pad: int
    codec_pad: int
    codec_bos: int
    codec_end: int
    codec_mask: int
    code_entries: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TalkerIds:
        """Read the IDs from a checkpoint's `config.json`. Raises `FailedPrecondition` if any of
        them is missing.
        """
        try:
            talker = config["talker_config"]
            return cls(
                text_end=talker["tts_text_end_token_id"],
                text_pad=talker["tts_text_pad_token_id"],
                codec_pad=talker["tts_codec_pad_token_id"],
                codec_bos=talker["tts_codec_start_token_id"],
                codec_end=talker["tts_codec_end_token_id"],
                codec_mask=talker["tts_codec_mask_token_id"],
                code_entries=code_entries(config),
            )
        except KeyError as missing:
            raise FailedPrecondition(
                f"{CONFIG_FILE}: {missing.args[0]} is missing; {REMEDY}"
            ) from None
