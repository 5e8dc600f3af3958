"""Calls of functions as the tensors of the edge `tool_calls`, in pieces as they are written.

`utf8` has the names and arguments of all pieces one behind the other; `sizes`, int32 [pieces, 3],
says how many bytes of it the name and the arguments of each take, and 1 where a call ends. So the
tensors of chunks that follow each other can be joined. What a call is known by to those who answer
it is not the model's matter, so it does not travel here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor, Tensors


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of a call. With a `name` a call begins, without one the latest goes on.

    The pieces' `arguments` together are the text of a JSON object. Only what `ends` is a call: the
    reply fails if a call that has begun proves to be none.
    """

    name: str
    arguments: str
    ends: bool = False


def call_pieces_to_tensors(pieces: Sequence[CallPiece]) -> dict[str, Tensor]:
    """The tensors that carry the pieces; none for none."""
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
    """The pieces. Raises `DataLoss` for tensors that make no sense."""
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
