"""The list-and-watch loop against an API server over HTTP that fails in every way it can.

Nothing is timed: what the loop waits for is either small, or so long that only the event under
test can end it (`FOREVER_S`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon.deployment.schema import DiscoveryConfig
from antiphon.errors import InvalidArgument
from antiphon_gateway.fleet.discovery import kubernetes_api
from antiphon_gateway.fleet.discovery.kubernetes import KubernetesEndpoints
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_testkit.fake_kubernetes import FakeApi, endpoint, serve_api
from tests.own_records import records_of

FOREVER_S = 300.0
SOON_S = 0.2
SERVICES = {"talker": "a-talker", "code2wav": "a-code2wav"}


class Watched:
    """A discovery that runs, the sets that it has told, and the pauses that it has made."""

    def __init__(self, path: Path, api: FakeApi, config: dict[str, Any]) -> None:
        self.api = api
        self.token_file = path / "token"
        self.token_file.write_text("first")
        kubeconfig = path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(api.url)))
        settings = {"relist_s": FOREVER_S, "answer_timeout_s": FOREVER_S} | config
        self.kubeconfig = kubeconfig
        self.config = DiscoveryConfig(
            kind="kubernetes",
            namespace="speech",
            services=SERVICES,
            kubeconfig=str(kubeconfig),
            **settings,
        )
        self.pauses: list[float] = []
        self.many = 12
        self.many_pauses = asyncio.Event()
        self.told: asyncio.Queue[frozenset[Endpoint]] = asyncio.Queue()
        self.discovery = KubernetesEndpoints(self.config, sleep=self._sleep, jitter=lambda: 1.0)

    async def run(self) -> None:
        async for endpoints in self.discovery.watch():
            self.told.put_nowait(endpoints)

    async def uids(self) -> set[str]:
        """Of the next set that is told."""
        return {each.uid for each in await self.told.get()}

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self.many:
            self.many_pauses.set()
        await asyncio.sleep(0)


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }


Watch = Callable[..., Awaitable[Watched]]


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's certificates are not needed here, and take 50 ms to read for each connection."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with serve_api() as served:
        served.put("a", "a-talker", [endpoint("127.0.1.1", "p1")])
        yield served


@asynccontextmanager
async def _watching(path: Path, api: FakeApi, **config: Any) -> AsyncIterator[Watched]:
    """Watches, and has told the first list."""
    watched = Watched(path, api, config)
    running = asyncio.create_task(watched.run())
    try:
        assert await watched.uids() == {"p1"}
        await api.wait(lambda: api.watching == 1)
        yield watched
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_watch_tells_of_pods_that_come_leave_and_go(tmp_path: Path, api: FakeApi) -> None:
    async with _watching(tmp_path, api) as watched:
        api.put("b", "a-code2wav", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}
        api.put("a", "a-talker", [endpoint("127.0.1.1", "p1", terminating=True)])
        leaving = {e for e in await watched.told.get() if e.terminating}
        assert leaving == {
            Endpoint("talker", "p1", "127.0.1.1:50051", ready=False, terminating=True)
        }
        api.delete("a")
        assert await watched.uids() == {"p2"}
        # All of it by one list and one watch, not by asking again.
        assert [asked.watches for asked in api.asked] == [False, True]
        assert watched.discovery.last_sync is not None


async def test_slices_of_other_services_are_not_asked_for(tmp_path: Path, api: FakeApi) -> None:
    async with _watching(tmp_path, api) as watched:
        api.put("x", "another", [endpoint("127.0.1.9", "other")])
        api.put("b", "a-code2wav", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}
        selector = "kubernetes.io/service-name in (a-code2wav,a-talker)"
        assert {asked.query["labelSelector"] for asked in api.asked} == {selector}


async def test_nothing_is_told_when_an_event_changes_no_endpoint(
    tmp_path: Path, api: FakeApi
) -> None:
    async with _watching(tmp_path, api) as watched:
        api.bookmark()
        api.put("a", "a-talker", [endpoint("127.0.1.1", "p1")])
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}


async def test_events_are_read_when_they_come_in_pieces(tmp_path: Path, api: FakeApi) -> None:
    api.piece_bytes = 7
    async with _watching(tmp_path, api) as watched:
        api.put("b", "a-talker", [endpoint(f"127.0.2.{n}", f"q{n}") for n in range(9)])
        assert await watched.uids() == {"p1"} | {f"q{n}" for n in range(9)}


async def test_missed_delete_is_made_good_by_the_next_list(tmp_path: Path, api: FakeApi) -> None:
    api.put("b", "a-code2wav", [endpoint("127.0.1.2", "p2")])
    watched = Watched(tmp_path, api, {"relist_s": SOON_S})
    running = asyncio.create_task(watched.run())
    assert await watched.uids() == {"p1", "p2"}
    api.delete_untold("b")
    assert await watched.uids() == {"p1"}
    assert watched.pauses == []
    running.cancel()


def test_missed_delete_is_made_good_within_30_s_by_default() -> None:
    config = DiscoveryConfig()
    # A list, the watch after it, a failed list, the pause, and a list that takes as long as it may.
    assert config.relist_s + config.answer_timeout_s + config.max_pause_s <= 30


async def test_list_follows_when_the_version_is_too_old(tmp_path: Path, api: FakeApi) -> None:
    """A watch that is refused with 410 is not asked for again with the same version."""
    async with _watching(tmp_path, api) as watched:
        before = api.lists
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}
        # Between the next list and its watch the API forgets what was listed.
        expired = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "old"}}
        api.delete_untold("b")
        api.forget_events()
        api.say_raw(yaml.safe_dump(expired, default_flow_style=True, width=9999).encode())
        assert await watched.uids() == {"p1"}
        assert api.lists == before + 1
        await api.wait(lambda: api.asked[-1].watches)
        assert int(api.asked[-1].query["resourceVersion"]) > 101


@pytest.mark.parametrize("fault", ["reset", "end_watches", "torn line", "no json", "no event"])
async def test_list_follows_when_the_watch_breaks(tmp_path: Path, api: FakeApi, fault: str) -> None:
    async with _watching(tmp_path, api) as watched:
        api.delete_untold("a")
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        # The watch does not know that p1 has gone.
        assert await watched.uids() == {"p1", "p2"}
        if fault == "torn line":
            api.say_raw(b'{"type":"DELETED","object":{"metadata":{"name":"b"')
            await asyncio.sleep(0)
            api.reset()
        elif fault == "no json":
            api.say_raw(b"<html>a proxy's page</html>\n")
        elif fault == "no event":
            api.say_raw(b'{"type":"ADDED","object":{"metadata":7}}\n')
        else:
            getattr(api, fault)()
        assert await watched.uids() == {"p2"}
        assert watched.pauses == [0.1]


async def test_half_open_watch_is_given_up_when_it_is_time_for_a_list(
    tmp_path: Path, api: FakeApi
) -> None:
    async with _watching(tmp_path, api, relist_s=SOON_S) as watched:
        api.go_silent()
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}


async def test_list_is_given_up_when_the_api_takes_it_and_says_nothing(
    tmp_path: Path, api: FakeApi
) -> None:
    async with _watching(tmp_path, api, answer_timeout_s=SOON_S) as watched:
        asked = len(api.asked)
        api.hang(hanging=True)
        api.reset()
        await api.wait(lambda: len(api.asked) >= asked + 3)
        assert watched.told.empty()
        api.hang(hanging=False)
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}


async def test_what_is_known_holds_while_the_api_is_away(tmp_path: Path, api: FakeApi) -> None:
    async with _watching(tmp_path, api) as watched:
        await api.stop()
        await watched.many_pauses.wait()
        assert watched.told.empty()
        # Pauses grow, to a bound.
        assert watched.pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
        assert set(watched.pauses[7:]) == {5.0}
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        await api.start()
        assert await watched.uids() == {"p1", "p2"}


@pytest.mark.parametrize("written", ["", "clusters: [", "clusters: 7"])
async def test_list_follows_when_the_kubeconfig_was_read_while_it_was_written(
    tmp_path: Path, api: FakeApi, written: str
) -> None:
    async with asyncio.timeout(FOREVER_S / 5), _watching(tmp_path, api) as watched:
        # The first is for the watch that broke.
        watched.many = 2
        whole = watched.kubeconfig.read_text()
        watched.kubeconfig.write_text(written)
        api.reset()
        await watched.many_pauses.wait()
        watched.kubeconfig.write_text(whole)
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}


async def test_list_follows_a_mistake_that_nobody_has_thought_of(
    tmp_path: Path,
    api: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = kubernetes_api.open_slices

    def fail_once(*arguments: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("internal error")

    async with asyncio.timeout(FOREVER_S / 5), _watching(tmp_path, api) as watched:
        monkeypatch.setattr(kubernetes_api, "open_slices", fail_once)
        api.reset()
        await api.wait(lambda: api.lists == 2 and api.watching == 1)
        assert kubernetes_api.open_slices is opened
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}
    assert "RuntimeError: internal error" in caplog.text
    assert "Traceback" in caplog.text


async def test_pauses_begin_small_again_when_the_watch_tells_something(
    tmp_path: Path, api: FakeApi
) -> None:
    async with _watching(tmp_path, api) as watched:
        api.refuse(500, 503, 429)
        api.reset()
        await api.wait(lambda: len(api.asked) >= 7 and api.watching == 1)
        assert watched.pauses == [0.1, 0.2, 0.4, 0.8]
        api.put("b", "a-talker", [endpoint("127.0.1.2", "p2")])
        assert await watched.uids() == {"p1", "p2"}
        asked = len(api.asked)
        api.reset()
        await api.wait(lambda: len(api.asked) >= asked + 2 and api.watching == 1)
        assert watched.pauses[4:] == [0.1]


async def test_pauses_grow_when_every_watch_breaks_at_once(tmp_path: Path, api: FakeApi) -> None:
    async with _watching(tmp_path, api) as watched:
        for _ in range(4):
            asked = len(api.asked)
            api.reset()
            await api.wait(lambda asked=asked: len(api.asked) == asked + 2 and api.watching == 1)
        assert watched.pauses == [0.1, 0.2, 0.4, 0.8]


async def test_token_is_read_again_for_each_list(tmp_path: Path, api: FakeApi) -> None:
    async with _watching(tmp_path, api) as watched:
        watched.token_file.write_text("second")
        api.reset()
        await api.wait(lambda: api.lists == 2 and api.watching == 1)
        told = [asked.authorization for asked in api.asked]
        assert told == ["Bearer first"] * 2 + ["Bearer second"] * 2


async def test_refusal_for_want_of_rights_names_the_role_that_is_needed(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with _watching(tmp_path, api) as watched:
        api.refuse(403)
        api.reset()
        await api.wait(lambda: api.lists == 3)
    assert len(watched.pauses) == 2
    # Told once, at the first failure; the log of a long outage stays short.
    assert [each.levelname for each in records_of(caplog, "gateway")].count("WARNING") == 1


async def test_list_is_refused_when_it_is_longer_than_its_bound(
    tmp_path: Path, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, api, {"max_list_bytes": 64})
    running = asyncio.create_task(watched.run())
    await api.wait(lambda: api.lists == 3)
    assert watched.told.empty()
    assert "gateway.discovery.max_list_bytes" in caplog.text
    running.cancel()


async def test_discovery_leaves_nothing_running_when_its_reader_is_cancelled(
    tmp_path: Path, api: FakeApi
) -> None:
    before = asyncio.all_tasks()
    async with _watching(tmp_path, api):
        pass
    await api.wait(lambda: api.watching == 0)
    left = {t for t in asyncio.all_tasks() - before if "FakeApi" not in repr(t)}
    assert not left


def test_discovery_asks_for_a_namespace_when_it_runs_outside_a_cluster() -> None:
    with pytest.raises(InvalidArgument) as raised:
        KubernetesEndpoints(DiscoveryConfig(kind="kubernetes", services=SERVICES))
    assert raised.value.field == "gateway.discovery.namespace"
