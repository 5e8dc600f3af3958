"""A request whose input grows. vLLM computes each part as it arrives and then waits for the next
part.

vLLM has to sample an ID at the end of each part. This ID is ignored and never becomes part of the
context, because the receiver of the hidden rows determines what comes next.
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
"""The modality under which rows that replace IDs are passed to the model."""
ROWS = "rows"
"""The keyword argument for these rows in the model's `embed_multimodal`."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Input rows [n, hidden] on the host, which replace a part's IDs from position `start` onwards.

    Rows with the same `name` are equal. vLLM's prefix cache relies on this.
    """

    start: int
    rows: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The IDs of the next positions (int32 [n]) and rows that replace some of them."""

    ids: npt.NDArray[np.int32]
    given: Sequence[GivenRows]

    def input(self) -> Any:
        """Return the part in the form that vLLM expects."""
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
    """A request that is identified by antiphon's own `number`. Hidden rows are sent for all
    positions from `rows_from` onwards.

    `parts` must only be used on the host's event loop. The number of parts is limited by the number
    of positions in a context.
    """

    number: int
    rows_from: int
    parts: asyncio.Queue[SessionPart] = field(default_factory=asyncio.Queue)

    def parameters(self) -> SamplingParams:
        """Return the sampling parameters, which are the same for every part."""
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
        """Yield the parts as they arrive. This only ends when the request's task does."""
        while True:
            part = await self.parts.get()
            yield StreamingInput(part.input(), parameters)
