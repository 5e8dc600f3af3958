"""Computes tables in advance. This is possible because each of their rows depends only on an ID."""

from __future__ import annotations

from typing import Any

from torch import Tensor

PROJECTED_AT_ONCE = 4096


def project_table(projection: Any, embeddings: Tensor, like: Tensor) -> Tensor:
    """Apply `projection` to every row of a table. The rows are processed in slices because the
    inner width is large.
    """
    table = like.new_empty(len(embeddings), like.shape[1])
    for start in range(0, len(embeddings), PROJECTED_AT_ONCE):
        part = embeddings[start : start + PROJECTED_AT_ONCE].to(like.device, like.dtype)
        table[start : start + len(part)] = projection(part)
    return table
