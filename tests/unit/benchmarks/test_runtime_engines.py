from __future__ import annotations

import base64
import io

import httpx
import pytest
import soundfile

from antiphon.pipelines.qwen3_omni import PIPELINE
from benchmarks.runtime.engines import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, load
from benchmarks.runtime.gateway import gateway_without_models

FRAMES = 5
FRAME_S = 0.08


def test_engines_declare_the_rate_at_which_their_frames_last_80_ms() -> None:
    for role in PIPELINE.roles:
        facts = load(role, FRAMES).facts
        assert facts.sample_rate_hz == SAMPLE_RATE_HZ
        assert facts.samples_per_frame == SAMPLES_PER_FRAME == FRAME_S * facts.sample_rate_hz


@pytest.mark.parametrize("container", ["wav", "flac", "opus"])
async def test_http_answer_lasts_as_long_as_its_frames(container: str) -> None:
    """An engine that declares another rate has its samples resampled, which costs the gateway."""
    async with (
        gateway_without_models(FRAMES, slots=2) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=240) as http,
    ):
        response = await http.post(
            "/v1/chat/completions",
            json={
                "model": "fake",
                "modalities": ["text", "audio"],
                "audio": {"format": container, "voice": "one"},
                "messages": [{"role": "user", "content": "Hello"}],
            },
        )
        assert response.status_code == 200, response.text
        audio = base64.b64decode(response.json()["choices"][0]["message"]["audio"]["data"])
    samples, rate_hz = soundfile.read(io.BytesIO(audio))
    assert len(samples) == round(FRAMES * FRAME_S * rate_hz)
