"""Calls of functions as the tensors of the edge `tool_calls`.

`utf8` has the names and arguments of all calls one behind the other, `sizes` int32 [calls, 2] how
many bytes of it each takes. So the tensors of chunks that follow each other can be joined. What a
call is known by to those who answer it is not the model's matter, so it does not travel here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.chunk import Tensor, Tensors
from antiphon.conversation import ToolCall
from antiphon.errors import DataLoss


def tool_calls_to_tensors(calls: Sequence[ToolCall]) -> dict[str, Tensor]:
    """The tensors that carry the calls; none for none."""
    if not calls:
        return {}
    texts = [(each.name.encode(), each.arguments.encode()) for each in calls]
    joined = b"".join(piece for pair in texts for piece in pair)
    sizes = [[len(piece) for piece in pair] for pair in texts]
    return {
        "utf8": np.frombuffer(joined, dtype=np.uint8),
        "sizes": np.array(sizes, dtype=np.int32),
    }


def tool_calls_from_tensors(tensors: Tensors) -> tuple[ToolCall, ...]:
    """The calls, with empty ids. Raises `DataLoss` for tensors that make no sense."""
    if not tensors:
        return ()
    try:
        text, sizes = tensors["utf8"].tobytes(), tensors["sizes"].tolist()
        if any(size < 0 for pair in sizes for size in pair) or len(text) != sum(map(sum, sizes)):
            raise ValueError("sizes and utf8 do not fit together")
        calls, start = [], 0
        for name, arguments in sizes:
            middle, end = start + name, start + name + arguments
            calls.append(ToolCall("", text[start:middle].decode(), text[middle:end].decode()))
            start = end
    except (KeyError, TypeError, ValueError) as error:
        raise DataLoss(
            f"tool_calls: the chunk cannot be read: {error}", edge="tool_calls"
        ) from None
    return tuple(calls)
