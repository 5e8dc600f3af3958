"""JSON schemas are compiled in child processes, within limits, before vLLM sees them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from string import ascii_lowercase
from typing import NoReturn

import pytest
import pytest_asyncio

from antiphon.errors import InvalidArgument, ResourceExhausted, Unavailable
from antiphon_services.vllm import schema_checker
from antiphon_services.vllm.schema_checker import LANES, SchemaChecker, SchemaLane
from antiphon_services.vllm.schema_messages import SchemaVocabulary

xgrammar = pytest.importorskip("xgrammar")

pytestmark = [
    # The server imports torch, which takes long on a busy machine.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

FOR_EVER_S = 10_000.0
TWO_AT_A_TIME = (SchemaLane(FOR_EVER_S, processes=2, niceness=0),)
ONE_AT_A_TIME = (SchemaLane(FOR_EVER_S, processes=1, niceness=0),)
SHORT = (SchemaLane(0.1, processes=1, niceness=0), SchemaLane(0.3, processes=1, niceness=1))

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
COLOR = {"enum": ["red", "green"]}


def text_of(pattern: str) -> dict[str, object]:
    return {"type": "string", "pattern": pattern}


SLOW_TO_COMPILE = text_of(".?" * 100)
SLOW_TO_PARSE = {
    "type": "object",
    "properties": {f"p{i}": text_of("(a?){1,5000}") for i in range(40)},
}


@pytest.fixture(scope="module")
def vocabulary() -> SchemaVocabulary:
    """Every byte and 20,000 words, and an end."""
    made = random.Random(0)
    words = {"".join(made.choices(ascii_lowercase, k=made.randint(2, 9))) for _ in range(20_000)}
    tokens = [bytes([each]) for each in range(256)] + [each.encode() for each in sorted(words)]
    info = xgrammar.TokenizerInfo([*tokens, b"<end>"], stop_token_ids=[len(tokens)])
    return SchemaVocabulary(info.serialize_json(), any_whitespace=True)


class Checkers:
    """Makes checkers, and closes them."""

    def __init__(self, vocabulary: SchemaVocabulary) -> None:
        self._vocabulary = vocabulary
        self._made: list[SchemaChecker] = []

    async def ready(self, lanes: tuple[SchemaLane, ...]) -> SchemaChecker:
        """A checker whose server has started, as its first schema shows."""
        made = SchemaChecker(self._vocabulary, lanes)
        self._made.append(made)
        made.start()
        await made.check(json.dumps({"const": 1}))
        return made

    async def close(self) -> None:
        for each in self._made:
            await each.close()


@pytest_asyncio.fixture
async def checkers(
    vocabulary: SchemaVocabulary, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Checkers]:
    monkeypatch.setattr(schema_checker, "DEADLINE_S", FOR_EVER_S)
    monkeypatch.setattr(schema_checker, "END_TIMEOUT_S", FOR_EVER_S)
    made = Checkers(vocabulary)
    yield made
    await made.close()


async def begin(checker: SchemaChecker, schema: dict[str, object]) -> asyncio.Task[None]:
    """A check whose child process has been asked for."""
    running = checker.running
    task = asyncio.create_task(checker.check(json.dumps(schema)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert checker.running == running + 1
    return task


async def begin_child(checker: SchemaChecker, schema: dict[str, object]) -> asyncio.Task[None]:
    """A check whose child process runs: an honest schema that came later has been compiled."""
    task = await begin(checker, schema)
    await checker.check(json.dumps(COLOR))
    assert not task.done()
    return task


async def refusal(checker: SchemaChecker, schema: dict[str, object]) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as raised:
        await checker.check(json.dumps(schema))
    assert raised.value.field == "json_schema"
    return raised.value


@pytest.mark.parametrize("schema", [SLOW_TO_COMPILE, SLOW_TO_PARSE], ids=["compile", "parse"])
async def test_schema_that_takes_too_much_cpu_is_refused_and_honest_ones_are_not(
    checkers: Checkers, schema: dict[str, object]
) -> None:
    checker = await checkers.ready(SHORT)
    server = checker.pids
    hostile = await begin(checker, schema)
    await checker.check(json.dumps(PERSON))
    with pytest.raises(InvalidArgument, match=r"json_schema: takes more than 0\.3 s of CPU time.*"):
        await hostile
    assert checker.running == 0
    assert checker.pids == server


async def test_honest_schema_completes_while_a_hostile_one_runs(checkers: Checkers) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    hostile = await begin_child(checker, SLOW_TO_COMPILE)
    await checker.check(json.dumps(PERSON))
    assert not hostile.done()


async def test_cancelling_kills_the_child_and_frees_its_slot(checkers: Checkers) -> None:
    checker = await checkers.ready(ONE_AT_A_TIME)
    hostile = await begin(checker, SLOW_TO_COMPILE)
    behind = asyncio.create_task(checker.check(json.dumps(PERSON)))
    hostile.cancel()
    await behind
    assert hostile.cancelled()
    assert checker.running == 0
    assert len(checker.pids) == 1


@pytest.mark.parametrize("pattern", ["\\U" * 2_000, "\\U", "(?=a)b"])
async def test_schema_that_xgrammar_would_not_keep_to_is_refused_and_writes_nothing(
    checkers: Checkers, pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    checker = await checkers.ready(SHORT)
    refused = await refusal(checker, text_of(pattern))
    assert "not" in refused.message
    assert "\n" not in refused.message
    assert "Warning" not in refused.message
    # Other threads of the test process may write, such as gRPC's.
    written = "".join(capfd.readouterr())
    assert "xgrammar" not in written
    assert "Warning" not in written


async def test_schema_that_is_no_schema_is_refused_with_the_reason(checkers: Checkers) -> None:
    checker = await checkers.ready(SHORT)
    assert "chime" in (await refusal(checker, {"type": "chime"})).message


async def test_crash_refuses_its_schema_and_no_other(checkers: Checkers) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    hostile = await begin_child(checker, SLOW_TO_COMPILE)
    server, child = checker.pids
    os.kill(child, signal.SIGSEGV)
    with pytest.raises(InvalidArgument, match="crashes its compiler") as raised:
        await hostile
    assert raised.value.field == "json_schema"
    await checker.check(json.dumps(PERSON))
    assert checker.pids == (server,)


async def test_child_that_is_killed_from_outside_condemns_no_schema(checkers: Checkers) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    task = await begin_child(checker, SLOW_TO_COMPILE)
    kept = checker.kept
    os.kill(checker.pids[1], signal.SIGKILL)
    with pytest.raises(Unavailable):
        await task
    assert checker.kept == kept


async def test_server_that_dies_is_started_again(checkers: Checkers) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    task = await begin_child(checker, SLOW_TO_COMPILE)
    server = checker.pids[0]
    os.kill(server, signal.SIGKILL)
    with pytest.raises(Unavailable):
        await task
    await checker.check(json.dumps(PERSON))
    assert checker.pids[0] != server


async def test_child_that_hangs_is_killed_at_the_deadline(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = await checkers.ready(ONE_AT_A_TIME)
    server = checker.pids
    # The deadline passes at once, whatever the child does.
    monkeypatch.setattr(schema_checker, "DEADLINE_S", 0.0)
    digests = checker.kept
    with pytest.raises(ResourceExhausted):
        await checker.check(json.dumps(SLOW_TO_COMPILE))
    monkeypatch.setattr(schema_checker, "DEADLINE_S", FOR_EVER_S)
    await checker.check(json.dumps(PERSON))
    assert checker.running == 0
    assert checker.kept == digests + 1
    assert checker.pids == server


async def test_server_that_hangs_is_killed_and_started_again(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = await checkers.ready(ONE_AT_A_TIME)
    (server,) = checker.pids
    os.kill(server, signal.SIGSTOP)
    hostile = await begin(checker, SLOW_TO_COMPILE)
    monkeypatch.setattr(schema_checker, "END_TIMEOUT_S", 0.1)
    hostile.cancel()
    await checker.check(json.dumps(PERSON))
    assert hostile.cancelled()
    assert checker.pids[0] != server
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_server_that_cannot_be_started_is_reported_and_tried_again(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    task = await begin_child(checker, SLOW_TO_COMPILE)
    os.kill(checker.pids[0], signal.SIGKILL)
    with pytest.raises(Unavailable):
        await task

    def fails(vocabulary: bytes) -> NoReturn:
        raise OSError("no processes left")

    with monkeypatch.context() as patched:
        patched.setattr(schema_checker, "_start_server", fails)
        checker.start()
        for _ in range(2):
            with pytest.raises(Unavailable, match="no processes left"):
                await checker.check(json.dumps(PERSON))
    await checker.check(json.dumps(PERSON))


async def test_compiled_size_is_bounded(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_checker, "COMPILED_BYTES", 1 << 20)
    checker = await checkers.ready(TWO_AT_A_TIME)
    refused = await refusal(checker, {"type": "string", "maxLength": 200})
    assert "MB of memory when compiled" in refused.message
    await checker.check(json.dumps(PERSON))


async def test_memory_of_a_child_is_bounded(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_checker, "MEMORY_BYTES", 32 << 20)
    checker = await checkers.ready(ONE_AT_A_TIME)
    schema = {"type": "string", "enum": ["x" * 5_000_000]}
    assert "MB of memory" in (await refusal(checker, schema)).message
    await checker.check(json.dumps(COLOR))


async def test_outcomes_are_kept_and_their_number_is_bounded(
    checkers: Checkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_checker, "MAX_KEPT", 2)
    checker = await checkers.ready(SHORT)
    await checker.check(json.dumps(PERSON))
    await refusal(checker, {"type": "chime"})
    assert checker.kept == 2
    await checker.close()
    await checker.check(json.dumps(PERSON))
    await refusal(checker, {"type": "chime"})
    with pytest.raises(Unavailable):
        await checker.check(json.dumps({"const": 1}))


async def test_queue_is_bounded(checkers: Checkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checker, "MAX_WAITING", 1)
    checker = await checkers.ready(ONE_AT_A_TIME)
    hostile = await begin(checker, SLOW_TO_COMPILE)
    behind = asyncio.create_task(checker.check(json.dumps(PERSON)))
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted) as raised:
        await checker.check(json.dumps(COLOR))
    assert raised.value.retry_after_s
    hostile.cancel()
    await behind


async def test_closing_leaves_no_process(checkers: Checkers) -> None:
    checker = await checkers.ready(TWO_AT_A_TIME)
    hostile = await begin_child(checker, SLOW_TO_COMPILE)
    server, child = checker.pids
    await checker.close()
    with pytest.raises(Unavailable):
        await hostile
    for pid in (server, child):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_later_lanes_have_more_time_and_yield() -> None:
    assert [each.cpu_s for each in LANES] == sorted(each.cpu_s for each in LANES)
    assert [each.niceness for each in LANES] == sorted(each.niceness for each in LANES)
