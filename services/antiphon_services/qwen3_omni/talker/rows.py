"""Compute the talker's input rows from ids, hidden rows and codes.

A text row is `text_projection(thinker embedding)`, which depends only on the id. The projected
table is therefore computed once, at load. Mirrors `_get_talker_user_parts` and
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
    """The rows of one checkpoint. `talker` has the interface of Hugging Face's talker.

    `embeddings` [V, thinker hidden], of any dtype and device, is the thinker's word table.
    `to_device` copies the hidden rows of prompts to the device.
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
        # The codec side of the prompt's last row, which takes the place of a frame before the
        # first.
        self.begin: Tensor = self._codes[config.codec_bos_id]
        self.voices = tuple(self._codec_side)
        self._to_device = to_device or ToDevice.direct(self._text.device)
        self.vocabulary = len(self._text)
        self.hidden_row_width = int(config.thinker_hidden_size)

    def prompt(self, prompt: TalkerPrompt, start: int, stop: int, voice: str) -> Tensor:
        """Return rows `start` to `stop` of the prompt, [n, hidden]. The rows must be ready."""
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
        """Return the rows of text ids: int64 [n] to [n, hidden]."""
        return self._text[tokens]

    def code(self, codes: Tensor) -> Tensor:
        """Return the talker's embeddings of first codes: int64 [n] to [n, hidden]."""
        return self._codes[codes]


def _voices(config: Any) -> Mapping[str, int]:
    """Return speaker ids by lower-case name, the default first. Raises `FailedPrecondition`."""
    voices = {name.lower(): speaker for name, speaker in (config.speaker_id or {}).items()}
    if not all(
        isinstance(speaker, int) and 0 <= speaker < config.text_config.vocab_size
        for speaker in voices.values()
    ):
        raise FailedPrecondition(
            f"config.json: talker_config.speaker_id must name codec ids, is {voices}; {REMEDY}"
        )
    return dict(sorted(voices.items(), key=lambda voice: voice[0] != DEFAULT_VOICE))
