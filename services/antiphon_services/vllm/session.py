"""A request whose input grows: vLLM computes each part as it comes, and waits for the next.

Each part ends with an id that vLLM has to sample. It never enters the context, and nothing reads
it: what follows is decided where the hidden rows arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm import SamplingParams
from vllm.engine.protocol import StreamingInput
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.sampling_params import RequestOutputKind

from antiphon_services.vllm.spans import wanted

MODALITY = "audio"
"""Under which rows that stand in place of words are handed to the model."""
ROWS = "rows"
"""The keyword of the model's `embed_multimodal` that has them."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Input rows [n, hidden] on the host for positions from `start` of a part on. `name` is the
    same for equal rows, for vLLM's prefix cache."""

    start: int
    rows: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The next positions: `ids` int32 [n], and the rows that stand in place of some of them."""

    ids: npt.NDArray[np.int32]
    given: Sequence[GivenRows]

    def input(self) -> Any:
        """The part as vLLM takes it."""
        ids = self.ids.tolist()
        if not self.given:
            return tokens_input(ids)
        items = [
            MultiModalKwargsItem(
                {ROWS: MultiModalFieldElem(data=each.rows, field=MultiModalBatchedField())}
            )
            for each in self.given
        ]
        places = [PlaceholderRange(offset=each.start, length=len(each.rows)) for each in self.given]
        return mm_input(
            ids,
            MultiModalKwargsItems({MODALITY: items}),
            {MODALITY: [each.name for each in self.given]},
            {MODALITY: places},
        )


@dataclass(frozen=True, slots=True)
class VllmSession:
    """A request, by our own `number`, whose hidden rows leave from position `rows_from` on.

    `parts` belong to the host's loop. They are bounded by the positions of a context.
    """

    number: int
    rows_from: int
    parts: asyncio.Queue[SessionPart] = field(default_factory=asyncio.Queue)

    def parameters(self) -> SamplingParams:
        """Those of every part."""
        rows = wanted(self.number, np.empty(0, np.intp), self.rows_from)
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"kv_transfer_params": rows},
        )

    async def inputs(self, parameters: SamplingParams) -> AsyncIterator[StreamingInput]:
        """The parts as they come; ends with the request's task alone."""
        while True:
            part = await self.parts.get()
            yield StreamingInput(part.input(), parameters)
