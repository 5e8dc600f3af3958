"""One test for both clients: what a test asks of either of them."""

from __future__ import annotations

import asyncio
from typing import Any

import antiphon


async def ask_blocking(address: str, **client: Any) -> antiphon.Reply:
    def ask() -> antiphon.Reply:
        with antiphon.Client(address, **client) as connected:
            return connected.generate("Hi", timeout_s=60).collect()

    return await asyncio.to_thread(ask)


async def ask_async(address: str, **client: Any) -> antiphon.Reply:
    async with antiphon.AsyncClient(address, **client) as connected:
        return await connected.generate("Hi", timeout_s=60).collect()


async def info_blocking(address: str, **client: Any) -> antiphon.ServerInfo:
    def ask() -> antiphon.ServerInfo:
        with antiphon.Client(address, **client) as connected:
            return connected.server_info(timeout_s=60)

    return await asyncio.to_thread(ask)


async def info_async(address: str, **client: Any) -> antiphon.ServerInfo:
    async with antiphon.AsyncClient(address, **client) as connected:
        return await connected.server_info(timeout_s=60)
