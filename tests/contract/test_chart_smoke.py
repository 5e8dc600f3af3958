"""What `helm test` runs: it waits for the gateway, asks the model, and hears whether it speaks."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from antiphon.values.segment import FinishReason
from antiphon_gateway.keys.key_file import digest_of, new_key
from tests.contract.fake_stages import TALKER, Session
from tests.contract.reading_model import Reader
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SMOKE = Path(__file__).parents[2] / "helm" / "antiphon" / "smoke.py"


async def start(
    url: str, *, seconds: int = 60, output: str = "", key: str = ""
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", SMOKE.read_text(), url, str(seconds), output,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]} | ({"API_KEY": key} if key else {}),
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """The exit status, and all that was said."""
    out, err = await process.communicate()
    return process.returncode, (out + err).decode()


async def test_smoke_hears_an_answer(served: ServedGateway) -> None:
    status, said = await ended(await start(served.url))
    assert status == 0, said
    assert f"serves {MODEL}, stages " in said
    assert "bytes of audio" in said


async def test_smoke_hears_what_is_read_aloud(reader: Reader) -> None:
    status, said = await ended(await start(f"http://{reader[1].http_address}"))
    assert status == 0, said
    assert "said: 'What is antiphon?', " in said


async def test_smoke_waits_until_all_stages_serve_and_tells_what_is_missing() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].set_serving(False)
        assert not await anext(ready)
        process = await start(served.url)
        assert process.stdout is not None
        told = (await process.stdout.readline()).decode()
        assert told.startswith("not ready: "), told
        assert TALKER in told
        await served.fakes[TALKER].set_serving(True)
        status, said = await ended(process)
        assert status == 0, said
        await ready.aclose()


async def test_smoke_fails_when_the_release_is_not_ready_in_time() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].set_serving(False)
        assert not await anext(ready)
        status, said = await ended(await start(served.url, seconds=0))
        assert status == 1
        assert "was not ready in time; it last said: " in said
        # What is served without the stage is enough where only that is wanted.
        status, said = await ended(await start(served.url, output="text"))
        assert (status, "said: " in said) == (0, True), said
        await ready.aclose()


async def mute(session: Session) -> None:
    await session.opened()
    await session.audio(0, 0, FinishReason.STOP)
    await session.report()


async def test_smoke_fails_when_there_is_no_audio(served: ServedGateway) -> None:
    served.fakes["code2wav"].script = mute
    status, said = await ended(await start(served.url))
    assert status == 1
    assert "audio" in said.splitlines()[-1]


async def test_smoke_asks_with_its_key(tmp_path: Path) -> None:
    key = new_key()
    path = tmp_path / "keys"
    path.write_bytes(msgspec.yaml.encode({"keys": [{"name": "smoke", "sha256": digest_of(key)}]}))
    async with serve_gateway(keys_file=str(path)) as served:
        status, said = await ended(await start(served.url))
        assert status == 1
        assert "set gateway.keys.testKey" in said
        status, said = await ended(await start(served.url, key=key))
        assert status == 0, said
