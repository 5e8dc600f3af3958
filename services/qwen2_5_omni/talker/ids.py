"""What the talker must agree on with its neighbours: edges, special ids, the default voice.

It needs the thinker's last hidden state, plus the embedding, at every position of prompt and
reply. So `prompt` carries a row for each position as prefill makes them, and `tokens` one for each
reply id but the last; a row follows its id by one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY

PROMPT, TOKENS, CODES = "prompt", "tokens", "codes"

DEFAULT_VOICE = "chelsie"
"""The voice when none is asked for, if the checkpoint has it; that of the reference's call."""


@dataclass(frozen=True, slots=True)
class TalkerIds:
    """Ids that shape speech: the first two are the thinker's, the rest the talker's.

    `code_entries` is how many codes token2wav has rows for.
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
        """Read the ids of a checkpoint's `config.json`. Raises `FailedPrecondition`."""
        try:
            talker = config["talker_config"]
            return cls(
                text_end=talker["tts_text_end_token_id"],
                text_pad=talker["tts_text_pad_token_id"],
                codec_pad=talker["tts_codec_pad_token_id"],
                codec_bos=talker["tts_codec_start_token_id"],
                codec_end=talker["tts_codec_end_token_id"],
                codec_mask=talker["tts_codec_mask_token_id"],
                # Its table has one row more than the configuration says.
                code_entries=config["token2wav_config"]["dit_config"]["num_embeds"] + 1,
            )
        except KeyError as missing:
            raise FailedPrecondition(
                f"{CONFIG_FILE}: {missing.args[0]} is missing; {REMEDY}"
            ) from None
