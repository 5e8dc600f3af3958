"""The talker's input rows: tables that turn ids, hidden rows and codes into them.

A text row is `text_projection(thinker embedding)`: a function of the id alone, so
the projected table is computed once at load. Mirrors `_get_talker_user_parts` and
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
    """Rows for one checkpoint. `talker` is HF's talker for conditional generation.

    `embeddings` [V, thinker hidden], of any dtype and device, is the thinker's table;
    `to_device` brings the hidden rows of prompts.
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
        # The codec side of the prompt's last row, as if it were a frame before the first.
        self.begin: Tensor = self._codes[config.codec_bos_id]
        self.voices = tuple(self._codec_side)
        self._to_device = to_device or ToDevice.direct(self._text.device)
        self.vocabulary = len(self._text)
        self.hidden_row_width = int(config.thinker_hidden_size)

    def prompt(self, prompt: TalkerPrompt, start: int, stop: int, voice: str) -> Tensor:
        """Rows `start` to `stop` [n, hidden] of the prompt, which must be ready."""
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
        """[n, hidden]: the rows of text ids, int64 [n]."""
        return self._text[tokens]

    def code(self, codes: Tensor) -> Tensor:
        """[n, hidden]: the talker's embeddings of first codes, int64 [n]."""
        return self._codes[codes]


def _voices(config: Any) -> Mapping[str, int]:
    """Speaker ids by lower-case name, the default first. Raises `FailedPrecondition`."""
    voices = {name.lower(): speaker for name, speaker in (config.speaker_id or {}).items()}
    if not all(
        isinstance(speaker, int) and 0 <= speaker < config.text_config.vocab_size
        for speaker in voices.values()
    ):
        raise FailedPrecondition(
            f"config.json: talker_config.speaker_id must name codec ids, is {voices}; {REMEDY}"
        )
    return dict(sorted(voices.items(), key=lambda voice: voice[0] != DEFAULT_VOICE))
