"""The memory of one stage, in bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """Memory of a stage with `sessions` of `positions` each.

    `stored` are bytes in the checkpoint by dtype; `weights` and the rest are bytes on the device.
    `working` is the estimate for intermediates and, on a GPU, what CUDA takes for a process.
    `shared` is a cache of all sessions. `host` is the estimate for the process, `host_bounds` what
    its settings allow beyond that, by setting.
    """

    role: str
    engine: str
    dtype: str
    stored: Mapping[str, int]
    weights: int
    working: int
    shared: int
    position_bytes: int
    session_state: int
    most: int
    positions: int
    sessions: int
    host: int
    host_bounds: Mapping[str, int]

    @property
    def session(self) -> int:
        """Bytes of one session at full length."""
        return self.positions * self.position_bytes + self.session_state

    @property
    def fixed(self) -> int:
        """Bytes without any session."""
        return self.weights + self.working + self.shared

    @property
    def total(self) -> int:
        """Bytes with all sessions."""
        return self.fixed + self.sessions * self.session
