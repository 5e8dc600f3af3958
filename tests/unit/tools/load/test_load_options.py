"""The command line of a load test: what it means and what it refuses."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path

import numpy as np
import pytest
import soundfile

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.values.options import Option, OptionKind
from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon_tools.launcher.plan import EMBEDDED_MODEL, application_root
from antiphon_tools.load.__main__ import main
from antiphon_tools.load.objectives import Objective, default_objectives
from antiphon_tools.load.options import read_options
from antiphon_tools.load.request_options import to_client, to_json, to_stage
from antiphon_tools.load.target import Target, target_at


def groups(*arguments: str) -> ChunkPolicy:
    """How frames are grouped that a stage is fed."""
    options = read_options(arguments)
    return options.pace.groups(options.content, PIPELINE)


def test_defaults_are_an_open_loop_on_the_embedded_checkpoint_at_real_time() -> None:
    options = read_options(["code2wav"])
    assert (options.load.rate, options.load.sessions) == (1.0, None)
    assert options.model_dir == application_root() / EMBEDDED_MODEL
    assert options.pace.real_time
    assert groups("code2wav") == ChunkPolicy(first=1, ramp=(), steady=1)
    assert default_objectives({"audio"}) == (Objective("ttfa", 1.0), Objective("underrun", 0.1))


def test_frames_are_grouped_as_the_pipeline_does_when_they_come_flat_out() -> None:
    assert groups("code2wav", "--pace", "flat").steady > 1
    assert groups("code2wav", "--chunk-frames", "3") == ChunkPolicy(3, (), 3)
    asked = read_options(["gateway", "--chunk-frames", "1,2,4,8"])
    assert asked.content.chunk_policy == ChunkPolicy(1, (2, 4), 8)


def test_sessions_make_a_closed_loop() -> None:
    options = read_options(["gateway", "--sessions", "3", "--delivery", "whole"])
    assert (options.load.rate, options.load.sessions) == (None, 3)
    assert options.content.delivery is Delivery.WHOLE


def test_text_only_asks_for_and_judges_text() -> None:
    options = read_options(["gateway", "--text-only"])
    assert options.content.outputs == ("text",)
    assert default_objectives(options.content.outputs) == (Objective("ttft", 1.0),)


def test_http_target_of_a_stage_is_refused() -> None:
    with pytest.raises(
        InvalidArgument,
        match="is the HTTP endpoint of a gateway; for the service code2wav, use the host:port",
    ):
        read_options(["code2wav", "--target", "http://h:1"])


@pytest.mark.parametrize(
    ("service", "address", "target", "endpoint"),
    [
        ("gateway", "http://h:1", Target(http_url="http://h:1"), "http"),
        ("gateway", "h:1", Target(grpc_address="h:1"), "grpc"),
        ("talker", "h:1", Target(grpc_address="h:1", stages={"talker": "h:1"}), "grpc"),
    ],
)
def test_target_is_not_started(service: str, address: str, target: Target, endpoint: str) -> None:
    options = read_options([service, "--target", address, "--model", "m"])
    assert options.endpoint == endpoint
    assert target_at(service, address) == target


def test_stage_settings_go_to_the_deployment(tmp_path: Path) -> None:
    config = {"architectures": PIPELINE.architectures}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = read_options(["talker", "--model", str(tmp_path), "--stage", "talker.slots=3"])
    assert options.deployment.stage("talker").slots == 3
    assert options.deployment.model == str(tmp_path)
    assert options.settings()["model"] == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "specify the service to test"),
        (["talker", "--record", "f"], "specify the service to test"),
        (["--record", "f", "--target", "h:1"], "can't be combined with --target"),
        (["talker", "--slo", "speed=1"], "must have the form"),
        (["talker", "--warm-up", "-1"], "must not be negative"),
        (["gateway", "--prompts", "/nowhere/at/all"], "No such file"),
        (["gateway", "--config", "/nowhere/at/all"], "No such file"),
    ],
)
def test_command_that_makes_no_sense_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        read_options(arguments)
    assert main(arguments) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["talker", "--rate", "0"],
        ["talker", "--rate", "nan"],
        ["talker", "--rate", "1", "--sessions", "1"],
        ["talker", "--sessions", "0"],
        ["talker", "--frames", "-1"],
        ["talker", "--chunk-frames", "1,0"],
        ["talker", "--goodput", "95"],
        ["talker", "--max-trials", "two"],
    ],
)
def test_argument_of_no_use_ends_with_the_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_options(arguments)
    assert caught.value.code == 2


def test_service_that_the_checkpoint_has_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        read_options(["nothing"])
    said = "unknown service nothing; use one of: thinker, talker, code2wav, gateway"
    assert said in capsys.readouterr().err


def test_target_where_nothing_listens_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["code2wav", "--target", address]) == 1
        assert main(["gateway", "--target", f"http://{address}"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith(f"error: http://{address}: ")


SPEED = Option("speed", OptionKind.NUMBER, least=0.5, most=2)
VOICE = Option("voice", OptionKind.AUDIO, sample_rate_hz=8000, max_s=1)
MOOD = Option("mood", OptionKind.TEXT)


def wav(path: Path, rate_hz: int = 8000) -> Path:
    soundfile.write(path, np.full((80, 2), 0.5), rate_hz, format="WAV")
    return path


def test_options_are_texts_numbers_and_recordings(tmp_path: Path) -> None:
    path = wav(tmp_path / "voice.wav")
    given = read_options(
        ["gateway", "--option", "mood=7=8", "--option", "speed=1.5", "--option", f"voice=@{path}"]
    ).content.options
    file = path.read_bytes()
    assert to_client(given, ["speed"]) == {"mood": "7=8", "speed": 1.5, "voice": file}
    data = base64.b64encode(file).decode()
    assert to_json(given, ["speed"])["voice"] == {"data": data, "format": "wav"}
    told = to_stage(given, [SPEED, VOICE])
    assert (told.keys(), told["speed"]) == ({"speed", "voice"}, 1.5)
    assert np.asarray(told["voice"]).tolist() == [0.5] * 80
    assert read_options(["gateway", "--option", "mood=7"]).settings()["options"] == ["mood"]


@pytest.mark.parametrize("told", ["mood", "=sad", "voice=@missing.wav"])
def test_what_is_no_option_is_refused(told: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--option {told}"):
        read_options(["gateway", "--option", told])
    with pytest.raises(InvalidArgument, match="once"):
        read_options(["gateway", "--option", "mood=sad", "--option", "mood=glad"])


def test_a_stage_is_given_no_value_of_another_kind_or_rate(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--option speed: must be a number"):
        to_stage({"speed": "fast"}, [SPEED])
    with pytest.raises(InvalidArgument, match=r"--option speed: must be from 0\.5 to 2"):
        to_stage({"speed": "9"}, [SPEED])
    with pytest.raises(InvalidArgument, match="--option mood: must be text"):
        to_stage({"mood": wav(tmp_path / "8k.wav").read_bytes()}, [MOOD, VOICE])
    with pytest.raises(InvalidArgument, match=r"8000 Hz.*16000.*test the gateway"):
        to_stage({"voice": wav(tmp_path / "16k.wav", 16_000).read_bytes()}, [VOICE])
