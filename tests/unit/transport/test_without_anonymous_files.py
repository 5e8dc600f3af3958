"""Links on a system without anonymous files, such as macOS."""

from __future__ import annotations

import os

import pytest

from antiphon.deployment.stage_config import TransportName
from antiphon.errors import InvalidArgument
from antiphon.transport.payload.registry import check_possible, make_senders
from antiphon.transport.payload.transport import LinkMessage
from antiphon.transport.settings import LinkSettings


def settings_of(transport: TransportName) -> LinkSettings:
    return LinkSettings(transport, "cpu", slab_bytes=1 << 20, resume_window_s=0.0)


async def write(message: LinkMessage) -> None:
    """Nothing is written before the offers."""


@pytest.mark.asyncio
async def test_link_offers_grpc_and_the_reason_without_anonymous_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    senders, failed = await make_senders(settings_of("auto"), "localhost:1", write)
    assert [each.name for each in senders] == ["grpc"]
    assert failed == ["shared_memory: this system has no anonymous files"]
    with pytest.raises(InvalidArgument, match="no anonymous files"):
        check_possible(settings_of("shared_memory"))
