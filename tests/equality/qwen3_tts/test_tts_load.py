"""Load tests of Qwen3-TTS: the gateway by either door, and each stage alone."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from tts_asking import Recorded

from tests.equality.qwen3_tts.cases import REFERENCE_TEXT
from tools.launcher.launcher import Running

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize(
    ("kind", "service", "http"),
    [
        ("custom_voice", "gateway", True),
        ("custom_voice", "talker", False),
        ("custom_voice", "code2wav", False),
        ("base", "gateway", True),
        ("base", "gateway", False),
        ("base", "talker", False),
    ],
)
async def test_every_service_is_loaded(
    kind: str,
    service: str,
    http: bool,
    speaking: dict[str, Running],
    recorded: Recorded,
    tmp_path: Path,
) -> None:
    running, result, wav = speaking[kind], tmp_path / "result.json", tmp_path / "voice.wav"
    wav.write_bytes(recorded.wav())
    target = running.http_url if http else running.processes[service].address
    if service == "gateway" and not http:
        target = running.grpc_address
    given = ["text_mode=whole"] if service != "code2wav" else []
    if kind == "base":
        given += [f"reference_audio=@{wav}", f"reference_text={REFERENCE_TEXT}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.load", service, "--target", target,
        "--seconds", "1", "--warm-up", "0", "--sessions", "2", "--frames", "8",
        "--json", str(result), "--slo", "duration=60",
        *(word for option in given for word in ("--option", option)),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    requests = json.loads(result.read_text())["requests"]
    assert requests["succeeded"] == requests["due"] > 0
