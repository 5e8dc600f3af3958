"""Who sees the plugin of vLLM, and that vLLM's processes end with their stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon_services.vllm.plugin import MODELS, announce, register

TIMEOUT_S = 120.0
SEEN = """
from importlib.metadata import entry_points
for each in entry_points(group="vllm.general_plugins"):
    if each.value.startswith("antiphon_services."):
        print(each.name, each.load().__module__)
"""


REPLACES_PATH = """
import sys
from antiphon_services.vllm.plugin import announce
sys.path = list(sys.path)
announce({})
"""

LEAVES = """
import sys
from antiphon_services.vllm.plugin import _leave_with
_leave_with(int(sys.argv[1]))
"""


def plugins_seen(environment: dict[str, str], directory: Path) -> list[str]:
    """Our plugins, as vLLM looks for them, of a process that is started in `directory`."""
    command = [sys.executable, "-c", SEEN]
    seen = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, check=True
    )
    return seen.stdout.splitlines()


def test_plugin_is_seen_by_processes_of_a_stage_and_by_no_other(tmp_path: Path) -> None:
    # An engine in this process has announced itself there.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert plugins_seen(environment, tmp_path) == []
    announce({}, environment, [])
    assert plugins_seen(environment, tmp_path) == [f"antiphon {register.__module__}"]


def test_plugin_is_seen_when_a_module_has_replaced_the_import_path(tmp_path: Path) -> None:
    """OpenCV does so when it is imported, and processes that are spawned take the new one over."""
    command = [sys.executable, "-c", REPLACES_PATH + SEEN]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[4])}
    seen = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert seen.stdout.splitlines() == [f"antiphon {register.__module__}"]


def test_plugin_is_told_the_models_of_the_family_that_was_announced_last() -> None:
    environment: dict[str, str] = {}
    for models in ({"Theirs": "a.b:C"}, {"Ours": "d.e:F"}):
        announce(models, environment, [])
        assert json.loads(environment[MODELS]) == models


def test_plugin_is_announced_once_and_behind_what_the_operator_has() -> None:
    environment, search = {"PYTHONPATH": "/theirs"}, ["/mine"]
    for _ in range(2):
        announce({}, environment, search)
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/theirs", *search[1:]]
    assert search[0] == "/mine"
    assert len(search) == len(set(search)) == 4


@pytest.mark.parametrize(
    ("chosen", "loaded"),
    [("theirs", "theirs,antiphon"), ("antiphon", "antiphon"), ("", "antiphon")],
)
def test_plugin_is_loaded_beside_those_that_the_operator_chose(chosen: str, loaded: str) -> None:
    environment = {"VLLM_PLUGINS": chosen}
    announce({}, environment, [])
    assert environment["VLLM_PLUGINS"] == loaded


def test_all_plugins_are_loaded_when_the_operator_chose_none() -> None:
    environment: dict[str, str] = {}
    announce({}, environment, [])
    assert "VLLM_PLUGINS" not in environment


def test_process_ends_when_its_stage_is_killed() -> None:
    """Nothing but the stage's death can end the other process: it reads from a pipe."""
    stage = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    worker = subprocess.Popen([sys.executable, "-c", LEAVES, str(stage.pid)])
    try:
        assert worker.poll() is None
        stage.kill()
        assert worker.wait(TIMEOUT_S) == -signal.SIGTERM
    finally:
        for process in (stage, worker):
            process.kill()
            process.communicate()
