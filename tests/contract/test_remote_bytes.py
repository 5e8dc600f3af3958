"""Bytes of files that requests name by URL: they take room from the share of uploads."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import ResourceExhausted
from antiphon_gateway.admission.byte_budget import SHARES, SILENT_S, ByteBudget, Holder
from antiphon_gateway.media.remote import RemoteUrl, UrlFetcher
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.served_gateway import serve_gateway
from tests.contract.test_remote_urls import FETCHES, FIELD, FILE, ask, fetch, found, open_site

pytestmark = pytest.mark.asyncio(loop_scope="session")


class WatchedBudget(ByteBudget):
    """A budget whose clock a test moves, and that can be waited for."""

    def __init__(self, limit_bytes: int) -> None:
        self.now_s = 0.0
        self._grown = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: list[Holder] = []
        super().__init__(limit_bytes, count=self.refused.append, clock=lambda: self.now_s)

    def change(self, holder: Holder, more: int) -> None:
        super().change(holder, more)
        task = asyncio.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._grown:
            self._grown.notify_all()

    async def wait_held(self, size: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: self.held_bytes >= size)


async def test_bytes_of_responses_take_room_from_the_share_of_uploads() -> None:
    half = 40_000
    budget = WatchedBudget(int((2 * half + 10_000) / SHARES[Holder.UPLOADS]))
    config = gateway_config(**FETCHES)
    async with open_site() as site:
        site.pages |= {
            "/stalls": lambda: found(bytes(2 * half))[: half + 100],
            "/half": lambda: found(bytes(half)),
        }
        site.stalling = True
        fetcher = UrlFetcher(config, budget)
        stalled = [
            asyncio.create_task(fetch(fetcher, RemoteUrl(site.url("/stalls")))) for _ in range(2)
        ]
        await budget.wait_held(2 * half)
        # Both move: the third is refused, and holds nothing afterwards.
        with pytest.raises(ResourceExhausted, match="have used up their share") as refused:
            await fetch(fetcher, RemoteUrl(site.url("/half")))
        assert refused.value.field == "file"
        assert 2 * half <= budget.held_bytes <= 2 * half + 1000
        assert budget.refused == [Holder.UPLOADS]
        budget.now_s += SILENT_S + 1
        assert await fetch(fetcher, RemoteUrl(site.url("/half"))) == bytes(half)
        (first,), rest = await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ResourceExhausted, match="file: it was idle, and its memory was needed"):
            await first
        assert budget.refused == [Holder.UPLOADS] * 2
        assert budget.held_bytes <= half + 1000
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        assert budget.held_bytes == 0
        fetcher.close()


async def test_fetched_files_keep_their_room_until_they_are_decoded() -> None:
    budget = WatchedBudget(400_000)
    fetcher = UrlFetcher(gateway_config(**FETCHES), budget)
    async with open_site() as site:
        with fetcher.download() as download:
            for number in (1, 2):
                await download.fetch(RemoteUrl(site.url("/chunked")), "file")
                assert budget.held_bytes == number * len(FILE)
        assert budget.held_bytes == 0
        fetcher.close()


async def test_gateway_counts_fetched_bytes_among_its_uploads() -> None:
    async with open_site() as site:
        settings = {**FETCHES, "max_memory_bytes": 2 * len(FILE)}
        async with serve_gateway(**settings) as served:
            response = await ask(served, site.url("/file.wav"))
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (429, FIELD)
            assert "gateway.limits.max_memory_bytes" in error["message"]
            assert await served.metric('antiphon_gateway_memory_bytes{holder="uploads"}') == 0
            assert (
                await served.metric('antiphon_gateway_refused_total{bound="memory_uploads"}') == 1
            )
