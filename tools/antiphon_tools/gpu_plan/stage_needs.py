"""The memory requirements of a stage in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """The memory of a stage that has `sessions` sessions with `positions` positions each.

    `stored` contains the number of bytes in the checkpoint by dtype. Unless stated otherwise, sizes
    refer to the device. `working` is an estimate for intermediate results and, on a GPU, for the
    CUDA context. `shared` is the size of a cache that all sessions share. `host` is the estimated
    host memory of the process. `host_bounds` contains the additional host memory that its settings
    allow, by setting.
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
        """The size of a single session at its full length."""
        return self.positions * self.position_bytes + self.session_state

    @property
    def fixed(self) -> int:
        """The size of the stage without sessions."""
        return self.weights + self.working + self.shared

    @property
    def total(self) -> int:
        """The size of the stage with all of its sessions."""
        return self.fixed + self.sessions * self.session
