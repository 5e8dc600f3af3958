"""Load tests of Qwen3-TTS: the gateway by either endpoint, and each stage alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_tools.launcher.launcher import Running
from tests.equality.qwen3_tts.cases import REFERENCE_TEXT
from tests.equality.qwen3_tts.tts_asking import Recorded
from tests.equality.read_aloud import check_load

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
    wav = tmp_path / "voice.wav"
    wav.write_bytes(recorded.wav())
    given = ["text_mode=whole"] if service != "code2wav" else []
    if kind == "base":
        given += [f"reference_audio=@{wav}", f"reference_text={REFERENCE_TEXT}"]
    await check_load(speaking[kind], service, given, tmp_path, http=http)
