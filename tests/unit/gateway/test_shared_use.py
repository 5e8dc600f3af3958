"""The use of a key at several gateways of one host, each of which is a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from antiphon.errors import InvalidArgument, Unavailable
from antiphon_gateway.endpoints.openai.spoken import SharedSpokenAnswers
from antiphon_gateway.host_store import HostStore, StoreBlocked
from antiphon_gateway.keys.key_file import KeyLimits
from antiphon_gateway.keys.key_use import KeyLimitReached, KeyUse
from antiphon_gateway.keys.shared_use import SAVED_AT_ONCE, SharedUses
from tests.open_files import no_more_files

LONG_S = 240.0
HOLD = """
import sys, time
from contextlib import ExitStack
from antiphon_gateway.host_store import HostStore
from antiphon_gateway.keys.key_file import KeyLimits
from antiphon_gateway.keys.key_use import KeyLimitReached, KeyUse
from antiphon_gateway.keys.shared_use import SharedUses
# However busy the machine is, a transaction of another process doesn't count as suspended.
store = HostStore(sys.argv[1], busy_s=240.0)
use = KeyUse("app", KeyLimits(concurrency=1, requests_per_minute=1000),
             shared=SharedUses(store).of("app"), clock=lambda: 1000.0)
"""
HOLD_A_REQUEST = (
    HOLD
    + """
with use.request():
    print("holds", flush=True)
    time.sleep(3600)
"""
)
HOLD_A_TRANSACTION = (
    HOLD
    + """
with store.transaction() as database:
    database.execute("INSERT INTO minutes VALUES ('app', 'requests_per_minute', 1000, 1)")
    print("holds", flush=True)
    time.sleep(3600)
"""
)
COUNT_UNTIL_REFUSED = (
    HOLD
    + """
print("holds", flush=True)
sys.stdin.readline()
counted = 0
try:
    while True:
        use.count()
        counted += 1
except KeyLimitReached:
    print(counted, flush=True)
"""
)


class Gateways:
    """The use of one key at two gateways."""

    def __init__(self, directory: Path, limits: KeyLimits) -> None:
        self.now_s = 1000.25
        self.stores = [HostStore(str(directory)) for _ in range(2)]
        self.first, self.second = (
            KeyUse("app", limits, clock=lambda: self.now_s, shared=SharedUses(each).of("app"))
            for each in self.stores
        )

    def close(self) -> None:
        for each in self.stores:
            each.close()

    @asynccontextmanager
    async def recovering(self) -> AsyncIterator[asyncio.Event]:
        """Both gateways look after the store. The event is set when both can use it again."""
        left = list(self.stores)
        recovered = asyncio.Event()

        async def leave(store: HostStore) -> None:
            left.remove(store)
            if not left:
                recovered.set()

        for each in self.stores:
            each.on_recovered.append(partial(leave, each))
        tasks = [asyncio.create_task(each.recover()) for each in self.stores]
        try:
            yield recovered
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def database_in(directory: Path) -> Path:
    (path,) = directory.glob("*.sqlite")
    return path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another gateway keeps the database locked."""
    other = sqlite3.connect(database_in(directory), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


def refused(use: KeyUse) -> KeyLimitReached:
    with pytest.raises(KeyLimitReached) as caught, use.request():
        pass
    return caught.value


@asynccontextmanager
async def other_process(program: str, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has begun to hold something."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"holds\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_requests_at_a_time_are_those_of_both_gateways(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=2))
    with two.first.request():
        with two.second.request():
            assert "2 requests are in progress" in refused(two.first).message
            assert refused(two.second).limit == "concurrency"
        with two.first.request():
            refused(two.second)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(two.second.request())
        refused(two.first)
    two.close()


def test_conversations_are_those_of_both_gateways(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(conversations=1))
    with (
        two.second.conversation(),
        pytest.raises(KeyLimitReached, match="1 conversations"),
        two.first.conversation(),
    ):
        pass
    with two.first.conversation(), two.second.request():
        pass
    two.close()


def test_minute_is_that_of_both_gateways_and_so_is_the_wait(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(requests_per_minute=2, audio_seconds_per_minute=20))
    two.first.count()
    two.now_s += 10
    two.second.count()
    for use in (two.first, two.second):
        assert refused(use).retry_after_s == pytest.approx(50 - 0.25)
    two.now_s += 50
    two.first.count()
    two.second.add_audio(25.0)
    two.now_s += 30
    error = refused(two.first)
    assert (error.limit, "25 in the last minute" in error.message) == (
        "audio_seconds_per_minute",
        True,
    )
    two.now_s += 30
    with two.first.request():
        pass
    two.close()


def test_keys_have_limits_of_their_own(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1, requests_per_minute=1))
    other = KeyUse("other", KeyLimits(concurrency=1), shared=SharedUses(two.stores[1]).of("other"))
    with two.first.request(), other.request():
        pass
    two.close()


def test_refused_request_is_not_counted(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1, requests_per_minute=2))
    with two.first.request():
        refused(two.second)
    with two.second.request():
        pass
    assert refused(two.first).limit == "requests_per_minute"
    two.close()


def test_gateway_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1))
    with two.first.request():
        refused(two.second)
        two.stores[0].close()
        with two.second.request():
            pass


async def test_request_of_a_killed_gateway_no_longer_counts(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1))
    async with asyncio.timeout(LONG_S), other_process(HOLD_A_REQUEST, tmp_path) as process:
        refused(two.first)
        process.send_signal(signal.SIGSTOP)
        refused(two.first)
        process.kill()
        await process.wait()
        with two.first.request():
            refused(two.second)
    two.close()


async def test_transaction_of_a_killed_gateway_is_undone(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(requests_per_minute=1))
    async with asyncio.timeout(LONG_S), other_process(HOLD_A_TRANSACTION, tmp_path) as process:
        process.kill()
        await process.wait()
        two.first.count()
        refused(two.second)
    two.close()


async def test_gateways_decide_alone_while_one_is_suspended_and_together_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1, requests_per_minute=4))
    async with (
        asyncio.timeout(LONG_S),
        two.recovering() as recovered,
        other_process(HOLD_A_TRANSACTION, tmp_path) as process,
    ):
        process.send_signal(signal.SIGSTOP)
        for use in (two.first, two.second):
            with use.request():
                assert refused(use).limit == "concurrency"
        assert caplog.text.count("another gateway of this host keeps the database locked") == 2
        for store in two.stores:
            # The database is not even tried, so there is nothing to wait for.
            with (
                pytest.raises(StoreBlocked, match="another gateway is blocking the database"),
                store.transaction(),
            ):
                pass
        with two.first.request():
            process.kill()
            await recovered.wait()
            assert refused(two.second).limit == "concurrency"
        with two.second.request():
            pass
        assert "4 in the last minute" in refused(two.first).message
    assert caplog.text.count("the database was locked for") == 2
    two.close()


async def test_use_of_all_keys_is_stored_when_a_suspended_gateway_is_killed(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits())
    limits = KeyLimits(requests_per_minute=1, conversations=1)
    unshared: list[None] = []
    mine, theirs = (
        [
            KeyUse(f"key {number}", limits, clock=lambda: 1000.0, shared=uses.of(f"key {number}"))
            for number in range(3 * SAVED_AT_ONCE)
        ]
        for uses in (
            SharedUses(two.stores[0], lambda: unshared.append(None)),
            SharedUses(two.stores[1]),
        )
    )
    async with asyncio.timeout(LONG_S), two.recovering() as recovered:
        with ExitStack() as held:
            async with other_process(HOLD_A_TRANSACTION, tmp_path):
                for each in mine:
                    each.count()
                    held.enter_context(each.conversation())
                with pytest.raises(StoreBlocked), two.stores[1].transaction():
                    pass
                with pytest.raises(KeyLimitReached):
                    mine[0].count()
                assert len(unshared) == 2 * len(mine) + 1
            await recovered.wait()
            for each in theirs:
                assert refused(each).limit == "requests_per_minute"
                with pytest.raises(KeyLimitReached, match="conversations"), each.conversation():
                    pass
    assert len(unshared) == 2 * len(mine) + 1
    two.close()


async def test_request_counts_when_its_transaction_cannot_be_completed(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=5, requests_per_minute=3))
    two.first.count()
    two.now_s += 1
    two.first.count()
    reader = sqlite3.connect(database_in(tmp_path), isolation_level=None)
    async with asyncio.timeout(LONG_S), two.recovering() as recovered:
        # While another connection reads, a transaction can begin, but it can't be completed.
        rows = reader.execute("SELECT second FROM minutes ORDER BY second")
        assert rows.fetchone() == (1000,)
        with two.first.request(), pytest.raises(StoreBlocked), two.stores[1].transaction() as other:
            other.execute("INSERT INTO minutes VALUES ('app', 'requests_per_minute', 1002, 9)")
        rows.close()
        await recovered.wait()
        assert "3 in the last minute" in refused(two.second).message
    assert reader.execute("SELECT count(*) FROM held").fetchone() == (0,)
    reader.close()
    two.close()


async def test_processes_that_count_at_the_same_time_admit_as_many_as_the_limit_says(
    tmp_path: Path,
) -> None:
    admitted = 0
    async with (
        asyncio.timeout(LONG_S),
        other_process(COUNT_UNTIL_REFUSED, tmp_path) as first,
        other_process(COUNT_UNTIL_REFUSED, tmp_path) as second,
    ):
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.write(b"\n")
        for process in (first, second):
            assert process.stdout is not None
            admitted += int(await process.stdout.readline())
    assert admitted == 1000


def test_store_that_fails_refuses_requests_and_breaks_none_that_is_under_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=2))
    with two.first.request():
        with sqlite3.connect(database_in(tmp_path)) as other:
            other.execute("DROP TABLE held")
            other.execute("DROP TABLE minutes")
        other.close()
        with pytest.raises(Unavailable, match="no such table"), two.first.request():
            pass
        two.first.add_audio(1.0)
    assert (
        "key app: the database that the gateways on this host share can't be used: no such table"
        in caplog.text
    )
    assert not two.first.in_use
    two.close()


def test_end_of_a_request_that_cannot_be_stored_is_stored_later(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1))
    uses = SharedUses(two.stores[0])
    first = KeyUse("app", KeyLimits(concurrency=1), shared=uses.of("app"))
    other = KeyUse("other", KeyLimits(), shared=uses.of("other"))
    path = database_in(tmp_path)
    with sqlite3.connect(path, isolation_level=None) as editor:
        with first.request():
            editor.execute("ALTER TABLE held RENAME TO away")
        editor.execute("ALTER TABLE away RENAME TO held")
    editor.close()
    refused(two.second)
    with other.request():
        pass
    with two.second.request():
        pass
    two.close()


def test_what_ends_while_no_transaction_can_begin_is_stored_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = Gateways(tmp_path, KeyLimits(concurrency=1, audio_seconds_per_minute=20))
    with ExitStack() as held:
        held.enter_context(two.first.request())
        with no_more_files():
            two.first.add_audio(20.0)
            held.close()
    assert caplog.text.count("key app: the database that the gateways on this host share") == 2
    assert refused(two.second).limit == "concurrency"
    with two.first.conversation():
        pass
    assert refused(two.second).limit == "audio_seconds_per_minute"
    two.close()


def test_use_that_cannot_be_stored_is_limited_to_a_minute_and_to_a_number_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_gateway.keys.shared_use.MAX_UNSAVED", 3)
    two = Gateways(tmp_path, KeyLimits())
    uses = SharedUses(two.stores[0])
    keys = [
        KeyUse(str(number), clock=lambda: two.now_s, shared=uses.of(str(number)))
        for number in range(5)
    ]
    with locked(tmp_path):
        for number in (0, 1, 2, 0, 3, 4):
            with keys[number].request(), keys[number].conversation():
                assert set(uses.held) == {
                    (str(number), "concurrency"),
                    (str(number), "conversations"),
                }
            two.now_s += 1
        assert not uses.held
        assert [name for name, _ in uses.amounts] == ["0", "3", "4"]
        two.now_s += 58
        keys[1].add_audio(1.0)
        assert [name for name, _ in uses.amounts] == ["4", "1"]
    two.close()


async def test_gateway_can_start_while_another_one_is_suspended(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits())
    SharedSpokenAnswers(60, 1000, two.stores[0])
    async with asyncio.timeout(LONG_S), other_process(HOLD_A_TRANSACTION, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        third = HostStore(str(tmp_path))
        use = KeyUse("app", KeyLimits(concurrency=1), shared=SharedUses(third).of("app"))
        SharedSpokenAnswers(60, 1000, third)
        assert not third.is_blocked
        with use.request():
            assert refused(use).limit == "concurrency"
        assert third.is_blocked
    third.close()
    two.close()


def test_tables_that_cannot_be_created_are_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("antiphon_gateway.host_store.STARTUP_BUSY_S", 0.0)
    store = HostStore(str(tmp_path))
    with locked(tmp_path), pytest.raises(StoreBlocked, match="the database that the gateways on"):
        SharedUses(store)
    assert not caplog.text
    SharedUses(store)
    store.close()


async def test_recovery_goes_on_after_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = Gateways(tmp_path, KeyLimits())

    async def fail() -> None:
        raise ValueError("planted")

    for store in two.stores:
        store.on_recovered.append(fail)
    async with asyncio.timeout(LONG_S), two.recovering() as recovered:
        with locked(tmp_path):
            for store in two.stores:
                with pytest.raises(StoreBlocked), store.transaction():
                    pass
        await recovered.wait()
    assert caplog.text.count("ValueError: planted") == 2
    two.close()


def test_use_of_an_earlier_boot_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    monkeypatch.setattr("antiphon_gateway.host_store.BOOT_ID", boot)
    before = Gateways(tmp_path, KeyLimits(requests_per_minute=1))
    before.now_s = 1e6
    before.first.count()
    refused(before.second)
    boot.write_text("second\n")
    after = Gateways(tmp_path, KeyLimits(requests_per_minute=1))
    after.first.count()
    refused(after.second)
    for each in (before, after):
        each.close()


def test_only_the_user_can_read_what_gateways_share(tmp_path: Path) -> None:
    two = Gateways(tmp_path, KeyLimits(requests_per_minute=1))
    two.first.count()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    two.close()


def test_directory_that_does_not_exist_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"gateway\.sharing\.directory: .*nowhere"):
        HostStore(str(tmp_path / "nowhere"))
