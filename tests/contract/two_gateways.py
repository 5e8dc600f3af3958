"""Two gateways that can open each other's conversations, of which the first gets lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.contract.fake_stages import CODE2WAV, FRAMES, FakeStages, Session
from tests.contract.served_gateway import ServedGateway, serve_gateway

LONG_S = 120.0
KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4


async def hang(session: Session) -> None:
    """A code2wav that makes the first piece alone."""
    await session.opened()
    await session.audio(FRAMES[0], 0)
    await asyncio.Event().wait()


def hanging(fakes: FakeStages) -> None:
    fakes[CODE2WAV].script = hang


class Two:
    """Two gateways behind one name, of which the first can be stopped at once."""

    def __init__(
        self, first: ServedGateway, second: ServedGateway, leaving: AsyncExitStack
    ) -> None:
        self.first, self.second = first, second
        self.lose_first = leaving.aclose
        self.addresses = f"ipv4:{first.gateway.grpc_address},{second.gateway.grpc_address}"


@asynccontextmanager
async def two_gateways(path: Path, keys: tuple[str, str] = (KEY, KEY)) -> AsyncIterator[Two]:
    files = [path / name for name in ("first", "second")]
    for file, key in zip(files, keys, strict=True):
        file.write_text(key)
    async with (
        asyncio.timeout(LONG_S),
        AsyncExitStack() as leaving,
        serve_gateway(resume_key_file=str(files[1])) as second,
    ):
        first = await leaving.enter_async_context(
            serve_gateway(hanging, resume_key_file=str(files[0]), drain_s=0.01)
        )
        yield Two(first, second, leaving)
