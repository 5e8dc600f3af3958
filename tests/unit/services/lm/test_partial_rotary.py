"""Heads that are rotated in part have the products of heads in the checkpoint's order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antiphon_services.lm.partial_rotary import AlternatingRotaryEmbedding, in_halves
from antiphon_services.lm.rotary import Rotation

THETA, LIMIT = 10_000.0, 64


def rotated(head: Tensor, place: Tensor, turned: int, spatial: int) -> Tensor:
    """A head [width] in the checkpoint's order at (time, height, width), pair by pair."""
    made = head.clone()
    half = turned // 2
    for pair in range(half):
        axis = (1 + pair % 2) if pair < spatial else 0
        angle = place[axis] * THETA ** (-2 * pair / turned)
        first, second = head[pair], head[pair + half]
        made[pair] = first * angle.cos() - second * angle.sin()
        made[pair + half] = second * angle.cos() + first * angle.sin()
    return made


@pytest.mark.parametrize(("width", "turned", "spatial"), [(16, 8, 2), (12, 8, 3), (8, 8, 4)])
def test_products_are_those_of_the_order_in_the_checkpoint(
    width: int, turned: int, spatial: int
) -> None:
    torch.manual_seed(0)
    rotary = AlternatingRotaryEmbedding(width, turned, theta=THETA, spatial=spatial)
    table = Rotation.of(rotary, LIMIT, like=torch.zeros(1))
    places = torch.tensor([[0, 0, 0], [5, 2, 9], [7, -3, -11], [63, 63, 1]])
    queries, keys = torch.randn(2, len(places), width).double()
    wanted = torch.stack(
        [
            rotated(query, place.double(), turned, spatial)
            @ rotated(key, place.double() // 2, turned, spatial)
            for query, key, place in zip(queries, keys, places, strict=True)
        ]
    )
    order = in_halves(width, turned)
    assert sorted(order.tolist()) == list(range(width))
    turns = table.at(places), table.at(places // 2)
    found = [
        rotation.apply(heads[:, None, order].float())[:, 0].double()
        for rotation, heads in zip(turns, (queries, keys), strict=True)
    ]
    torch.testing.assert_close((found[0] * found[1]).sum(-1), wanted, rtol=0, atol=1e-5)


def test_a_position_with_one_axis_is_the_same_on_all_three() -> None:
    rotary = AlternatingRotaryEmbedding(16, 8, theta=THETA, spatial=3)
    table = Rotation.of(rotary, LIMIT, like=torch.zeros(1))
    positions = torch.arange(LIMIT)
    of_axes = table.at(positions[:, None].expand(-1, 3))
    assert torch.equal(of_axes.turns, table.at(positions).turns)
