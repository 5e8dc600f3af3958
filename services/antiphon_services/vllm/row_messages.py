"""Messages from vLLM's worker to the stage. They contain hidden rows and the numbers of requests
that have lost rows.

A message is a single tensor blob with three tensors. `spans` (int64 [n, 3]) contains a request
number, the first position and the number of rows. `rows` [sum of counts, hidden] contains the rows
in the same order. `lost` (int64 [m]) contains the numbers of requests whose rows won't arrive.
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
    """Return the spans with their rows, and the numbers of requests that have lost rows. Raises
    `DataLoss` if the message is malformed.
    """
    tensors = decode(message)
    if "rows" not in tensors:
        return [], tensors["lost"].tolist()
    spans = [RowSpan(*each) for each in tensors["spans"].tolist()]
    if sum(span.count for span in spans) != len(tensors["rows"]):
        raise DataLoss(f"received {len(tensors['rows'])} hidden rows for {spans}")
    return list(_cut(spans, tensors["rows"])), tensors["lost"].tolist()


def _cut(spans: Sequence[RowSpan], rows: Tensor) -> Iterator[tuple[RowSpan, Tensor]]:
    start = 0
    for span in spans:
        yield span, rows[start : start + span.count]
        start += span.count
