"""Messages from vLLM's worker to the stage: hidden rows, and requests that lost some.

A message is one tensor blob: `spans` int64 [n, 3] of (request number, first position, count),
`rows` [sum of counts, hidden] in the same order, and `lost` int64 [m] with the numbers of requests
whose rows will not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor
from antiphon.wire.blob import Encoding, decode
from antiphon_services.vllm.spans import RowSpan

MAX_MESSAGE_BYTES = 1 << 30


def encode_rows(spans: Sequence[RowSpan], rows: Tensor | None, lost: Sequence[int]) -> bytes:
    """Encode a message."""
    tensors: dict[str, Tensor] = {"lost": np.array(lost, dtype=np.int64)}
    if rows is not None:
        each = [(span.number, span.start, span.count) for span in spans]
        tensors |= {"spans": np.array(each, dtype=np.int64).reshape(-1, 3), "rows": rows}
    return Encoding(tensors).to_bytes()


def decode_rows(message: bytes) -> tuple[list[tuple[RowSpan, Tensor]], list[int]]:
    """Return the spans with their rows, and the numbers of requests with lost rows. Raises
    `DataLoss`."""
    tensors = decode(message)
    if "rows" not in tensors:
        return [], tensors["lost"].tolist()
    spans = [RowSpan(*each) for each in tensors["spans"].tolist()]
    if sum(span.count for span in spans) != len(tensors["rows"]):
        raise DataLoss(f"{len(tensors['rows'])} hidden rows came for {spans}")
    return list(_cut(spans, tensors["rows"])), tensors["lost"].tolist()


def _cut(spans: Sequence[RowSpan], rows: Tensor) -> Iterator[tuple[RowSpan, Tensor]]:
    start = 0
    for span in spans:
        yield span, rows[start : start + span.count]
        start += span.count
