"""Which prompts are made at once, and what becomes of others without threads for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from antiphon.errors import ResourceExhausted
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.preparation import Preparations

TIMEOUT_S = 120.0
FIRST, SECOND = SegmentKey("first", 0), SegmentKey("second", 0)


class NoThreads:
    """Lets no thread start while it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __enter__(self) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self._monkeypatch.setattr(threading.Thread, "start", refuse)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def preparations() -> Iterator[Preparations[str]]:
    made: Preparations[str] = Preparations()
    yield made
    made.close()


def test_prompt_fails_and_the_next_is_made_when_no_thread_starts(
    preparations: Preparations[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with NoThreads(monkeypatch):
        # As many as run at once: each would take the place of a thread.
        failed = [
            preparations.begin(SegmentKey("failed", at), lambda: "", text_bytes=1, media_bytes=0)
            for at in range(2)
        ]
    for each in failed:
        with pytest.raises(ResourceExhausted, match="can't start new thread"):
            each.result(timeout=TIMEOUT_S)
    made = preparations.begin(FIRST, lambda: "made", text_bytes=1, media_bytes=0)
    assert made.result(timeout=TIMEOUT_S) == "made"


def test_prompt_waits_for_the_thread_that_runs_when_no_other_starts(
    preparations: Preparations[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        assert go_on.wait(TIMEOUT_S)
        return "slow"

    first = preparations.begin(FIRST, slow, text_bytes=1, media_bytes=0)
    assert began.wait(TIMEOUT_S)
    with NoThreads(monkeypatch):
        second = preparations.begin(SECOND, lambda: "second", text_bytes=1, media_bytes=0)
    assert not second.done()
    go_on.set()
    assert first.result(timeout=TIMEOUT_S) == "slow"
    assert second.result(timeout=TIMEOUT_S) == "second"


def test_short_text_is_made_at_once_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    preparations: Preparations[str] = Preparations(at_once_bytes=100)
    with NoThreads(monkeypatch):
        made = preparations.begin(FIRST, lambda: "made", text_bytes=100, media_bytes=0)
        assert made.done()
        assert made.result() == "made"
        failed = preparations.begin(SECOND, lambda: str(1 // 0), text_bytes=1, media_bytes=0)
        assert isinstance(failed.exception(timeout=0), ZeroDivisionError)
        for text_bytes, media_bytes in ((101, 0), (1, 4)):
            beside = preparations.begin(
                FIRST, lambda: "beside", text_bytes=text_bytes, media_bytes=media_bytes
            )
            assert isinstance(beside.exception(timeout=0), ResourceExhausted)
    preparations.close()
