"""Reads the states of stages before and after a run. The states include open sessions and link
traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from antiphon.errors import AntiphonError
from antiphon.v1 import stage_pb2
from antiphon_tools.load.result import LeftOpen
from antiphon_tools.load.stage_driver import describe_stage
from antiphon_tools.load.trust import Trust

# A stage detects the end of a session slightly later than the client does.
END_GRACE_S = (0.0, 0.1, 0.3, 1.0)

States = Mapping[str, stage_pb2.DescribeResponse]
"""The state of each stage by role."""


async def stage_states(addresses: Mapping[str, str], trust: Trust | None) -> States:
    """Return the current state of each stage. Stages that do not respond are omitted."""
    states = {}
    for role, address in addresses.items():
        try:
            states[role] = await describe_stage(address, role, trust)
        except AntiphonError:
            continue
    return states


async def stage_states_at_rest(addresses: Mapping[str, str], trust: Trust | None) -> States:
    """Return the state of each stage once it has no sessions or after a grace period."""
    states: States = {}
    for pause_s in END_GRACE_S:
        await asyncio.sleep(pause_s)
        states = await stage_states(addresses, trust)
        if not any(each.open_sessions for each in states.values()):
            break
    return states


def left_open(states: States) -> dict[str, LeftOpen]:
    """Return the sessions and segments that each stage still holds."""
    return {role: LeftOpen(each.open_sessions, each.open_segments) for role, each in states.items()}


def link_counts(
    addresses: Mapping[str, str], before: States, after: States
) -> dict[str, dict[str, int]]:
    """Return the counts of each outgoing link between two states, by "producer → consumer"."""
    counted = _link_totals(addresses, after)
    for name, counts in _link_totals(addresses, before).items():
        for kind, count in counts.items():
            if name in counted:
                counted[name][kind] = counted[name].get(kind, 0) - count
    kept = {name: {k: n for k, n in counts.items() if n} for name, counts in counted.items()}
    return {name: counts for name, counts in kept.items() if counts}


def _link_totals(addresses: Mapping[str, str], states: States) -> dict[str, dict[str, int]]:
    roles = {address: role for role, address in addresses.items()}
    return {
        f"{role} → {roles.get(link.peer_address, link.peer_address)}": dict(link.counts)
        for role, each in states.items()
        for link in each.links
        if link.outgoing
    }
