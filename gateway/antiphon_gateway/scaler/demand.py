"""The demand of a stage: one number, the same from every gateway. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DECIMALS = 3
"""KEDA counts in thousandths."""


@dataclass(frozen=True, slots=True)
class RoleWants:
    """Slots of one stage that the requests of one gateway want and have not got: those of who
    waits, and those that who was refused recently would hold on average."""

    waiting: int = 0
    refused: float = 0.0


GatewayWants = Mapping[str, RoleWants]
"""What one gateway wants, by role."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The slots of a stage as its replicas report them: of each replica, and taken on all.

    `unknown` is why more may be taken than is reported; empty where all is known.
    """

    slots: tuple[int, ...] = ()
    in_use: int = 0
    unknown: str = ""


def demand_of(role: str, in_use: int, gateways: Iterable[GatewayWants]) -> float:
    """Slots of a stage that are in use, waited for, or were refused recently.

    The order of the gateways, which differs from one to the other, changes nothing.
    """
    wants = [wants[role] for wants in gateways if role in wants]
    waiting = sum(each.waiting for each in wants)
    # The exact sum, rounded once.
    return round(in_use + waiting + math.fsum(each.refused for each in wants), DECIMALS)


def target_of(share: float, slots: tuple[int, ...], configured: int) -> float:
    """Return the target of used slots per replica.

    It is a share of the replica's slots, or of the configured slots while no replica reports its
    number.
    """
    each = sum(slots) / len(slots) if slots else configured
    return round(share * each, DECIMALS)
