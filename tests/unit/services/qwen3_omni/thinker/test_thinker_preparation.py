"""Prompts are made beside the engine's thread: no text keeps others' replies waiting."""

from __future__ import annotations

import dataclasses
import gc
import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from antiphon.deployment.schema import StageConfig
from antiphon.errors import ErrorCode, InvalidArgument
from antiphon.runtime.engine import Completed, Emitted, Failed, InputChunk, LoadedStage
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import Admit, Feed, Release
from antiphon.runtime.stepping.thread import EngineThread
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen3_omni.thinker.load import load_intake
from antiphon_services.stage.preparation import LARGE_MEDIA_BYTES, LARGE_TEXT_BYTES
from antiphon_services.text.chat import NOTHING, ChatTokenizer, TemplateValue
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.model import Fed, ThinkerFeed
from antiphon_testkit.drive_engine import SegmentOutput, advance, await_ready, run_segment
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    TEXT,
    ask,
    conversation,
    say,
    segment,
)

TIMEOUT_S = 120.0
LONG = ask("water " * (LARGE_TEXT_BYTES // 6 + 1))
ATTACKER = SegmentKey("attacker", 0)


class Held(ChatTokenizer):
    """A tokeniser that takes as long as the test likes for a long text, and says that it began."""

    def __init__(self, chat: ChatTokenizer) -> None:
        super().__init__(chat.tokenizer, None)
        self.began: queue.Queue[int] = queue.Queue()
        self.go_on = threading.Event()

    def encode(
        self,
        messages: Sequence[ConversationMessage],
        tools: Sequence[str] = (),
        variables: Mapping[str, TemplateValue] = NOTHING,
    ) -> list[int]:
        size = sum(len(p.text) for m in messages for p in m.parts if isinstance(p, TextPart))
        self.began.put(size)
        if size >= LARGE_TEXT_BYTES:
            assert self.go_on.wait(TIMEOUT_S)
        return super().encode(messages, tools, variables)


def with_chat(stage: LoadedStage, chat: ChatTokenizer) -> ThinkerEngine:
    """Another engine with the stage's model, and this tokeniser."""
    engine = stage.engine
    assert isinstance(engine, ThinkerEngine)
    intake: PromptIntake = engine.intake
    prompts = dataclasses.replace(intake.prompts, chat=chat)
    return ThinkerEngine(engine.model, dataclasses.replace(intake, prompts=prompts))


@pytest.fixture
def held(small_stage: LoadedStage) -> Iterator[Held]:
    engine = small_stage.engine
    assert isinstance(engine, ThinkerEngine)
    chat = Held(engine.intake.prompts.chat)
    yield chat
    chat.go_on.set()


@pytest.fixture
def thread(
    small_stage: LoadedStage, held: Held, batches: queue.Queue[EngineStepped]
) -> Iterator[EngineThread]:
    thread = EngineThread(with_chat(small_stage, held), batches.put, {})
    thread.start()
    yield thread
    held.go_on.set()
    thread.stop()
    assert thread.join(TIMEOUT_S)


@pytest.fixture
def batches() -> queue.Queue[EngineStepped]:
    return queue.Queue()


def submit(thread: EngineThread, key: SegmentKey, spoken_to: Conversation) -> None:
    settings, (chunk,) = segment(spoken_to, max_tokens=8)
    thread.submit([Admit(key, settings)])
    thread.submit([Feed(key, chunk)])


def until_ended(
    thread: EngineThread, batches: queue.Queue[EngineStepped], wanted: set[SegmentKey]
) -> dict[SegmentKey, Completed | Failed]:
    """How these segments end; fails the test when one does not."""
    ends: dict[SegmentKey, Completed | Failed] = {}
    while not wanted <= ends.keys():
        for event in batches.get(timeout=TIMEOUT_S).events:
            if isinstance(event, Completed | Failed):
                ends[event.key] = event
                thread.submit([Release(event.key)])
        thread.batch_taken()
    return ends


def test_other_replies_are_made_while_a_long_text_is_tokenised(
    thread: EngineThread, held: Held, batches: queue.Queue[EngineStepped]
) -> None:
    submit(thread, ATTACKER, LONG)
    assert held.began.get(timeout=TIMEOUT_S) >= LARGE_TEXT_BYTES
    others = {SegmentKey("honest", number) for number in range(6)}
    for key in others:
        submit(thread, key, TEXT[key.segment % len(TEXT)])
    ends = until_ended(thread, batches, others)
    assert all(isinstance(end, Completed) for end in ends.values())
    assert ATTACKER not in ends
    held.go_on.set()
    end = until_ended(thread, batches, {ATTACKER})[ATTACKER]
    assert isinstance(end, Completed | Failed)


def test_short_prompts_do_not_wait_for_any_number_of_long_texts(
    thread: EngineThread, held: Held, batches: queue.Queue[EngineStepped]
) -> None:
    for number in range(8):
        submit(thread, SegmentKey("attacker", number), LONG)
    assert held.began.get(timeout=TIMEOUT_S) >= LARGE_TEXT_BYTES
    submit(thread, SegmentKey("honest", 0), TEXT[0])
    ends = until_ended(thread, batches, {SegmentKey("honest", 0)})
    assert list(ends) == [SegmentKey("honest", 0)]


def test_long_recordings_do_not_wait_for_long_texts(small_stage: LoadedStage, held: Held) -> None:
    engine = with_chat(small_stage, held)
    heard = SegmentKey("heard", 0)
    for key, spoken_to in ((ATTACKER, LONG), (heard, conversation(say(66.0)))):
        settings, (chunk,) = segment(spoken_to)
        engine.admit(key, settings)
        engine.accept(key, chunk)
    assert chunk.tensors["audio.0"].nbytes > LARGE_MEDIA_BYTES
    await_ready(engine, [heard])
    assert engine.prepares(ATTACKER)
    for key in (ATTACKER, heard):
        engine.release(key)


def test_release_drops_a_preparation_that_waits_with_its_input(
    small_stage: LoadedStage, held: Held
) -> None:
    engine = with_chat(small_stage, held)
    settings, (chunk,) = segment(LONG)
    waiting = SegmentKey("waiting", 0)
    for key in (ATTACKER, waiting):
        engine.admit(key, settings)
    engine.accept(ATTACKER, chunk)
    assert held.began.get(timeout=TIMEOUT_S) >= LARGE_TEXT_BYTES
    copy = chunk.tensors["messages"].copy()
    alive = weakref.ref(copy)
    engine.accept(waiting, structs.replace(chunk, tensors={"messages": copy}))
    del copy
    assert engine.prepares(waiting)
    engine.release(waiting)
    assert alive() is None
    engine.release(ATTACKER)
    held.go_on.set()
    engine.close()
    assert held.began.empty()


def test_all_prompts_that_were_made_leave_in_one_step(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    assert isinstance(engine, ThinkerEngine)
    ready: queue.Queue[None] = queue.Queue()
    engine.wake_with(lambda: ready.put(None))
    keys = {SegmentKey("burst", number) for number in range(64)}
    for key in keys:
        settings, (chunk,) = segment(TEXT[key.segment % len(TEXT)], max_tokens=1)
        engine.admit(key, settings)
        engine.accept(key, chunk)
    for _ in keys:
        ready.get(timeout=TIMEOUT_S)
    assert not any(engine.prepares(key) for key in keys)
    events = engine.step()
    assert {each.key for each in events if isinstance(each, Emitted)} == keys
    assert {each.edge for each in events if isinstance(each, Emitted)} == {"prompt"}
    for key in keys:
        engine.release(key)


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    small_stage: LoadedStage, held: Held
) -> None:
    engine = with_chat(small_stage, held)
    prompts = engine.intake.prompts
    out = run_segment(engine, *segment(ask("x" * (prompts.max_text_bytes + 1))))
    assert out.failed is not None
    assert (out.failed.error.code, out.failed.error.field) == (
        ErrorCode.INVALID_ARGUMENT,
        "messages",
    )
    assert str(prompts.max_text_bytes) in out.failed.error.message
    assert held.began.empty()


def test_accept_refuses_messages_that_are_larger_than_any_that_fit(
    small_stage: LoadedStage, held: Held
) -> None:
    engine = with_chat(small_stage, held)
    settings, (chunk,) = segment(TEXT[0])
    engine.admit(ATTACKER, settings)
    most = engine.intake.prompts.max_text_bytes
    huge = {"messages": np.zeros(16 * most, np.uint8)}
    with pytest.raises(InvalidArgument, match="context limit") as raised:
        engine.accept(ATTACKER, structs.replace(chunk, tensors=huge))
    assert raised.value.field == "messages"
    engine.release(ATTACKER)


def test_text_of_control_characters_passes_the_bound_when_it_fits(
    small_stage: LoadedStage,
) -> None:
    out = run_segment(small_stage.engine, *segment(ask("\x01" * 300), max_tokens=2))
    assert out.completed is not None


def test_no_text_that_fits_is_longer_than_the_bound(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    assert isinstance(engine, ThinkerEngine)
    prompts = engine.intake.prompts
    vocabulary = prompts.chat.tokenizer.get_vocab()
    longest = max(vocabulary.values(), key=lambda id_: len(prompts.chat.tokenizer.decode([id_])))
    text = prompts.chat.tokenizer.decode([longest])
    # Hangul, decomposed: composing it makes a third of the bytes.
    for repeated in (text, "\u1112\u1161\u11ab"):
        ids = prompts.chat.encode(ask(repeated * 100).messages)
        assert len((repeated * 100).encode()) <= len(ids) * prompts.chat.bytes_per_id


def test_a_refused_input_is_let_go_without_a_garbage_collection(
    small_stage: LoadedStage,
) -> None:
    engine = small_stage.engine
    settings, (chunk,) = segment(ask("water " * 33000))
    copy = chunk.tensors["messages"].copy()
    alive = weakref.ref(copy)
    gc.disable()
    try:
        engine.admit(ATTACKER, settings)
        engine.accept(ATTACKER, InputChunk("input", 0, {"messages": copy}, True))
        del copy
        outputs = {ATTACKER: SegmentOutput()}
        advance(engine, outputs)
        failed = outputs.pop(ATTACKER).failed
        assert failed is not None
        assert failed.error.code is ErrorCode.INVALID_ARGUMENT
        del failed
        assert alive() is None
    finally:
        gc.enable()


def test_description_tells_how_much_text_can_fit(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    assert isinstance(engine, ThinkerEngine)
    assert small_stage.facts.max_input_text_bytes == engine.intake.prompts.max_text_bytes


def test_intake_bounds_text_by_the_configured_context(
    small_dir: Path, small_stage: LoadedStage
) -> None:
    assert isinstance(small_stage.engine, ThinkerEngine)
    whole = small_stage.engine.intake.prompts.max_text_bytes
    less = load_intake(small_dir, StageConfig(context_limit=128))
    assert less.prompts.max_text_bytes == whole * 128 // small_stage.facts.context_limit


def test_short_texts_that_come_together_are_prefilled_in_one_forward(
    small_stage: LoadedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = small_stage.engine
    assert isinstance(engine, ThinkerEngine)
    forwards: list[int] = []
    forward = engine.model.forward

    def count(feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        forwards.append(len(feeds))
        return forward(feeds)

    monkeypatch.setattr(engine.model, "forward", count)
    keys = {SegmentKey("together", number) for number in range(4)}
    for key in keys:
        settings, (chunk,) = segment(TEXT[key.segment % len(TEXT)], max_tokens=1)
        engine.admit(key, settings)
        engine.accept(key, chunk)
    begun, first = engine.step(), engine.step()
    assert {each.key for each in begun} == keys
    assert {each.key for each in first if isinstance(each, Completed)} == keys
    assert forwards == [len(keys)]
    for key in keys:
        engine.release(key)
