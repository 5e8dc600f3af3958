"""One test for both clients: what a test asks of either of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


async def talk_blocking(address: str, **client: Any) -> antiphon.ConversationOpened:
    def ask() -> antiphon.ConversationOpened:
        with antiphon.Client(address, **client) as connected, connected.converse() as call:
            return call.opened

    return await asyncio.to_thread(ask)


async def talk_async(address: str, **client: Any) -> antiphon.ConversationOpened:
    async with antiphon.AsyncClient(address, **client) as connected, connected.converse() as call:
        return call.opened


async def talk_through_blocking(
    address: str, commands: Callable[[antiphon.TalkEvent], list[str]]
) -> None:
    """A conversation to its end; `commands` says what to do after each event, the opening first."""

    def converse() -> None:
        with antiphon.Client(address) as connected, connected.converse() as call:

            def carry_out(names: list[str]) -> None:
                for name in names:
                    match name:
                        case "add":
                            call.add("Hi")
                        case "respond":
                            call.respond()
                        case "finish":
                            call.finish()

            carry_out(commands(call.opened))
            for event in call:
                carry_out(commands(event))

    await asyncio.to_thread(converse)


async def talk_through_async(
    address: str, commands: Callable[[antiphon.TalkEvent], list[str]]
) -> None:
    """The same as `talk_through_blocking`."""
    async with antiphon.AsyncClient(address) as connected, connected.converse() as call:

        async def carry_out(names: list[str]) -> None:
            for name in names:
                match name:
                    case "add":
                        await call.add("Hi")
                    case "respond":
                        await call.respond()
                    case "finish":
                        call.finish()

        await carry_out(commands(call.opened))
        async for event in call:
            await carry_out(commands(event))
