"""The vLLM plugin. It is the entry point `antiphon` in the group `vllm.general_plugins`.

vLLM calls the plugin in each of its processes. The plugin registers the family's models by name, so
that each model is only imported where it is built. It also makes each process exit together with
the stage that started it. Otherwise, if a stage were killed, vLLM's processes would keep running
and would continue to occupy the accelerator.

No installed package declares the entry point, so it doesn't affect other uses of vLLM in the same
environment. Its metadata is in `plugin_path`, a directory that a stage adds to the import path of
its own process and of all processes that it starts (`announce`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import antiphon

STAGE_PID = "ANTIPHON_STAGE_PID"
"""The environment variable that passes the stage's process ID to vLLM's processes."""
MODELS = "ANTIPHON_VLLM_MODELS"
"""The environment variable that contains the family's models as JSON. See `announce`."""
GRACE_S = 5.0

_NAME = "antiphon"
_CHOSEN = "VLLM_PLUGINS"
_METADATA = Path(__file__).parent / "plugin_path"
_ROOTS = (Path(__file__).parents[2], Path(antiphon.__file__).parents[1])
"""The directories from which this package and the library are imported."""


def announce(
    models: Mapping[str, str],
    environment: MutableMapping[str, str] = os.environ,
    search: list[str] | None = None,
) -> None:
    """Make the entry point visible to vLLM in this process and in all processes that it starts.

    `models` maps each architecture to its class, in vLLM's form `module:name`. `search` is the
    import path. It defaults to the value of `sys.path` at the time of the call, because a module
    may have replaced the list, as OpenCV does.

    This function must be called before vLLM is imported. It changes `PYTHONPATH`, which child
    processes inherit, and the import path, which spawned processes adopt. If `VLLM_PLUGINS` is set,
    it is changed as well, because the stage depends on the plugin.
    """
    places = [str(_METADATA), *map(str, _ROOTS)]
    search = sys.path if search is None else search
    search.extend(place for place in places if place not in search)
    inherited = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    inherited.extend(place for place in places if place not in inherited)
    environment["PYTHONPATH"] = os.pathsep.join(inherited)
    if _CHOSEN in environment:
        chosen = [each for each in environment[_CHOSEN].split(",") if each]
        environment[_CHOSEN] = ",".join(dict.fromkeys([*chosen, _NAME]))
    environment[STAGE_PID] = str(os.getpid())
    environment[MODELS] = json.dumps(dict(models))


def register() -> None:
    """Register every model. If a stage started this process, also arrange for the process to exit
    together with it. It is safe to call this more than once.
    """
    from vllm import ModelRegistry

    for architecture, model in json.loads(os.environ.get(MODELS, "{}")).items():
        ModelRegistry.register_model(architecture, model)
    stage = int(os.environ.get(STAGE_PID, "0"))
    if stage not in (0, os.getpid()) and hasattr(os, "pidfd_open"):
        threading.Thread(target=_leave_with, args=(stage,), daemon=True).start()


def _leave_with(stage: int) -> None:
    """Wait until the stage's process ends and then end this process."""
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(stage)
        select.select([ended], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
