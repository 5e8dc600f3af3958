"""Function calls as tensors of the edge `tool_calls`, in pieces as they are generated.

`utf8` has the names and arguments of all pieces, concatenated. `sizes`, int32 [pieces, 3], has the
bytes of each piece's name and arguments, and 1 if it ends a call. So tensors of consecutive chunks
can be concatenated. Call ids are not the model's concern and are not
sent here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor, Tensors


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a call. A piece with a `name` starts a call; others continue the latest one.

    The `arguments` of all pieces together are the text of a JSON object. A call is valid only after
    a piece that `ends`; a reply with an invalid call fails.
    """

    name: str
    arguments: str
    ends: bool = False


def call_pieces_to_tensors(pieces: Sequence[CallPiece]) -> dict[str, Tensor]:
    """Return the tensors of the pieces; empty for none."""
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
    """Return the pieces. Raises `DataLoss` for inconsistent tensors."""
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
        raise DataLoss(
            f"tool_calls: the chunk cannot be read: {error}", edge="tool_calls"
        ) from None
    return tuple(pieces)
