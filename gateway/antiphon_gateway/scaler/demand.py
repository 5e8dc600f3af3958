"""Computes the demand for a stage, which is a single number that is the same on every gateway. This
module performs no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DECIMALS = 3
"""KEDA counts in thousandths."""


@dataclass(frozen=True, slots=True)
class RoleWants:
    """The slots of one stage that the requests of one gateway need but do not have.

    They consist of the slots for waiting requests, and of the slots that recently refused requests
    would use on average.
    """

    waiting: int = 0
    refused: float = 0.0


GatewayWants = Mapping[str, RoleWants]
"""The needs of one gateway by role."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a stage as reported by its replicas: the slots of each replica, and the number
    in use on all replicas.

    `unknown` is the reason why more slots may be in use than are reported. It is empty if
    everything is known.
    """

    slots: tuple[int, ...] = ()
    in_use: int = 0
    unknown: str = ""


def demand_of(role: str, in_use: int, gateways: Iterable[GatewayWants]) -> float:
    """Return the number of slots of a stage that are in use, are being waited for, or were recently
    refused.

    The result does not depend on the order of the gateways, which can differ between them.
    """
    wants = [wants[role] for wants in gateways if role in wants]
    waiting = sum(each.waiting for each in wants)
    # The exact sum is rounded only once.
    return round(in_use + waiting + math.fsum(each.refused for each in wants), DECIMALS)


def target_of(share: float, slots: tuple[int, ...], configured: int) -> float:
    """Return the target number of used slots per replica.

    It is a share of the slots of a replica. If no replica reports its number, it is a share of the
    configured slots.
    """
    each = sum(slots) / len(slots) if slots else configured
    return round(share * each, DECIMALS)
