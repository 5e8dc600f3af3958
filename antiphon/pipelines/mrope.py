"""Computes positions for rotary attention in prompts that contain images or videos (M-RoPE)."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss


def rotary_positions(
    ids: npt.NDArray[np.int32],
    seen: Collection[int],
    grids: npt.NDArray[np.int32],
    steps: npt.NDArray[np.int32],
    *,
    edge: str,
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the positions of the given token IDs, and the next position after them.

    The positions have the shape [n, 3], with columns for time, height and width. `seen` contains
    the placeholder IDs for images and videos. Each run of one of these IDs corresponds to a row of
    `grids`, in order. `grids` has the shape [m, 3] and contains the numbers of time steps, rows and
    columns. `steps`, of shape [m], contains the distance between two time steps, in positions.
    After a run, positions continue from its largest position. This function mirrors
    `get_rope_index` of Hugging Face transformers. Raises `DataLoss`, with the name of the `edge`,
    if the runs and the grids do not match.
    """
    at = np.isin(ids, tuple(seen))
    edges = np.flatnonzero(np.diff(np.where(at, ids, -1), prepend=-1, append=-1))
    runs = [(a, b) for a, b in itertools.pairwise(edges) if at[a]]
    sizes = grids.astype(np.int64).prod(1).tolist()
    if (grids < 1).any() or (steps < 0).any() or [int(b - a) for a, b in runs] != sizes:
        raise DataLoss(
            f"{edge}: images and videos have {[int(b - a) for a, b in runs]} positions, but "
            f"their grids are {grids.tolist()}",
            edge=edge,
        )
    positions = np.empty((len(ids), 3), np.int64)
    done, following = 0, 0
    for (start, stop), grid, step in zip(runs, grids, steps, strict=True):
        positions[done:start] = np.arange(following, following + start - done)[:, None]
        following += int(start) - done
        place = np.indices(tuple(grid)).reshape(3, -1).T * (int(step), 1, 1)
        positions[start:stop] = following + place
        following += int(place.max()) + 1
        done = int(stop)
    positions[done:] = np.arange(following, following + len(ids) - done)[:, None]
    return positions, following + len(ids) - done
