"""Load tests of CosyVoice3: the gateway by either endpoint, and each stage alone, at a rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_tools.launcher.launcher import Running
from tests.equality.cosyvoice3.cosy_cases import INSTRUCTION, REFERENCE_TEXT, reference_audio
from tests.equality.read_aloud import check_load, wav

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
    clip = tmp_path / "voice.wav"
    clip.write_bytes(wav(reference_audio()))
    given = [option.format(wav=clip) for option in options]
    await check_load(speaking[name], service, given, tmp_path, http=http, pace=pace)
