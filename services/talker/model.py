"""The talker of one checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.sampler import choose
from antiphon.sampling import Sampling
from services.talker.codebooks import CodePredictor, Frame, predictor_sampling
from services.talker.decoder import Decoder, KeyValues
from services.talker.rows import RowTable
from services.talker.transcript import Transcript

# The last ids of the vocabulary are control ids, of which only the stop code may be
# drawn: a literal of `Qwen3OmniMoeForConditionalGeneration.generate`.
CONTROL_IDS = 1024


class Talker:
    """Forward passes and draws. `module` is HF's talker for conditional generation.

    `embeddings` [V, thinker hidden] is the thinker's word table, `code_entries` the
    size of code2wav's codebooks. Raises `FailedPrecondition` when the talker could
    draw codes that are in no codebook, or has no voice.
    """

    def __init__(
        self,
        module: Any,
        embeddings: Tensor,
        special: SpecialIds,
        *,
        code_entries: int,
        context_limit: int,
    ) -> None:
        self._special = special
        self._head = module.codec_head
        self._decoder = Decoder(module.model, context_limit)
        self._predictor = CodePredictor(module.code_predictor)
        self.groups = self._predictor.groups
        self.rows = RowTable(module, embeddings)
        self.stop_code = int(module.config.codec_eos_token_id)
        vocabulary = int(module.config.text_config.vocab_size)
        self._suppressed = torch.tensor(
            [i for i in range(max(vocabulary - CONTROL_IDS, 0), vocabulary) if i != self.stop_code],
            device=self._head.weight.device,
        )
        largest = max(vocabulary - CONTROL_IDS, int(module.config.code_predictor_config.vocab_size))
        if largest > code_entries:
            raise FailedPrecondition(
                f"the talker draws codes below {largest}, code2wav knows {code_entries}"
            )
        if not self.rows.voices:
            raise FailedPrecondition("config.json: talker_config.speaker_id has no voice")

    def new_transcript(self) -> Transcript:
        """An empty transcript of this checkpoint's ids and widths."""
        return Transcript(self._special, self.rows.vocabulary, self.rows.hidden_row_width)

    def new_cache(self, capacity: int) -> KeyValues:
        """An empty cache with room for so many positions."""
        return KeyValues(self._decoder.shape, capacity)

    def forward(self, rows: Tensor, cache: KeyValues) -> Tensor:
        """Append `rows` [n, hidden]; their states [n, hidden] after the final norm."""
        return self._decoder.forward(rows, cache)

    def first_code(self, hidden: Tensor, sampling: Sampling, drawn: Sequence[int]) -> int:
        """Group 0 of the next frame, or the stop code, from the last state [1, hidden].

        `drawn` are the group-0 codes so far: the penalty's history, and the step.
        """
        logits = self._head(hidden)[0]
        history = torch.tensor(drawn, dtype=torch.int64, device=logits.device)
        return choose(
            logits, sampling, step=len(drawn), history=history, suppressed=self._suppressed
        )

    def frame(self, hidden: Tensor, code: int, sampling: Sampling, step: int) -> Frame:
        """The frame that starts with `code`, drawn from the same state."""
        embedding = self.rows.code(code)
        return self._predictor.frame(hidden, code, embedding, predictor_sampling(sampling), step)
