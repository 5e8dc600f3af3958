from __future__ import annotations

import asyncio
import logging
import os
import re
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, Unauthenticated
from antiphon_gateway.conversations.seal import read_keys
from antiphon_gateway.keys.command import keys_command
from antiphon_gateway.keys.key_file import digest_of, new_key, read_key_file
from antiphon_gateway.keys.key_use import KeyLimitReached
from antiphon_gateway.keys.keyring import EndConversation, Keyring
from tests.open_files import no_more_files
from tests.own_records import records_of

pytestmark = pytest.mark.asyncio


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def entry(name: str, key: str, **limits: int) -> dict[str, Any]:
    return {"name": name, "sha256": digest_of(key), **limits}


def write(path: Path, *entries: dict[str, Any]) -> None:
    path.write_bytes(msgspec.yaml.encode({"keys": entries}))


def read(path: Path) -> str:
    return path.read_text()


def put(path: Path, content: str) -> None:
    path.write_text(content)


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def config(path: Path) -> GatewayConfig:
    return GatewayConfig(keys_file=str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


async def test_keys_are_told_apart_by_name(path: Path) -> None:
    keys = [new_key() for _ in range(3)]
    write(path, *(entry(f"app{number}", key) for number, key in enumerate(keys)))
    assert not any(key in read(path) for key in keys)
    keyring = Keyring(config(path))
    for number, key in enumerate(keys):
        assert (await keyring.key_of(f"Bearer {key}")).name == f"app{number}"
        assert (await keyring.key_of(f"bearer  {key} ")).name == f"app{number}"


async def test_who_has_no_key_is_refused_without_a_word_of_it(path: Path) -> None:
    key = new_key()
    write(path, entry("app", key))
    hit: list[str] = []
    keyring = Keyring(config(path), hit.append)
    for given in (None, "", "Bearer", f"Basic {key}", key):
        with pytest.raises(Unauthenticated, match="the API key is missing"):
            await keyring.key_of(given)
    for wrong in ("", "x", f"{key}x", key[:-1], "é" * 9999):
        given = f"Bearer {wrong}"
        with pytest.raises(Unauthenticated, match="unknown to this gateway") as caught:
            await keyring.key_of(given)
        assert key[:-1] not in caught.value.message
    assert hit == ["no_key"] * 5 + ["invalid_key"] * 5


async def test_everybody_may_ask_without_a_file() -> None:
    keyring = Keyring(GatewayConfig())
    assert (await keyring.key_of(None)).name == ""
    assert await keyring.key_of(None) is await keyring.key_of("Bearer whatever")


async def test_a_changed_file_is_read_again_and_what_was_taken_stays_taken(path: Path) -> None:
    clock, old, new = Clock(), new_key(), new_key()
    write(path, entry("app", old, concurrency=1), entry("gone", new_key()))
    keyring = Keyring(config(path), clock=clock)
    use = await keyring.key_of(f"Bearer {old}")
    with use.request():
        write(path, entry("app", new, concurrency=1, conversations=1))
        clock.now_s += 0.5
        assert await keyring.key_of(f"Bearer {old}") is use, "it was looked at not long ago"
        clock.now_s += 0.6
        assert await keyring.key_of(f"Bearer {new}") is use
        with pytest.raises(Unauthenticated):
            await keyring.key_of(f"Bearer {old}")
        with pytest.raises(KeyLimitReached):
            use.request().__enter__()
        assert use.limits.conversations == 1


async def test_a_key_that_is_away_for_a_while_keeps_its_count(path: Path) -> None:
    clock, key = Clock(), new_key()
    write(path, entry("app", key, concurrency=1))
    keyring = Keyring(config(path), clock=clock)
    use = await keyring.key_of(f"Bearer {key}")
    with use.request():
        for entries in ((), (entry("app", key, concurrency=1),)):
            write(path, *entries)
            clock.now_s += 60
            with suppress(AntiphonError):
                use = await keyring.key_of(f"Bearer {key}")
        with pytest.raises(KeyLimitReached), use.request():
            pass
    with use.request():
        pass


async def test_a_secret_that_is_mounted_anew_is_seen(path: Path, tmp_path: Path) -> None:
    """As Kubernetes does it: the file is a link to another folder."""
    clock, old, new = Clock(), new_key(), new_key()
    for folder, key in (("one", old), ("two", new)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "keys.yaml", entry("app", key))
        os.utime(tmp_path / folder / "keys.yaml", ns=(1, 1))
    link(path, tmp_path / "one" / "keys.yaml")
    keyring = Keyring(config(path), clock=clock)
    assert (await keyring.key_of(f"Bearer {old}")).name == "app"
    link(path, tmp_path / "two" / "keys.yaml")
    clock.now_s += 1.1
    assert (await keyring.key_of(f"Bearer {new}")).name == "app"


BOMB = "\n".join(
    ["a0: &a0 [k]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
)


@pytest.mark.parametrize(
    "fault",
    ["keys: [", "gone", "keys: !!int a", "keys: &a [*a]", "a: 2027-13-01", "keys: []\n" * 2, BOMB],
    ids=["half", "gone", "no-integer", "circle", "no-date", "twice", "bomb"],
)
async def test_a_file_that_breaks_leaves_what_held(
    path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, key = Clock(), new_key()
    write(path, entry("app", key))
    keyring = Keyring(config(path), clock=clock)
    if fault == "gone":
        os.remove(path)
    else:
        put(path, fault)
    caplog.set_level(logging.ERROR, logger="gateway.keys")
    for _ in range(3):
        clock.now_s += 1.1
        assert (await keyring.key_of(f"Bearer {key}")).name == "app"
    assert len(records_of(caplog, "gateway.keys")) == 1, "told once"
    assert "gateway.keys_file" in caplog.text


async def test_a_file_that_could_not_be_opened_is_read_when_it_can_be(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the file changes then: the process may have had too many files open."""
    clock, old, new = Clock(), new_key(), new_key()
    write(path, entry("app", old))
    keyring = Keyring(config(path), clock=clock)
    clock.now_s += 1.1
    # The thread that reads starts here.
    assert (await keyring.key_of(f"Bearer {old}")).name == "app"
    write(path, entry("app", new))
    caplog.set_level(logging.ERROR, logger="gateway.keys")
    with no_more_files():
        for _ in range(3):
            clock.now_s += 1.1
            assert (await keyring.key_of(f"Bearer {old}")).name == "app"
    assert len(records_of(caplog, "gateway.keys")) == 1, "told once"
    assert "Too many open files" in caplog.text
    clock.now_s += 1.1
    assert (await keyring.key_of(f"Bearer {new}")).name == "app"


async def test_a_wrong_file_ends_no_watch_over_conversations(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended: asyncio.Queue[AntiphonError] = asyncio.Queue()
    key = new_key()
    write(path, entry("app", key))
    keyring = Keyring(GatewayConfig(keys_file=str(path), keys_reload_s=0.001))
    use = await keyring.key_of(f"Bearer {key}")
    with keyring.conversation(use, f"Bearer {key}", ended.put_nowait):
        put(path, "keys: !!int a")
        # Read by the watch, or here.
        while not records_of(caplog, "gateway.keys"):
            await keyring.key_of(f"Bearer {key}")
            await asyncio.sleep(0)
        put(path, "keys: []")
        assert isinstance(await ended.get(), Unauthenticated)


@pytest.mark.parametrize(
    "written", ["2026-01-01T00:00:00Z", "'2026-01-01T01:00:00+01:00'", "2026-01-01 01:00:00+01:00"]
)
async def test_keys_have_an_expiry(path: Path, written: str) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC).timestamp()]
    key = new_key()
    put(path, f"keys: [{{name: app, sha256: {digest_of(key)}, expires: {written}}}]")
    hit: list[str] = []
    keyring = Keyring(config(path), hit.append, now=lambda: now[0] - 1)
    assert (await keyring.key_of(f"Bearer {key}")).name == "app"
    now[0] += 1
    with pytest.raises(Unauthenticated, match="expired at"):
        await keyring.key_of(f"Bearer {key}")
    assert hit == ["invalid_key"]


async def test_old_and_new_key_share_name_and_limits_while_a_key_is_rotated(path: Path) -> None:
    clock, old, new = Clock(), new_key(), new_key()
    both = [digest_of(old), digest_of(new)]
    write(path, entry("app", old, concurrency=1) | {"sha256": both})
    keyring = Keyring(config(path), clock=clock)
    use = await keyring.key_of(f"Bearer {old}")
    assert await keyring.key_of(f"Bearer {new}") is use
    with use.request(), pytest.raises(KeyLimitReached):
        (await keyring.key_of(f"Bearer {new}")).request().__enter__()
    write(path, entry("app", new, concurrency=1))
    clock.now_s += 1.1
    with pytest.raises(Unauthenticated):
        await keyring.key_of(f"Bearer {old}")
    assert await keyring.key_of(f"Bearer {new}") is use


async def test_conversations_end_when_their_key_is_withdrawn_and_others_stay(path: Path) -> None:
    ended: asyncio.Queue[tuple[str, AntiphonError]] = asyncio.Queue()

    def end(name: str) -> EndConversation:
        return lambda error: ended.put_nowait((name, error))

    keys = {name: new_key() for name in ("old", "new", "other")}
    rotated = entry("app", keys["old"]) | {
        "sha256": [digest_of(keys["old"]), digest_of(keys["new"])]
    }
    write(path, rotated, entry("other", keys["other"]))
    keyring = Keyring(GatewayConfig(keys_file=str(path), keys_reload_s=0.001))
    before = asyncio.all_tasks()
    with ExitStack() as open_ones:
        for name, key in keys.items():
            use = await keyring.key_of(f"Bearer {key}")
            open_ones.enter_context(keyring.conversation(use, f"Bearer {key}", end(name)))
        (watching,) = asyncio.all_tasks() - before
        write(path, entry("app", keys["new"]), entry("other", keys["other"]))
        name, error = await ended.get()
        assert (name, type(error)) == ("old", Unauthenticated)
        write(path, entry("app", keys["new"]))
        while (named := await ended.get())[0] == "old":
            # It has not left yet.
            continue
        assert named[0] == "other"
    async with asyncio.timeout(120):
        await asyncio.wait([watching])


async def test_conversations_end_when_their_key_expires(path: Path) -> None:
    ended: asyncio.Queue[AntiphonError] = asyncio.Queue()
    now, key = [0.0], new_key()
    write(path, entry("app", key) | {"expires": "1970-01-01T00:01:00Z"})
    keyring = Keyring(GatewayConfig(keys_file=str(path), keys_reload_s=0.001), now=lambda: now[0])
    use = await keyring.key_of(f"Bearer {key}")
    with keyring.conversation(use, f"Bearer {key}", ended.put_nowait):
        now[0] = 60.0
        assert "expired at" in (await ended.get()).message


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
async def test_a_file_that_is_not_regular_is_refused_at_once(path: Path, kind: str) -> None:
    """Nobody writes to the FIFO, so reading it would never end."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    else:
        link(path, Path("/dev/zero"))
    with pytest.raises(InvalidArgument, match=r"regular file|directory") as caught:
        await asyncio.wait_for(asyncio.to_thread(Keyring, config(path)), 240)
    assert caught.value.field == "gateway.keys_file"
    with pytest.raises(InvalidArgument, match=r"regular file|directory"):
        await asyncio.wait_for(asyncio.to_thread(read_keys, path), 240)


async def test_a_file_that_becomes_a_fifo_holds_nothing_up(path: Path) -> None:
    clock, key = Clock(), new_key()
    write(path, entry("app", key))
    keyring = Keyring(config(path), clock=clock)
    link(path, path.with_name("pipe"))
    os.mkfifo(path.with_name("pipe"))
    clock.now_s += 1.1
    assert (await asyncio.wait_for(keyring.key_of(f"Bearer {key}"), 240)).name == "app"


ZERO, ONE = (f'sha256: "{digit * 64}"' for digit in "01")
WRONG = {
    "keys: 3": "Expected `array`",
    "kees: []": "keys",
    "keys: [{name: a}]": "sha256",
    "keys: [{name: 'a b', sha256: x}]": "name",
    f"keys: [{{name: a, {ZERO}, rate: 3}}]": "rate",
    f"keys: [{{name: a, {ZERO}, concurrency: 0}}]": "concurrency",
    f"keys: [{{name: a, {ZERO}}}, {{name: a, {ONE}}}]": "the same name, 'a'",
    "keys: [{name: a, sha256: []}]": "sha256",
    f"keys: [{{name: a, {ZERO}, expires: tomorrow}}]": "expires",
    f"keys: [{{name: a, {ZERO}, expires: '2026-01-01T00:00:00'}}]": "expires",
    f"keys: [{{name: a, {ZERO}, expires: 2026-01-01T00:00:00}}]": "expires",
    f"keys: [{{name: a, {ZERO}}}, {{name: b, {ZERO}}}]": "the same sha256",
    f'keys: [{{name: "a\\n", {ZERO}}}]': "name",
    f'keys: [{{name: a, sha256: "{"0" * 64}\\n"}}]': "sha256",
    f"keys: [{{name: a, {ZERO}, concurrency: 1, concurrency: 9}}]": "the key 'concurrency'",
}


@pytest.mark.parametrize("content", WRONG)
async def test_a_wrong_file_is_an_error_at_the_start(path: Path, content: str) -> None:
    put(path, content)
    with pytest.raises(InvalidArgument, match=re.escape(WRONG[content])) as caught:
        Keyring(config(path))
    assert caught.value.field == "gateway.keys_file"


async def test_the_command_makes_a_key_and_its_entry(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        keys_command(["new", "app", "--concurrency", "4", "--audio-seconds-per-minute", "60"]) == 0
    )
    told = capsys.readouterr().out
    key, line = told.splitlines()[1], told.splitlines()[-1]
    put(path, f"keys:\n{line}\n")
    (made,) = read_key_file(path)
    assert (made.name, made.concurrency, made.requests_per_minute) == ("app", 4, None)
    assert (await Keyring(config(path)).key_of(f"Bearer {key}")).name == "app"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two words"], "name: must be 1 to 64 letters, digits or -._@"),
        (["app", "--concurrency", "0"], "--concurrency: Expected `int` >= 1"),
        (["app", "--requests-per-minute", "-1"], "--requests-per-minute: Expected `int` >= 1"),
        (["app", "--expires", ""], "--expires: Invalid RFC3339 encoded datetime"),
    ],
)
async def test_the_command_makes_no_key_with_an_invalid_value(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        keys_command(["new", *arguments])
    assert refused.value.message == message
    assert not capsys.readouterr().out


async def test_an_error_in_the_file_says_what_a_hash_is(path: Path) -> None:
    put(path, "keys:\n  - {name: app, sha256: nothex}\n")
    with pytest.raises(InvalidArgument, match=r"as 64 hexadecimal digits .* `antiphon keys new"):
        read_key_file(path)
    put(path, f"keys:\n  - {{name: app, sha256: {'a' * 64}, priority: urgent}}\n")
    with pytest.raises(InvalidArgument, match="use one of: high, low, normal - at "):
        read_key_file(path)
