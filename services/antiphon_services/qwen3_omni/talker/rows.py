"""Computes the talker's input rows from IDs, hidden rows and codes.

A text row is `text_projection(thinker embedding)`, which depends only on the ID, so the table is
projected once when the stage is loaded. This mirrors `_get_talker_user_parts` and
`_get_talker_assistant_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY
from antiphon.pipelines.qwen3_omni import DEFAULT_VOICE
from antiphon.transport.device_edge import ToDevice, on_device
from antiphon_services.lm.tables import project_table
from antiphon_services.qwen3_omni.talker.prompt import HEADER_ROWS, TalkerPrompt


class RowTable:
    """The rows of a checkpoint. `talker` has the same interface as Hugging Face's talker.

    `embeddings` [V, thinker hidden] is the thinker's word table, which can have any dtype and be on
    any device. `to_device` copies the prompts' hidden rows to the device.
    """

    def __init__(self, talker: Any, embeddings: Tensor, to_device: ToDevice | None = None) -> None:
        config = talker.config
        self._project = talker.hidden_projection
        self._codes: Tensor = talker.model.codec_embedding.weight
        self._text = project_table(talker.text_projection, embeddings, like=self._codes)
        self._codec_side = {
            voice: self._codes[
                [
                    config.codec_nothink_id,
                    config.codec_think_bos_id,
                    config.codec_think_eos_id,
                    speaker,
                    config.codec_pad_id,
                    config.codec_bos_id,
                ]
            ]
            for voice, speaker in _voices(config).items()
        }
        # The codec side of the prompt's last row. It takes the place of a previous frame for the
        # first draw.
        self.begin: Tensor = self._codes[config.codec_bos_id]
        self.voices = tuple(self._codec_side)
        self._to_device = to_device or ToDevice.direct(self._text.device)
        self.vocabulary = len(self._text)
        self.hidden_row_width = int(config.thinker_hidden_size)

    def prompt(self, prompt: TalkerPrompt, start: int, stop: int, voice: str) -> Tensor:
        """Return the prompt rows from `start` to `stop` [n, hidden], which must be ready."""
        device = self._text.device
        rows = self._text[on_device(prompt.prompt_text(start, stop), device)]
        where, hidden = prompt.hidden_rows(start, stop)
        if hidden is not None:
            taken = self._to_device.copy(hidden).to(self._text.dtype)
            rows[on_device(where, device)] = self._project(taken)
        first = prompt.user_rows + HEADER_ROWS
        if stop > first:
            begin = max(start, first)
            rows[begin - start :] += self._codec_side[voice][begin - first : stop - first]
        return rows

    def text(self, tokens: Tensor) -> Tensor:
        """Return the rows [n, hidden] of text IDs (int64 [n])."""
        return self._text[tokens]

    def code(self, codes: Tensor) -> Tensor:
        """Return the talker's embeddings [n, hidden] of first codes (int64 [n])."""
        return self._codes[codes]


def _voices(config: Any) -> Mapping[str, int]:
    """Return speaker IDs by name in lower case, starting with the default voice. Raises
    `FailedPrecondition` if there is no voice.
    """
    voices = {name.lower(): speaker for name, speaker in (config.speaker_id or {}).items()}
    if not all(
        isinstance(speaker, int) and 0 <= speaker < config.text_config.vocab_size
        for speaker in voices.values()
    ):
        raise FailedPrecondition(
            f"config.json: talker_config.speaker_id must map names to codec IDs, got {voices}; "
            f"{REMEDY}"
        )
    return dict(sorted(voices.items(), key=lambda voice: voice[0] != DEFAULT_VOICE))
