"""What antiphon adds to vLLM: the entry point `antiphon` of `vllm.general_plugins`.

vLLM calls it in each of its processes. It makes the family's models known, by name alone, so
that each is imported only where it is built. And it ties the process to the stage that
started it: vLLM's processes would outlive a stage that was killed, and keep its accelerator.

No installed package declares the entry point, so no other vLLM of the environment has it: its
metadata lie in `plugin_path`, which a stage adds to the import path of its own process and of
those that it starts (`announce`).
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
"""The variable by which a stage tells its process id to the vLLM that it starts."""
MODELS = "ANTIPHON_VLLM_MODELS"
"""The variable by which it tells the family's models: JSON, see `announce`."""
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
    """Let the vLLM of this process and of those that it starts find the entry point.

    `models` has the class of each architecture, in vLLM's form `module:name`. `search` is the
    import path, `sys.path` if None: as it is now, for a module may have put another list
    there, as OpenCV does. To be called before vLLM is imported. Changes `PYTHONPATH`, which
    processes inherit, and the import path, which processes that are spawned take over; and
    `VLLM_PLUGINS` where the operator has chosen, since a stage cannot do without.
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
    """Register every model, and leave with the stage if there is one; may be called again."""
    from vllm import ModelRegistry

    for architecture, model in json.loads(os.environ.get(MODELS, "{}")).items():
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
