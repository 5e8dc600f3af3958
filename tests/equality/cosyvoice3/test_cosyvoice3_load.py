"""Load tests of CosyVoice3: the gateway by either endpoint, and each stage alone, at a rate."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from cosy_asking import wav

from tests.equality.cosyvoice3.cosy_cases import INSTRUCTION, REFERENCE_TEXT, reference_audio
from tools.launcher.launcher import Running

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CLONE = ["reference_audio=@{wav}", f"reference_text={REFERENCE_TEXT}"]
INSTRUCTED = ["reference_audio=@{wav}", f"instruction={INSTRUCTION}"]


@pytest.mark.parametrize(
    ("name", "service", "http", "options"),
    [
        ("voices", "gateway", True, []),
        ("clones", "gateway", True, CLONE),
        ("clones", "gateway", False, INSTRUCTED),
        ("voices", "talker", False, []),
        ("clones", "talker", False, CLONE),
        ("clones", "code2wav", False, []),
    ],
)
@pytest.mark.parametrize("pace", [["--sessions", "2"], ["--rate", "4"]], ids=["closed", "rate"])
async def test_every_service_is_loaded(
    name: str,
    service: str,
    http: bool,
    options: list[str],
    pace: list[str],
    speaking: dict[str, Running],
    tmp_path: Path,
) -> None:
    running, result, clip = speaking[name], tmp_path / "result.json", tmp_path / "voice.wav"
    clip.write_bytes(wav(reference_audio()))
    target = running.http_url if http else running.processes[service].address
    if service == "gateway" and not http:
        target = running.grpc_address
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.load", service, "--target", target,
        "--seconds", "1", "--warm-up", "0", *pace, "--frames", "8",
        "--json", str(result), "--slo", "duration=60",
        *(word for option in options for word in ("--option", option.format(wav=clip))),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    requests = json.loads(result.read_text())["requests"]
    assert requests["succeeded"] == requests["due"] > 0
