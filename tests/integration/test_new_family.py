"""A family that lives in one file and one folder elsewhere, through everything that is shared.

`tests/families/carillon`: audio alone, two stages, options and sampling of its own, and a second
stage that is primed and looks ahead. Nothing outside its files names it.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import soundfile

import antiphon
from antiphon import SamplingRequest
from antiphon.values.sampling import Sampling
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

FAMILY = Path(__file__).parents[1] / "families" / "carillon"
TEXT = "Ring out, wild bells!"
LETTERS = [{"role": "user", "content": TEXT}]
SAMPLE_RATE_HZ, SAMPLES_PER_FRAME = 8000, 80
GREEDY = Sampling(
    temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1000
)


@pytest.fixture(scope="module", autouse=True)
def carillon() -> Iterator[Any]:
    """The family's package, found here and in every process that is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAMILY))
        patch.setenv("PYTHONPATH", ":".join((str(FAMILY), *sys.path[1:])))
        yield importlib.import_module("carillon")
    for name in [name for name in sys.modules if name.startswith("carillon")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "bells"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["CarillonForRinging"]}')
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(model: Path) -> AsyncIterator[Running]:
    async with Launcher(local_deployment(model)) as running:
        yield running


@pytest.fixture(scope="module")
def echo() -> tuple[bytes, npt.NDArray[np.float32]]:
    """A recording as a WAV file, and its samples."""
    samples = np.sin(np.arange(20 * SAMPLES_PER_FRAME) / 7).astype(np.float32)
    samples = np.round(samples * 32767).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue(), (samples / np.float32(32768)).astype(np.float32)


def rung(
    sampling: Sampling = GREEDY,
    mood: str = "major",
    tempo: float = 1,
    echo: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.int16]:
    """What must be heard of `TEXT`, at once and without a runtime: 16-bit samples."""
    score = importlib.import_module("carillon_stages.composer.score")
    tower = importlib.import_module("carillon_stages.ringer.bells").Tower()
    primes = score.strokes_of(echo) if echo is not None else np.empty((0, 2), np.uint16)
    strokes = np.concatenate([primes, score.compose(TEXT, sampling, mood, tempo)])
    following = [*strokes[1:], strokes[-1]]
    sounds = [tower.ring(*pair) for pair in zip(strokes, following, strict=True)]
    samples = np.concatenate(sounds[len(primes) :])
    return np.rint(samples * 32767).astype(np.int16)


async def chat(running: Running, **fields: object) -> httpx.Response:
    body = {
        "model": "bells",
        "messages": LETTERS,
        "modalities": ["audio"],
        "audio": {"format": "pcm16"},
        **fields,
    }
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        return await http.post("/v1/chat/completions", json=body)


def heard(response: httpx.Response) -> npt.NDArray[np.int16]:
    assert response.status_code == 200, response.text
    audio = response.json()["choices"][0]["message"]["audio"]["data"]
    return np.frombuffer(base64.b64decode(audio), "<i2")


async def test_family_is_heard_over_http(running: Running) -> None:
    np.testing.assert_array_equal(heard(await chat(running)), rung())


async def test_family_is_heard_in_a_format_that_loses_nothing(running: Running) -> None:
    answer = (await chat(running, audio={"format": "flac"})).json()["choices"][0]["message"]
    file = io.BytesIO(base64.b64decode(answer["audio"]["data"]))
    np.testing.assert_array_equal(soundfile.read(file, dtype="int16")[0], rung())


async def test_familys_options_arrive_over_http(
    running: Running, echo: tuple[bytes, npt.NDArray[np.float32]]
) -> None:
    wav, samples = echo
    data = {"data": base64.b64encode(wav).decode(), "format": "wav"}
    options = {"mood": "minor", "tempo": 3, "echo": data}
    told = heard(await chat(running, options=options))
    np.testing.assert_array_equal(told, rung(mood="minor", tempo=3, echo=samples))
    # Priming is heard: the same without it is another sound, of the same length.
    dry = rung(mood="minor", tempo=3)
    assert len(dry) == len(told)
    assert (dry != told).any()


async def test_familys_options_and_sampling_arrive_over_grpc(
    running: Running, echo: tuple[bytes, npt.NDArray[np.float32]], tmp_path: Path
) -> None:
    wav, samples = echo
    path = tmp_path / "echo.wav"
    path.write_bytes(wav)
    async with antiphon.AsyncClient(running.grpc_address) as client:
        (info,) = (await client.server_info()).models
        assert {option.name for option in info.options} == {"mood", "tempo", "echo"}
        assert list(info.output_kinds) == ["audio"]
        reply = await client.generate(TEXT).collect()
        np.testing.assert_array_equal(np.frombuffer(reply.pcm16, "<i2"), rung())
        drawn = client.generate(
            TEXT,
            temperature=0.5,
            seed=5,
            max_tokens=9,
            sampling={"": SamplingRequest(top_k=40)},
            options={"mood": "minor", "echo": path},
        )
        expected = Sampling(
            temperature=0.5, top_k=40, top_p=1.0, repetition_penalty=1.0, seed=5, max_tokens=9
        ).keyed("composer", 0)
        np.testing.assert_array_equal(
            np.frombuffer((await drawn.collect()).pcm16, "<i2"),
            rung(expected, mood="minor", echo=samples),
        )


async def test_family_reads_aloud_at_the_speech_endpoint(running: Running) -> None:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        body = {"model": "bells", "input": TEXT, "response_format": "pcm"}
        response = await http.post(
            "/v1/audio/speech",
            json={**body, "instructions": "minor", "options": {"tempo": 2}},
        )
        packed = await http.post("/v1/audio/speech", json={**body, "response_format": "mp3"})
    assert response.status_code == 200, response.text
    wanted = rung(mood="minor", tempo=2)
    np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), wanted)
    samples, rate_hz = soundfile.read(io.BytesIO(packed.content))
    assert rate_hz == SAMPLE_RATE_HZ
    assert 0 <= len(samples) - len(rung()) < 4 * 576


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"mood": "sad"}}, "options.mood"),
        ({"options": {"tempo": 5}}, "options.tempo"),
        ({"options": {"volume": 1}}, "options.volume"),
        ({"options": {"echo": "loud"}}, "options.echo"),
        ({"modalities": ["text"], "audio": None}, "modalities"),
        ({"ringer": {"top_k": 3}}, "ringer"),
    ],
)
async def test_what_the_family_has_not_is_refused(
    running: Running, fields: Mapping[str, object], param: str
) -> None:
    response = await chat(running, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("service", ["gateway", "composer", "ringer"])
async def test_family_is_loaded(
    running: Running, model: Path, service: str, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_tools.load", service, "--model", str(model),
        "--seconds", "1", "--warm-up", "0.2", "--sessions", "2", "--frames", "8",
        "--json", str(result), "--slo", "duration=60",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    requests = json.loads(result.read_text())["requests"]
    assert requests["succeeded"] == requests["due"] > 0
