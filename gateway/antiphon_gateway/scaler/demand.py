"""Computes the demand for a stage. It is a single number, and every gateway arrives at the same
one. This module performs no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DECIMALS = 3
"""KEDA counts in thousandths."""


@dataclass(frozen=True, slots=True)
class RoleWants:
    """The number of slots that one gateway's requests need on one stage but don't have.

    This includes the slots for waiting requests and the slots that recently refused requests would
    have used on average.
    """

    waiting: int = 0
    refused: float = 0.0


GatewayWants = Mapping[str, RoleWants]
"""One gateway's needs by role."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a stage as reported by its replicas. They consist of the number of slots on each
    replica and the total number in use.

    `unknown` explains why more slots may be in use than are reported. If everything is known, it is
    empty.
    """

    slots: tuple[int, ...] = ()
    in_use: int = 0
    unknown: str = ""


def demand_of(role: str, in_use: int, gateways: Iterable[GatewayWants]) -> float:
    """Return the number of slots of a stage that are in use, are being waited for, or were recently
    refused.

    Gateways may list each other in different orders, so the result doesn't depend on the order.
    """
    wants = [wants[role] for wants in gateways if role in wants]
    waiting = sum(each.waiting for each in wants)
    # Round only once, after computing the exact sum.
    return round(in_use + waiting + math.fsum(each.refused for each in wants), DECIMALS)


def target_of(share: float, slots: tuple[int, ...], configured: int) -> float:
    """Return how many slots should be in use on each replica.

    This is a share of a replica's slots. If no replica reports how many it has, it is a share of
    the configured number.
    """
    each = sum(slots) / len(slots) if slots else configured
    return round(share * each, DECIMALS)
