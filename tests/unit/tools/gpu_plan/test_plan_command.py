"""`antiphon plan`: the memory of a directory's stages, and of a model on the hub."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import FailedPrecondition, InvalidArgument, NotFound
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.stage.memory_plan import CONTEXT_BYTES
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_tools.command import main
from antiphon_tools.gpu_plan.__main__ import main as plan
from antiphon_tools.hub import download
from antiphon_tools.hub.settings import HubSettings, hub_settings
from tests.loopback_hub import LoopbackHub, loopback_hub

VOICE = "acme/Voice-1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "Voice-1"
    build_tiny_tts(folder)
    return folder


def planned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    status = plan([*map(str, arguments), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if told.get("fits", True) else 1)
    return told


def test_a_directory_is_planned_by_stage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(capsys, model, "--sessions", "3", "--context", "100")
    assert (told["model"], told["pipeline"]) == ("Voice-1", "qwen3_tts")
    talker, code2wav = told["stages"]
    assert (talker["role"], code2wav["role"]) == ("talker", "code2wav")
    assert (talker["positions"], talker["sessions"]) == (100, 3)
    assert talker["session_bytes"] == 100 * talker["position_bytes"] > 0
    assert talker["total_bytes"] == talker["weights"] + 3 * talker["session_bytes"]
    assert code2wav["session_bytes"] == code2wav["session_state"] > 0
    assert "gpus" not in told


def test_gpus_take_what_computing_takes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = planned(capsys, model)["stages"][0]
    told = planned(capsys, model, "--gpu-memory", "80")
    talker = told["stages"][0]
    assert talker["dtype"] == "bfloat16"
    assert host["weights"] == 2 * talker["weights"]
    assert (host["working"], talker["working"]) == (0, WORKING_BYTES + CONTEXT_BYTES)
    assert told["gpus"][0]["roles"] == ["talker", "code2wav"]
    assert told["settings"]["stages"]["talker"]["context_limit"] == talker["positions"]
    small = planned(capsys, model, "--gpu-memory", "1")
    assert small["fits"] is False


def test_settings_of_a_deployment_are_planned(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(f"model: {model}\nstages: {{talker: {{slots: 5, context_limit: 128}}}}\n")
    talker = planned(capsys, "--config", file)["stages"][0]
    assert (talker["sessions"], talker["positions"]) == (5, 128)
    talker = planned(capsys, "--config", file, "--stage", "talker.slots=6")["stages"][0]
    assert talker["sessions"] == 6
    with pytest.raises(InvalidArgument, match="exceeds the checkpoint's maximum"):
        plan(["--config", str(file), "--stage", "talker.context_limit=1000000"])


@pytest.fixture
def hub(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    cosyvoice = tmp_path / "cosyvoice"
    build_tiny_cosyvoice(cosyvoice)
    with loopback_hub({VOICE: model, "acme/Torch-1": cosyvoice}) as running:
        made = partial(_settings_of, running)
        monkeypatch.setattr("antiphon_tools.gpu_plan.__main__.hub_settings", made)
        yield running


def _settings_of(hub: LoopbackHub, options: argparse.Namespace) -> HubSettings:
    return replace(hub_settings(options), endpoint=hub.url)


def test_of_a_hub_id_only_headers_are_read(
    hub: LoopbackHub,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The header is longer than the first request asks for.
    monkeypatch.setattr(download, "HEADER_GUESS_BYTES", 64)
    cache = tmp_path / "cache"
    told = planned(capsys, VOICE, "--cache", cache, "--gpu-memory", "80")
    assert told == planned(capsys, model, "--gpu-memory", "80") | {"model": VOICE}
    ranges = [each.range for each in hub.asked if each.path.endswith(".safetensors")]
    assert None not in ranges
    headers = {f"bytes=0-{len(_header(each)) - 1}" for each in model.rglob("*.safetensors")}
    assert {"bytes=0-63", *headers} == set(ranges)
    assert not list(cache.rglob("*.safetensors"))
    hub.asked.clear()
    # A hub that ignores ranges is not read to the end either.
    hub.ranges = False
    assert planned(capsys, VOICE, "--cache", cache, "--gpu-memory", "80") == told


def _header(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: 8 + int.from_bytes(content[:8], "little")]


def test_hub_ids_with_other_weights_are_refused_with_a_remedy(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"acme/Torch-1: .*safetensors files.*download the model"
    ):
        plan(["acme/Torch-1", "--cache", str(tmp_path / "cache")])
    assert not [each for each in hub.asked if each.path.endswith(".pt")]


def test_what_cannot_be_planned_is_refused(
    hub: LoopbackHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFound, match="has no model acme/None"):
        plan(["acme/None", "--cache", str(tmp_path / "cache")])
    assert main(["plan", str(tmp_path / "nothing")]) == 2
    assert "antiphon plan: " in capsys.readouterr().err
    for options in (["--gpu-memory", "0"], ["--sessions", "0"], ["--context", "x"]):
        with pytest.raises(SystemExit, match="2"):
            plan(options)
