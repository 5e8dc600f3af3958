"""Launches services whose processes are forked from a server that many deployments share.

Importing torch and transformers takes four seconds of CPU time, while starting the rest of a stage
takes less than a second. Starting from scratch is still covered by tests that don't use this module
(`test_failed_start`, `test_restart`, and one deployment of each other model family).
"""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from antiphon.deployment.schema import Deployment
from antiphon_tools.launcher.forking import ForkServer
from antiphon_tools.launcher.launcher import STAGE_SERVER, Launcher
from antiphon_tools.launcher.plan import application_root

ROLES = ("thinker", "talker", "code2wav")
FAMILY = "antiphon_services.qwen3_omni"


@cache
def shared_fork_server() -> ForkServer:
    """Return a fork server that has imported everything that Qwen3-Omni's stages need. It ends
    together with the current process.
    """
    loaders = [f"{FAMILY}.{role}.load" for role in ROLES]
    # If other work runs at the same time, such as tests, additional threads only cost time.
    threads = {"OMP_NUM_THREADS": "1"}
    server = ForkServer(application_root(), [STAGE_SERVER, *loaders], threads)
    atexit.register(server.close)
    return server


class WarmLauncher(Launcher):
    """Forks stages from a shared server, except for stages that can't be forked. `engine_nice` is
    ignored.

    If other work runs at the same time, such as tests, an engine with a lower priority
    (`with_priorities`) would only get a tenth of a core.
    """

    def __init__(self, deployment: Path | Deployment, **options: Any) -> None:
        super().__init__(deployment, **options)
        self._deployment = on_equal_terms(self._deployment)
        self._fork_server = shared_fork_server()


def on_equal_terms(deployment: Deployment) -> Deployment:
    """Return the deployment with the same priority for all engines."""
    stages = {role: replace(stage, engine_nice=0) for role, stage in deployment.stages.items()}
    return replace(deployment, stages=stages)
