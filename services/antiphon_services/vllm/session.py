"""A request with growing input: vLLM computes each part as it arrives, and waits for the next.

Each part ends with an id that vLLM has to sample. It never enters the context and is ignored: the
receiver of the hidden rows decides what follows.
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
"""Modality under which rows that replace ids are passed to the model."""
ROWS = "rows"
"""The rows' keyword in the model's `embed_multimodal`."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Input rows [n, hidden] on the host, for positions of a part from `start` on.

    `name` is equal for equal rows, for vLLM's prefix cache.
    """

    start: int
    rows: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The next positions: `ids` int32 [n], and rows that replace some of them."""

    ids: npt.NDArray[np.int32]
    given: Sequence[GivenRows]

    def input(self) -> Any:
        """Return the part for vLLM."""
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
    """A request with antiphon's own `number`, whose hidden rows are sent from position `rows_from`
    on.

    `parts` belong to the host's loop. They are bounded by the positions of a context.
    """

    number: int
    rows_from: int
    parts: asyncio.Queue[SessionPart] = field(default_factory=asyncio.Queue)

    def parameters(self) -> SamplingParams:
        """Return the sampling parameters of every part."""
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
        """Yield the parts as they arrive; ends only with the request's task."""
        while True:
            part = await self.parts.get()
            yield StreamingInput(part.input(), parameters)
