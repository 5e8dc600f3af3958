"""Every transport passes the conformance suite, and so does each when it fails at random."""

from __future__ import annotations

import pytest

from antiphon.transport.settings import LinkSettings
from antiphon_testkit.check_transport import CHECKS, Check, Subject, check_nothing_is_left
from antiphon_testkit.faulty_transport import faulty_senders

MIB = 1 << 20


def settings(transport: str, *, ring: bool = True) -> LinkSettings:
    return LinkSettings(transport, "cpu", slab_bytes=256 * MIB, resume_window_s=5.0, ring=ring)  # type: ignore[arg-type]


SUBJECTS = {
    "grpc": lambda: Subject("grpc", settings("grpc", ring=False)),
    "grpc-ring": lambda: Subject("grpc", settings("grpc")),
    "shared_memory": lambda: Subject("shared_memory", settings("shared_memory"), at_once=True),
    "gloo": lambda: Subject("gloo", settings("nccl")),
    "auto-stream": lambda: Subject("shared_memory", settings("auto", ring=False), at_once=True),
    "shared_memory-faulty": lambda: Subject(
        "shared_memory", settings("auto"), faulty_senders(1, 0.2), faulty=True, at_once=True
    ),
    "gloo-faulty": lambda: Subject("gloo", settings("nccl"), faulty_senders(2, 0.1), faulty=True),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", SUBJECTS)
async def test_transport_conforms(name: str, check: Check) -> None:
    await check(SUBJECTS[name]())
    await check_nothing_is_left()
