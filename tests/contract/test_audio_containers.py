"""Recordings as browsers, phones and programs write them, on every endpoint that takes audio."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

import antiphon
from antiphon.values.options import Option, OptionKind
from antiphon.wire.options import option_to_proto, option_values_from_proto
from tests.contract.fake_stages import INPUT_RATE_HZ, THINKER, FakeStages, Session
from tests.contract.media_files import MUXED, SHORT, muxed, needs_ffmpeg, program
from tests.contract.reading_model import SPEAKER, Reader, open_reader, post
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway
from tests.contract.test_audio_input import ask, heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_S = 90.0
# Of both models a recording is an option; the one that reads aloud speaks with its voice.
SAMPLE = Option("sample", OptionKind.AUDIO, sample_rate_hz=INPUT_RATE_HZ, max_s=MOST_S)
VOICE = Option("reference_audio", OptionKind.AUDIO, sample_rate_hz=INPUT_RATE_HZ, max_s=MOST_S)


class Refused(Exception):
    """A request was not served: the error's code and field, and what it says."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.field, self.message = code, field, message


@dataclass(frozen=True)
class Site:
    """A gateway whose thinker hears and has a recording as an option, and one that reads aloud."""

    served: ServedGateway
    reader: Reader

    async def generate(self, *parts: str | bytes, **fields: Any) -> None:
        """Ask with the SDK, once."""
        address = self.served.gateway.grpc_address
        async with antiphon.AsyncClient(address, retry=antiphon.Retry(attempts=1)) as client:
            try:
                async with client.generate([antiphon.Message.user(*parts)], **fields) as answer:
                    await answer.collect()
            except antiphon.AntiphonError as error:
                raise Refused(error.code.value, error.field, error.message) from error


def _hears_long(fakes: FakeStages) -> None:
    fakes[THINKER].description.max_input_audio_s = MOST_S
    fakes[THINKER].description.options.append(option_to_proto(SAMPLE))


def _clones(fakes: FakeStages) -> None:
    fakes[SPEAKER].description.options.append(option_to_proto(VOICE))


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    names = ("max_body_bytes", "max_fetch_bytes", "max_option_bytes")
    room = dict.fromkeys(names, 64 << 20)
    async with serve_gateway(_hears_long, **room) as served, open_reader(_clones, **room) as reader:
        yield Site(served, reader)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with open_site() as opened:
        yield opened


def _check(response: httpx.Response) -> None:
    if response.status_code != 200:
        error = response.json()["error"]
        raise Refused(error["code"], error["param"], error["message"])


async def _chat(site: Site, file: bytes, name: str) -> np.ndarray:
    _check(await ask(site.served, file, name=name))
    return heard(site.served).recordings[0]


async def _data_url(site: Site, file: bytes, name: str) -> np.ndarray:
    _check(await ask(site.served, file, url=f"audio/{MEDIA.get(name, name)}"))
    return heard(site.served).recordings[0]


async def _transcription(site: Site, file: bytes, name: str) -> np.ndarray:
    files = {"file": (f"said.{name}", file)}
    path = "/v1/audio/transcriptions"
    _check(await site.served.http.post(path, data={"model": MODEL}, files=files))
    return heard(site.served).recordings[0]


async def _option(site: Site, file: bytes, name: str) -> np.ndarray:
    sample = {"data": base64.b64encode(file).decode(), "format": name}
    _check(await site.served.chat(options={"sample": sample}))
    return _given(site.served.fakes[THINKER].sessions[-1], "sample")


async def _ref_audio(site: Site, file: bytes, name: str) -> np.ndarray:
    data = base64.b64encode(file).decode()
    _check(await post(site.reader, input="Read.", ref_audio=data))
    return _given(site.reader[0][SPEAKER].sessions[-1], "reference_audio")


async def _sdk(site: Site, file: bytes, name: str) -> np.ndarray:
    await site.generate(file)
    return heard(site.served).recordings[0]


async def _sdk_option(site: Site, file: bytes, name: str) -> np.ndarray:
    await site.generate("Hi", options={"sample": file})
    return _given(site.served.fakes[THINKER].sessions[-1], "sample")


def _given(session: Session, option: str) -> np.ndarray:
    found = option_values_from_proto(session.segment.options)[option]
    assert isinstance(found, np.ndarray)
    return found


@dataclass(frozen=True)
class Endpoint:
    """Sends a recording and returns what the stage got of it; `field` is where it is sent."""

    send: Callable[[Site, bytes, str], Awaitable[np.ndarray]]
    field: str


ENDPOINTS = {
    "chat": Endpoint(_chat, "messages[0].content[1].input_audio.data"),
    "url": Endpoint(_data_url, "messages[0].content[1].audio_url.url"),
    "transcription": Endpoint(_transcription, "file"),
    "option": Endpoint(_option, "options.sample"),
    "ref_audio": Endpoint(_ref_audio, "ref_audio"),
    "sdk": Endpoint(_sdk, "messages[0].parts[0].audio.wav"),
    "sdk-option": Endpoint(_sdk_option, "options.sample"),
}
NAMES = {"adts": "aac"}
MEDIA = {"mka": "x-matroska", "m4a": "x-m4a", "3gp": "3gpp", "caf": "x-caf"}


def _spread(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Each kind at two endpoints in turn, so that every endpoint gets several kinds."""
    names = list(ENDPOINTS)
    return [
        (kind, names[(at + shift) % len(names)])
        for at, kind in enumerate(kinds)
        for shift in (0, 3)
    ]


# All pairs are short; a long file adds the size, which has one path behind all endpoints.
@needs_ffmpeg()
@pytest.mark.parametrize(
    ("kind", "seconds", "endpoint"),
    [(kind, 1.0, endpoint) for kind in MUXED for endpoint in ENDPOINTS]
    + [
        (kind, 60.0, endpoint)
        for kind, endpoint in _spread(kind for kind in MUXED if kind not in SHORT)
    ],
)
async def test_a_container_is_read(site: Site, kind: str, seconds: float, endpoint: str) -> None:
    name = kind.split("-")[0]
    file = muxed(kind, seconds)
    got = await ENDPOINTS[endpoint].send(site, file, NAMES.get(name, name))
    # Encoders pad what they code, by at most two of their frames.
    assert abs(len(got) - seconds * INPUT_RATE_HZ) <= 0.1 * INPUT_RATE_HZ
    middle = got[len(got) // 4 : len(got) // 2]
    assert abs(np.std(middle) - 0.4 / np.sqrt(2)) < 0.02


# A program that is killed when it has written half a second, one that never ends, and one that
# ends well without having written anything.
KILLED = "#!/bin/sh\nhead -c 32000 /dev/zero\nkill -9 $$\n"
ENDLESS = "#!/bin/sh\nexec cat /dev/zero\n"
SILENT = "#!/bin/sh\nexit 0\n"
FAILURES = {
    "killed": (KILLED, "unavailable", "send it again"),
    "endless": (ENDLESS, "invalid_argument", "can't be decoded as WebM"),
    "silent": (SILENT, "invalid_argument", "has no samples"),
    "missing": ("", "not_implemented", "apt-get install ffmpeg"),
}
WEBM = b"\x1a\x45\xdf\xa3" + bytes(100)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=FAILURES)
async def failing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Site]]:
    """Gateways that find another program in the place of ffmpeg, or none."""
    folder = tmp_path_factory.mktemp("bin")
    text, *_ = FAILURES[request.param]
    if text:
        program(folder, text)
    async with AsyncExitStack() as stack:
        # A gateway looks for the program when it starts. Others start beside this one.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if text else str(folder))
            opened = await stack.enter_async_context(open_site())
        yield request.param, opened


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_decoder_that_fails_is_an_error_of_the_field(
    failing: tuple[str, Site], endpoint: str
) -> None:
    failure, site = failing
    _, code, says = FAILURES[failure]
    with pytest.raises(Refused) as error:
        await ENDPOINTS[endpoint].send(site, WEBM, "webm")
    assert error.value.code == code
    assert says in error.value.message
    if code != "unavailable":
        assert error.value.field == ENDPOINTS[endpoint].field
    # Nothing of the recording came to a stage.
    assert not any(stage.sessions for stage in site.served.fakes.by_role.values())
    assert not site.reader[0][SPEAKER].sessions


# Live streams and pipes: no header of theirs has a length.
ENDLESS_FILES = ("webm-live", "mp4-fragmented", "adts", "wav-from-a-pipe")


@needs_ffmpeg()
@pytest.mark.parametrize(
    ("kind", "endpoint"),
    # The first has its turn at every endpoint, whose field the error names.
    [(ENDLESS_FILES[0], endpoint) for endpoint in ENDPOINTS] + _spread(ENDLESS_FILES[1:]),
)
async def test_a_file_without_a_length_may_be_too_long(
    site: Site, kind: str, endpoint: str
) -> None:
    name = kind.split("-")[0]
    with pytest.raises(Refused) as error:
        await ENDPOINTS[endpoint].send(site, muxed(kind, MOST_S + 5), NAMES.get(name, name))
    assert (error.value.code, error.value.field) == ("invalid_argument", ENDPOINTS[endpoint].field)
    assert "than 90 seconds" in error.value.message
