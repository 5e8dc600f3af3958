"""vLLM's processes end with the stage that they work for."""

from __future__ import annotations

import signal
import subprocess
import sys

TIMEOUT_S = 60.0


def test_process_ends_when_its_stage_is_killed() -> None:
    """Nothing but the stage's death can end the other process: it reads from a pipe."""
    stage = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    leaves = (
        "import sys; from antiphon.vllm_plugin import _leave_with; _leave_with(int(sys.argv[1]))"
    )
    worker = subprocess.Popen([sys.executable, "-c", leaves, str(stage.pid)])
    try:
        assert worker.poll() is None
        stage.kill()
        assert worker.wait(TIMEOUT_S) == -signal.SIGTERM
    finally:
        for process in (stage, worker):
            process.kill()
            process.communicate()
