"""Defines the duration of steps, which corresponds to that of an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.process import ServiceProcess

STEP_S = MappingProxyType({"thinker": 0.030, "talker": 0.050, "code2wav": 0.030})
"""The duration of a step. `SESSION_S` is added for each session that generates output in the
step.
"""
SESSION_S = 0.001
SLOTS = 8


class PacedLauncher(Launcher):
    """Starts stages whose steps have the duration in `STEP_S`."""

    async def _start_process(self, name: str, argv: Sequence[str]) -> ServiceProcess:
        if argv[0] == "antiphon_services":
            argv = ("benchmarks.overload.paced_stage", *argv[1:])
        return await super()._start_process(name, argv)
