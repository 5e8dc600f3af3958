"""Load tests of Ming TTS: the gateway by either endpoint, and each stage alone, at a rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_tools.launcher.launcher import Running
from tests.equality.ming_tts.ming_asking import CLIP_FILE
from tests.equality.ming_tts.ming_cases import REFERENCE_TEXT, STYLE
from tests.equality.read_aloud import check_load

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

CLONE = ["reference_audio=@{wav}", f"reference_text={REFERENCE_TEXT}"]
DESCRIBED = [f"instruction={STYLE}"]


@pytest.mark.parametrize(
    ("service", "http", "options"),
    [
        ("gateway", True, []),
        ("gateway", True, CLONE),
        ("gateway", False, DESCRIBED),
        ("talker", False, []),
        ("talker", False, CLONE),
        ("code2wav", False, []),
    ],
)
@pytest.mark.parametrize("pace", [["--sessions", "2"], ["--rate", "2"]], ids=["closed", "rate"])
async def test_every_service_is_loaded(
    service: str,
    http: bool,
    options: list[str],
    pace: list[str],
    speaking: dict[str, Running],
    tmp_path: Path,
) -> None:
    clip = tmp_path / "voice.wav"
    clip.write_bytes(CLIP_FILE)
    given = [option.format(wav=clip) for option in options]
    await check_load(speaking["windowed"], service, given, tmp_path, http=http, pace=pace)
