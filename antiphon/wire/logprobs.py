"""Converts log probabilities to and from the tensors on a text edge.

All tensors grow along axis 0, so the tensors of consecutive chunks can be concatenated. Each row
contains a token, followed by its k most likely alternatives. `logprob_ids` (int32, shape [n, 1 +
k]) contains their IDs, `logprobs` (float32, shape [n, 1 + k]) contains their log probabilities, and
`logprob_sizes` (int32, shape [n, 1 + k]) contains the sizes of their texts. The texts themselves
are in `logprob_bytes` (uint8, one-dimensional).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.logprobs import TokenLogprob

IDS, LOGPROBS, SIZES, BYTES = "logprob_ids", "logprobs", "logprob_sizes", "logprob_bytes"


def logprobs_to_tensors(tokens: Sequence[TokenLogprob]) -> dict[str, Tensor]:
    """Convert tokens to tensors. All tokens must have the same number of `top` entries.

    If there are no tokens, the result is empty.
    """
    if not tokens:
        return {}
    rows = [(token, *token.top) for token in tokens]
    everything = b"".join(each.token_bytes for row in rows for each in row)
    return {
        IDS: np.array([[each.token_id for each in row] for row in rows], np.int32),
        LOGPROBS: np.array([[each.logprob for each in row] for row in rows], np.float32),
        SIZES: np.array([[len(each.token_bytes) for each in row] for row in rows], np.int32),
        BYTES: np.frombuffer(everything, np.uint8),
    }


def logprobs_from_tensors(tensors: Tensors) -> tuple[TokenLogprob, ...]:
    """Return the tokens in a chunk. The result may be empty. Raises `DataLoss` if the tensors are
    inconsistent.
    """
    if IDS not in tensors:
        return ()
    try:
        ids, logprobs, sizes = tensors[IDS], tensors[LOGPROBS], tensors[SIZES]
        data = tensors[BYTES].tobytes()
    except KeyError as missing:
        raise DataLoss(f"log probabilities without {missing}") from missing
    if ids.ndim != 2 or not ids.shape == logprobs.shape == sizes.shape:
        raise DataLoss("log probabilities whose tensors have different shapes")
    if sizes.min(initial=0) < 0 or sizes.sum() != len(data):
        raise DataLoss(f"log probabilities with {len(data)} bytes of tokens, not {sizes.sum()}")
    ends = list(itertools.accumulate(sizes.ravel().tolist(), initial=0))
    pieces = iter([data[start:end] for start, end in itertools.pairwise(ends)])
    rows = zip(ids.tolist(), logprobs.tolist(), strict=True)
    return tuple(_token(*row, [next(pieces) for _ in row[0]]) for row in rows)


def _token(ids: Sequence[int], logprobs: Sequence[float], pieces: Sequence[bytes]) -> TokenLogprob:
    """Create a token from a single row."""
    (id_, *_), (piece, *_), (logprob, *_) = ids, pieces, logprobs
    top = map(TokenLogprob, ids[1:], pieces[1:], logprobs[1:])
    return TokenLogprob(id_, piece, logprob, tuple(top))
