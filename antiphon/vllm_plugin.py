"""What antiphon adds to vLLM: the entry point `antiphon` of `vllm.general_plugins`.

vLLM calls it in each of its processes. It makes our models known, by name alone: they are
deployed with the services, and only a thinker asks for one. And it ties the process to the
stage that it works for: vLLM's processes would outlive a stage that was killed, and keep
its accelerator.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

TAPPED_THINKER = "AntiphonTappedQwen3OmniThinker"
MODELS = {TAPPED_THINKER: "services.thinker.vllm_engine.model:TappedThinker"}
"""Class by architecture, in vLLM's form `module:name`."""

STAGE_PID = "ANTIPHON_STAGE_PID"
"""The variable by which a stage tells its process id to the vLLM that it starts."""
GRACE_S = 5.0


def register() -> None:
    """Register every model, and leave with the stage if there is one; may be called again."""
    from vllm import ModelRegistry

    for architecture, model in MODELS.items():
        ModelRegistry.register_model(architecture, model)
    stage = int(os.environ.get(STAGE_PID, "0"))
    if stage not in (0, os.getpid()) and hasattr(os, "pidfd_open"):
        threading.Thread(target=_leave_with, args=(stage,), daemon=True).start()


def _leave_with(stage: int) -> None:
    """Wait for the end of a process, then end this one."""
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(stage)
        select.select([ended], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
