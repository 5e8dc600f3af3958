"""Computes positions for rotary attention in prompts that contain images or videos (M-RoPE)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss


class RotaryPositions(Protocol):
    """A function with the arguments and results of `rotary_positions`."""

    def __call__(
        self,
        ids: npt.NDArray[np.int32],
        seen: Collection[int],
        grids: npt.NDArray[np.int32],
        steps: npt.NDArray[np.int32],
        *,
        edge: str,
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return the positions of the IDs, and the next position after them."""


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
    runs = _runs(ids, seen, grids, edge)
    if (steps < 0).any():
        raise DataLoss(f"{edge}: time steps are {steps.tolist()}, but can't be negative", edge=edge)
    places = (
        np.indices(tuple(grid)).reshape(3, -1).T * np.array((int(step), 1, 1))
        for grid, step in zip(grids, steps, strict=True)
    )
    return _laid_out(len(ids), runs, ((place, int(place.max()) + 1) for place in places))


def centred_positions(
    ids: npt.NDArray[np.int32],
    seen: Collection[int],
    grids: npt.NDArray[np.int32],
    steps: npt.NDArray[np.int32],
    *,
    edge: str,
) -> tuple[npt.NDArray[np.int64], int]:
    """Like `rotary_positions`, but rows and columns are counted from the middle of an image, as in
    VideoRoPE.

    An image advances the position by 1 only, because it is a single moment. For the same reason,
    `steps` has no effect. Its rows and columns may have negative positions. Raises `DataLoss` if
    the runs and the grids do not match, or if a grid has several time steps.
    """
    if (grids[:, 0] > 1).any():
        raise DataLoss(f"{edge}: an image has several time steps: {grids.tolist()}", edge=edge)
    places = (
        np.indices((1, int(rows), int(columns))).reshape(3, -1).T
        - (0, (rows - 1) // 2, (columns - 1) // 2)
        for _, rows, columns in grids
    )
    return _laid_out(len(ids), _runs(ids, seen, grids, edge), ((place, 1) for place in places))


def _laid_out(
    count: int,
    runs: Iterable[tuple[int, int]],
    places: Iterable[tuple[npt.NDArray[np.int64], int]],
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the positions [count, 3], and the next position after them.

    Words are numbered one after another. `places` contains the positions of each run relative to
    its beginning, and the number by which the run advances the position.
    """
    positions = np.empty((count, 3), np.int64)
    done, following = 0, 0
    for (start, stop), (place, advance) in zip(runs, places, strict=True):
        positions[done:start] = np.arange(following, following + start - done)[:, None]
        following += start - done
        positions[start:stop] = following + place
        following += advance
        done = stop
    positions[done:] = np.arange(following, following + count - done)[:, None]
    return positions, following + count - done


def _runs(
    ids: npt.NDArray[np.int32],
    seen: Collection[int],
    grids: npt.NDArray[np.int32],
    edge: str,
) -> list[tuple[int, int]]:
    """Return the start and the end of each run of placeholders. Raises `DataLoss` unless they match
    the grids.
    """
    at = np.isin(ids, tuple(seen))
    edges = np.flatnonzero(np.diff(np.where(at, ids, -1), prepend=-1, append=-1))
    runs = [(int(a), int(b)) for a, b in itertools.pairwise(edges) if at[a]]
    if (grids < 1).any() or [b - a for a, b in runs] != grids.astype(np.int64).prod(1).tolist():
        raise DataLoss(
            f"{edge}: images and videos have {[b - a for a, b in runs]} positions, but "
            f"their grids are {grids.tolist()}",
            edge=edge,
        )
    return runs
