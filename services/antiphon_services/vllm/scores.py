"""vLLM's log probabilities, as lists, to those of one id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from antiphon.errors import Internal


class Scores(Protocol):
    """`vllm.logprobs.FlatLogprobs`: what it says of id i lies from `start_indices[i]` on.

    That is the id, then the likeliest in its place, which may name it again. Where vLLM has
    joined two updates, an id that is among the likeliest is there once, in front, with
    its rank among them.
    """

    start_indices: list[int]
    end_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int | None]


def scores_at(
    scores: Scores | None, index: int, ids: Sequence[int], top: int
) -> tuple[list[int], list[float]]:
    """Of an update's `ids`, that one and the `top` likeliest, with log probabilities [1 + top].

    Raises `Internal` when vLLM does not say so much.
    """
    if scores is None or len(scores.start_indices) != len(ids):
        raise Internal(f"vLLM does not say how likely {len(ids)} ids were")
    places = list(range(scores.start_indices[index], scores.end_indices[index]))
    if not places or len(places) < top or scores.token_ids[places[0]] != ids[index]:
        raise Internal(f"vLLM does not say how likely id {ids[index]} and {top} others were")
    joined = len(places) == top
    likeliest = sorted(places, key=lambda at: _rank(scores, at)) if joined else places[1:]
    chosen = [places[0], *likeliest]
    return [scores.token_ids[at] for at in chosen], [scores.logprobs[at] for at in chosen]


def _rank(scores: Scores, place: int) -> int:
    rank = scores.ranks[place]
    if rank is None:
        raise Internal("vLLM does not say which id was likelier")
    return rank
