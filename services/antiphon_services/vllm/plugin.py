"""The vLLM plugin: entry point `antiphon` of `vllm.general_plugins`.

vLLM calls it in each of its processes. It registers the family's models by name, so that each is
imported only where it is built. It also ties the process to the stage that started it; otherwise
vLLM's processes would survive a killed stage and keep its accelerator.

No installed package declares the entry point, so other uses of vLLM in the environment are
unaffected. Its metadata are in `plugin_path`, which a stage adds to the import path of its process
and of those it starts (`announce`).
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
"""Variable with the stage's process id, for vLLM's processes."""
MODELS = "ANTIPHON_VLLM_MODELS"
"""Variable with the family's models as JSON, see `announce`."""
GRACE_S = 5.0

_NAME = "antiphon"
_CHOSEN = "VLLM_PLUGINS"
_METADATA = Path(__file__).parent / "plugin_path"
_ROOTS = (Path(__file__).parents[2], Path(antiphon.__file__).parents[1])
"""The directories that this package and the library are imported from."""


def announce(
    models: Mapping[str, str],
    environment: MutableMapping[str, str] = os.environ,
    search: list[str] | None = None,
) -> None:
    """Make the entry point visible to vLLM in this process and in those that it starts.

    `models` has the class of each architecture, in vLLM's form `module:name`. `search` is the
    import path, by default the current `sys.path`, because a module may have replaced the list, as
    OpenCV does. Call it before importing vLLM. Changes `PYTHONPATH`, which processes inherit, the
    import path, which spawned processes take over, and `VLLM_PLUGINS` if it is set, since a stage
    needs the plugin.
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
    """Register every model, and exit with the stage if there is one. Idempotent."""
    from vllm import ModelRegistry

    for architecture, model in json.loads(os.environ.get(MODELS, "{}")).items():
        ModelRegistry.register_model(architecture, model)
    stage = int(os.environ.get(STAGE_PID, "0"))
    if stage not in (0, os.getpid()) and hasattr(os, "pidfd_open"):
        threading.Thread(target=_leave_with, args=(stage,), daemon=True).start()


def _leave_with(stage: int) -> None:
    """Wait until the stage's process ends, then end this one."""
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(stage)
        select.select([ended], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
