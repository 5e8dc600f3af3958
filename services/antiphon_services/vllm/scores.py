"""Extracts an ID's log probabilities from vLLM's lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from antiphon.errors import Internal


class Scores(Protocol):
    """The interface of `vllm.logprobs.FlatLogprobs`. The entries for ID number i start at
    `start_indices[i]`.

    The first entry is the ID itself. The most likely IDs follow and may include the same ID again.
    If vLLM has joined two updates and the ID is also one of the most likely IDs, it only occurs
    once, as the first entry with its rank.
    """

    start_indices: list[int]
    end_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int | None]


def scores_at(
    scores: Scores | None, index: int, ids: Sequence[int], top: int
) -> tuple[list[int], list[float]]:
    """Return the ID at `index` in an update's `ids`, followed by the `top` most likely IDs,
    together with their log probabilities.

    Raises `Internal` if they are missing from vLLM's lists.
    """
    if scores is None or len(scores.start_indices) != len(ids):
        raise Internal(f"vLLM returned no log probabilities for {len(ids)} IDs")
    places = list(range(scores.start_indices[index], scores.end_indices[index]))
    if not places or len(places) < top or scores.token_ids[places[0]] != ids[index]:
        raise Internal(
            f"vLLM returned no log probabilities for ID {ids[index]} and {top} alternatives"
        )
    joined = len(places) == top
    likeliest = sorted(places, key=lambda at: _rank(scores, at)) if joined else places[1:]
    chosen = [places[0], *likeliest]
    return [scores.token_ids[at] for at in chosen], [scores.logprobs[at] for at in chosen]


def _rank(scores: Scores, place: int) -> int:
    rank = scores.ranks[place]
    if rank is None:
        raise Internal("vLLM did not return the most likely ID")
    return rank
