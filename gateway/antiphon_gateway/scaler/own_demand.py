"""The demand from the requests on this gateway, in the form that other gateways receive."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from antiphon_gateway.admission.reservation import Admission
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.scaler.demand import GatewayWants, RoleWants

SHORTEST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 1.0


class OwnDemand:
    """A snapshot of the demand. It is updated at most once every `SHORTEST_INTERVAL_S` seconds.

    If an update differs from the previous snapshot, its own `changes` and the `changes` of the
    total demand are both notified.
    """

    def __init__(self, admission: Admission, all_changes: ChangeSignal) -> None:
        self.now: GatewayWants = {}
        self.changes = ChangeSignal()
        self._admission = admission
        self._all_changes = all_changes

    async def follow(self) -> None:
        """Keep updating the snapshot until cancelled."""
        while True:
            changed = self._admission.changes.next
            self._renew()
            await asyncio.sleep(SHORTEST_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._longest_s()):
                    await changed.wait()

    def _renew(self) -> None:
        waiting = self._admission.wanted
        refused = self._admission.refused.by_role(asyncio.get_running_loop().time())
        wants = {
            role: RoleWants(waiting[role], refused.get(role, 0.0))
            for role in waiting.keys() | refused.keys()
        }
        if wants != self.now:
            self.now = wants
            self.changes.tell()
            self._all_changes.tell()

    def _longest_s(self) -> float:
        """Return after how many seconds something will change without an event."""
        expiry = self._admission.refused.next_expiry()
        if expiry is None:
            return LONGEST_INTERVAL_S
        left_s = expiry - asyncio.get_running_loop().time()
        return min(max(left_s, 0.0), LONGEST_INTERVAL_S)
