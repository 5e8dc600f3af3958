"""Function calls as tensors on the `tool_calls` edge. They are sent piece by piece while they are
being generated.

`utf8` contains the names and arguments of all pieces, one after another. `sizes` (int32) has the
shape [pieces, 3]. Each row contains the length of the name in bytes, the length of the arguments in
bytes, and a flag that is 1 if the piece ends a call and 0 otherwise. This means that the tensors of
consecutive chunks can be concatenated. The IDs of calls aren't sent on this edge, because the model
doesn't use them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor, Tensors


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a call. If it has a `name`, it starts a new call. Otherwise, it continues the
    current one.

    Joining the `arguments` of all pieces of a call gives the text of a JSON object. The call is
    valid only after a piece whose `ends` is true. If a reply contains an invalid call, the reply
    fails.
    """

    name: str
    arguments: str
    ends: bool = False


def call_pieces_to_tensors(pieces: Sequence[CallPiece]) -> dict[str, Tensor]:
    """Convert pieces to tensors. If there are no pieces, the result is empty."""
    if not pieces:
        return {}
    texts = [(each.name.encode(), each.arguments.encode()) for each in pieces]
    sizes = [
        (len(name), len(arguments), each.ends)
        for each, (name, arguments) in zip(pieces, texts, strict=True)
    ]
    joined = b"".join(text for pair in texts for text in pair)
    return {
        "utf8": np.frombuffer(joined, dtype=np.uint8),
        "sizes": np.array(sizes, dtype=np.int32),
    }


def call_pieces_from_tensors(tensors: Tensors) -> tuple[CallPiece, ...]:
    """Return the pieces. Raises `DataLoss` if the tensors are inconsistent."""
    if not tensors:
        return ()
    try:
        text, sizes = tensors["utf8"].tobytes(), tensors["sizes"].tolist()
        if any(size < 0 for row in sizes for size in row) or len(text) != sum(
            name + arguments for name, arguments, _ in sizes
        ):
            raise ValueError("sizes and utf8 do not fit together")
        pieces, start = [], 0
        for name, arguments, ends in sizes:
            middle, end = start + name, start + name + arguments
            piece = CallPiece(text[start:middle].decode(), text[middle:end].decode(), bool(ends))
            pieces.append(piece)
            start = end
    except (KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"tool_calls: can't parse the chunk: {error}", edge="tool_calls") from None
    return tuple(pieces)
