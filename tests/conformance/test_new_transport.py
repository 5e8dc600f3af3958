"""A transport is one file (`unix_socket.py`) and one row: then it conforms like the others."""

from __future__ import annotations

import pytest

from antiphon.transport.payload.registry import TRANSPORTS
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.check_transport import CHECKS, Check, Subject, check_nothing_is_left
from antiphon_testkit.faulty_transport import faulty_senders
from tests.conformance.unix_socket import NAME, UNIX_SOCKET

SETTINGS = LinkSettings(NAME, "cpu", slab_bytes=1 << 20, resume_window_s=5.0)  # type: ignore[arg-type]
SUBJECTS = {
    "sound": lambda: Subject(NAME, SETTINGS),
    "faulty": lambda: Subject(NAME, SETTINGS, faulty_senders(3, 0.1), faulty=True),
}


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSPORTS, NAME, UNIX_SOCKET)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", SUBJECTS)
async def test_new_transport_conforms(name: str, check: Check) -> None:
    await check(SUBJECTS[name]())
    await check_nothing_is_left()
