"""Recordings in JSON as programs write them: forms of base64, data URLs, names of formats."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from antiphon.values.conversation import from_tensors
from tests.contract.fake_stages import INPUT_RATE_HZ, THINKER
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAID = np.random.default_rng(0).uniform(-1, 1, 1_001).astype(np.float32)


def file_of(format_: str = "WAV", subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, SAID, INPUT_RATE_HZ, format=format_, subtype=subtype)
    return file.getvalue()


WAV = file_of()
PLAIN = base64.b64encode(WAV).decode()
# Both alphabets differ in it, and it has padding.
assert {"+", "/", "="} <= set(PLAIN)

FORMS: dict[str, str] = {
    "openai-python": PLAIN,
    "Qwen's SDKs, Qwen-MM-Plugins: a data URL without a type": f"data:;base64,{PLAIN}",
    "browsers' FileReader: a data URL": f"data:audio/wav;base64,{PLAIN}",
    "MediaRecorder: a data URL with parameters": f"data:audio/wav;codecs=1;base64,{PLAIN}",
    "a data URL of an unknown file": f"DATA:application/octet-stream;BASE64,{PLAIN}",
    "base64 of coreutils: lines": "\n".join(textwrap.wrap(PLAIN, 76)) + "\n",
    "openssl, MIME: lines that end with CRLF": "\r\n".join(textwrap.wrap(PLAIN, 64)) + "\r\n",
    "shells: a trailing newline": PLAIN + "\n",
    "JWT libraries, Go's RawURLEncoding": base64.urlsafe_b64encode(WAV).decode().rstrip("="),
    "Java's getUrlEncoder": base64.urlsafe_b64encode(WAV).decode(),
    "without padding": PLAIN.rstrip("="),
    "a data URL with lines": "data:audio/x-wav;base64," + "\n".join(textwrap.wrap(PLAIN, 76)),
}


def input_audio(data: str, **named: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, **named}}


def audio_url(data: str) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}}


async def check_heard(served: ServedGateway, part: dict[str, Any]) -> None:
    answer = await served.chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 200, answer.text
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    (recording,) = from_tensors(chunk.tensors).recordings
    assert np.array_equal(recording, SAID)


@pytest.mark.parametrize("sender", FORMS)
async def test_base64_is_read_as_programs_write_it(served: ServedGateway, sender: str) -> None:
    await check_heard(served, input_audio(FORMS[sender], format="wav"))


@pytest.mark.parametrize("sender", [each for each in FORMS if "data URL" not in each])
async def test_base64_in_a_data_url_is_read_as_programs_write_it(
    served: ServedGateway, sender: str
) -> None:
    await check_heard(served, audio_url(FORMS[sender]))


@pytest.mark.parametrize(
    "named",
    [
        {"format": "WAV"},
        {"format": "Wav"},
        {"format": " wav "},
        {"format": "audio/wav"},
        {"format": "audio/x-wav"},
        {"format": "wave"},
        {"format": ""},
        {"format": None},
        {},
    ],
    ids=json.dumps,
)
async def test_a_format_is_known_however_it_is_written(
    served: ServedGateway, named: dict[str, Any]
) -> None:
    await check_heard(served, input_audio(PLAIN, **named))


WRONG: dict[str, Callable[[], str]] = {
    "a character of neither alphabet": lambda: PLAIN[:100] + "!" + PLAIN[100:],
    "a length that no bytes have": lambda: PLAIN.rstrip("=")[: 4 * 25 + 1],
    "padding in the middle": lambda: PLAIN[:8] + "==" + PLAIN[8:],
    "a data URL without base64": lambda: "data:audio/wav,RIFF",
    "a data URL without data": lambda: "data:audio/wav;base64",
    "nothing": lambda: "",
    "nothing but lines": lambda: "\n\n",
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_no_base64_is_refused_with_its_field(
    served: ServedGateway, what: str
) -> None:
    part = input_audio(WRONG[what](), format="wav")
    answer = await served.chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "messages[0].content[0].input_audio.data"


async def test_a_url_in_the_place_of_data_is_treated_as_one(served: ServedGateway) -> None:
    """As DashScope takes it; whether it is fetched is the deployment's choice."""
    part = input_audio("https://example.invalid/said.wav", format="wav")
    answer = await served.chat(messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert "gateway.fetch.urls" in answer.json()["error"]["message"]


async def test_a_format_that_is_not_read_is_refused_with_those_that_are(
    served: ServedGateway,
) -> None:
    part = input_audio(PLAIN, format="WMA")
    answer = await served.chat(messages=[{"role": "user", "content": [part]}])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == "messages[0].content[0].input_audio.format"
    assert "wav" in error["message"]
