"""What the talker's engine does beside codes: holding, ending, refusing, and others' faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from antiphon.errors import Internal, InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import Emitted
from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_tts.talker.engine import CODES, TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.front_end import SpeechFrontEnd
from antiphon_services.qwen3_tts.talker.prompt import Prompt
from antiphon_services.qwen3_tts.talker.voice_options import VoiceOptions
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_testkit.drive_engine import SegmentOutput, advance, await_ready
from tests.unit.services.changed_tensor import with_changed_tensor
from tests.unit.services.qwen3_tts.talker.tts_talker_lab import (
    CASES,
    GREEDY,
    LIMIT,
    SLOTS,
    Asked,
    Lab,
    asked,
    frames_of,
)

TIMEOUT_S = 120.0
FIRST, SECOND, THIRD = (SegmentKey("session", number) for number in range(3))
CASE = CASES["voice-0-whole"]


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


@pytest.fixture
def lab(labs: dict[str, Lab]) -> Lab:
    return labs["custom_voice"]


@pytest.fixture
def own_lab(checkpoints: dict[str, Path], recorded: Tensors, launch_ahead: bool) -> Lab:
    """One whose weights may be changed."""
    return Lab(checkpoints["custom_voice"], recorded, launch_ahead=launch_ahead)


class OddFrontEnd(SpeechFrontEnd):
    """One that waits for `go_on` or changes the prompt where the text says so."""

    def __init__(self, front_end: SpeechFrontEnd) -> None:
        self.inner = front_end
        self.began, self.go_on = threading.Event(), threading.Event()

    def check_size(self, json_bytes: int) -> None:
        self.inner.check_size(json_bytes)

    def prepare(self, tensors: Tensors, manner: VoiceOptions) -> Prompt:
        made = self.inner.prepare(tensors, manner)
        text = tensors["messages"].tobytes()
        if b"slow" in text:
            self.began.set()
            assert self.go_on.wait(TIMEOUT_S)
        if b"no such id" in text:
            return replace(made, text=made.text + (np.arange(len(made.text)) == 5) * 10**6)
        if b"not a number" in text:
            codec = np.where(np.arange(len(made.codec)) == 5, -2, made.codec)
            vector = np.full(48, np.nan, np.float32)
            return replace(made, codec=codec, vector=vector)
        return made


@pytest.fixture
def odd(lab: Lab) -> Iterator[tuple[TtsTalkerEngine, OddFrontEnd]]:
    """The lab's model behind a front end that does what texts say."""
    engine = lab.engine
    front_end = OddFrontEnd(engine.front_end)
    yield (
        TtsTalkerEngine(engine.model, front_end, lab.kind, LIMIT, launch_ahead=lab.launch_ahead),
        front_end,
    )
    front_end.go_on.set()


def begin(engine: TtsTalkerEngine, questions: Mapping[SegmentKey, Asked]) -> None:
    for key, (settings, chunks) in questions.items():
        engine.admit(key, settings)
        for chunk in chunks:
            engine.accept(key, chunk)


def run(
    engine: TtsTalkerEngine, questions: Mapping[SegmentKey, Asked]
) -> dict[SegmentKey, SegmentOutput]:
    begin(engine, questions)
    outputs = {key: SegmentOutput() for key in questions}
    advance(engine, outputs)
    return outputs


def test_segment_waits_for_its_message(lab: Lab) -> None:
    settings, (chunk,) = lab.ask(CASE)
    lab.engine.admit(FIRST, settings)
    assert lab.engine.awaited_edge(FIRST) == "input"
    lab.engine.accept(FIRST, structs.replace(chunk, segment_finished=False))
    assert lab.engine.awaited_edge(FIRST) == "input"
    assert not lab.engine.prepares(FIRST)
    lab.engine.accept(FIRST, structs.replace(chunk, tensors={}))
    assert lab.engine.awaited_edge(FIRST) is None
    output = SegmentOutput()
    advance(lab.engine, {FIRST: output})
    assert frames_of(output) == lab.expected(CASE)


def test_others_go_on_and_the_slot_is_reused_when_a_segment_is_cancelled_midway(lab: Lab) -> None:
    questions = {FIRST: lab.ask(CASE), SECOND: lab.ask(CASES["voice-2-whole"])}
    begin(lab.engine, questions)
    outputs = {key: SegmentOutput() for key in questions}
    advance(lab.engine, outputs, steps=5)
    assert outputs[SECOND].emitted
    lab.engine.release(SECOND)
    del outputs[SECOND]
    assert not outputs[FIRST].completed
    again = lab.ask(CASES["voice-3-trailing"])
    begin(lab.engine, {THIRD: again})
    outputs[THIRD] = SegmentOutput()
    advance(lab.engine, outputs)
    assert frames_of(outputs[FIRST]) == lab.expected(CASE)
    assert frames_of(outputs[THIRD]) == lab.expected(CASES["voice-3-trailing"])


def test_cancelled_segment_is_forgotten_when_its_prompt_is_being_made(
    odd: tuple[TtsTalkerEngine, OddFrontEnd], lab: Lab
) -> None:
    engine, front_end = odd
    begin(engine, {FIRST: asked("slow")})
    assert front_end.began.wait(TIMEOUT_S)
    engine.release(FIRST)
    front_end.go_on.set()
    outputs = run(engine, {SECOND: lab.ask(CASE)})
    assert frames_of(outputs[SECOND]) == lab.expected(CASE)


def test_others_speak_while_a_prompt_is_being_made(
    odd: tuple[TtsTalkerEngine, OddFrontEnd], lab: Lab
) -> None:
    engine, front_end = odd
    begin(engine, {FIRST: asked("slow")})
    assert front_end.began.wait(TIMEOUT_S)
    begin(engine, {SECOND: lab.ask(CASE)})
    output = SegmentOutput()
    advance(engine, {SECOND: output})
    assert frames_of(output) == lab.expected(CASE)
    assert engine.prepares(FIRST)
    front_end.go_on.set()
    output = SegmentOutput()
    advance(engine, {FIRST: output})
    assert frames_of(output)


def test_short_recordings_do_not_wait_for_long_ones(
    odd: tuple[TtsTalkerEngine, OddFrontEnd], labs: dict[str, Lab]
) -> None:
    _, front_end = odd
    base = labs["base"]
    front_end.inner = base.engine.front_end
    engine = TtsTalkerEngine(base.engine.model, front_end, base.kind, LIMIT)
    long = np.zeros(12 * 24_000, np.float32)
    slow = [SegmentKey("slow", number) for number in range(3)]
    begin(engine, {key: asked("slow", reference_audio=long) for key in slow})
    assert front_end.began.wait(TIMEOUT_S)
    case = CASES["codes-2-trailing"]
    begin(engine, {FIRST: labs["base"].ask(case)})
    output = SegmentOutput()
    advance(engine, {FIRST: output})
    assert frames_of(output) == labs["base"].expected(case)
    assert all(engine.prepares(key) for key in slow)
    front_end.go_on.set()
    for key in slow:
        engine.release(key)


def test_held_segment_costs_nothing_and_goes_on_where_it_was(lab: Lab) -> None:
    questions = {FIRST: lab.ask(CASE), SECOND: lab.ask(CASES["voice-2-whole"])}
    begin(lab.engine, questions)
    outputs = {key: SegmentOutput() for key in questions}
    advance(lab.engine, outputs, steps=4)
    made = len(outputs[FIRST].emitted)
    assert made
    segment = lab.engine.segments[FIRST]
    reached = segment.launched
    while not outputs[SECOND].completed:
        for event in lab.engine.step({FIRST}):
            assert event.key == SECOND
            if isinstance(event, Emitted):
                outputs[SECOND].emitted.append(event)
            else:
                outputs[SECOND].completed = event  # type: ignore[assignment]
    lab.engine.release(SECOND)
    assert frames_of(outputs[SECOND]) == lab.expected(CASES["voice-2-whole"])
    assert segment.launched == reached
    advance(lab.engine, {FIRST: outputs[FIRST]})
    assert frames_of(outputs[FIRST]) == lab.expected(CASE)


def test_others_get_a_frame_each_step_when_a_long_prompt_is_read(
    lab: Lab, launch_ahead: bool
) -> None:
    engine = lab.engine
    long = asked("find the number of days " * 60, text_mode="whole")
    begin(engine, {FIRST: lab.ask(CASE), SECOND: long})
    await_ready(engine, [FIRST, SECOND])
    outputs = {key: SegmentOutput() for key in (FIRST, SECOND)}
    steps = 0
    while not outputs[SECOND].emitted:
        advance(engine, outputs, steps=1)
        steps += 1
        # What was launched ahead leaves a step later.
        assert len(outputs[FIRST].emitted) >= steps - 1 - launch_ahead
    rows = engine.segments[SECOND].prompt.prompt_rows
    assert rows is not None
    assert rows > PREFILL_ROWS
    assert steps == -(-rows // PREFILL_ROWS) + launch_ahead
    advance(engine, outputs)
    assert frames_of(outputs[FIRST]) == lab.expected(CASE)


def test_slot_is_refused_when_all_are_taken_and_free_when_one_ends(lab: Lab) -> None:
    keys = [SegmentKey("crowd", number) for number in range(SLOTS)]
    begin(lab.engine, {key: lab.ask(CASE) for key in keys})
    settings, (chunk,) = lab.ask(CASE)
    lab.engine.admit(FIRST, settings)
    with pytest.raises(ResourceExhausted, match="slots"):
        lab.engine.accept(FIRST, chunk)
    lab.engine.release(FIRST)
    lab.engine.release(keys.pop())
    begin(lab.engine, {SECOND: lab.ask(CASE)})
    outputs = {key: SegmentOutput() for key in (*keys, SECOND)}
    advance(lab.engine, outputs)
    assert all(frames_of(each) == lab.expected(CASE) for each in outputs.values())


def test_stop_code_is_not_drawn_among_the_first_two_when_it_is_the_likeliest(
    checkpoints: dict[str, Path], recorded: Tensors, launch_ahead: bool, lab: Lab, tmp_path: Path
) -> None:
    first, second, *_ = lab.expected(CASE)
    stop = lab.engine.model.ids.stop

    def stop_instead(head: torch.Tensor) -> None:
        head[stop] = 2 * head[first[0]]

    changed = with_changed_tensor(
        checkpoints["custom_voice"], tmp_path / "changed", "talker.codec_head.weight", stop_instead
    )
    own_lab = Lab(changed, recorded, launch_ahead=launch_ahead)
    (output,) = own_lab.speak(own_lab.ask(CASE))
    assert frames_of(output)[:1] == [first]
    assert second


def test_speech_ends_without_frames_when_one_draw_is_allowed(lab: Lab) -> None:
    (output,) = lab.speak(lab.ask(CASE, replace(GREEDY, max_tokens=1)))
    assert frames_of(output) == []
    assert output.finish_reason(CODES) is FinishReason.LENGTH


def test_speech_ends_where_the_context_does(
    checkpoints: dict[str, Path], recorded: Tensors
) -> None:
    case = CASES["long"]
    narrow = Lab(checkpoints["custom_voice"], recorded, limit=32)
    (output,) = narrow.speak(narrow.ask(case))
    assert output.completed is not None
    frames = frames_of(output)
    assert output.completed.finish_reason is FinishReason.LENGTH
    # The last row, behind which one more code is drawn, is the context's last.
    assert len(frames) == 32 - output.completed.input_positions
    assert frames == narrow.expected(case)[: len(frames)]


@pytest.mark.parametrize(
    ("text", "told"),
    [("no such id", "out of range"), ("not a number", "not finite")],
)
def test_fault_of_one_segment_is_no_other_segments(
    text: str, told: str, odd: tuple[TtsTalkerEngine, OddFrontEnd], lab: Lab
) -> None:
    engine, _ = odd
    cases = [CASES["voice-0-whole"], CASES["language-3-trailing"]]
    questions = {FIRST: lab.ask(cases[0]), SECOND: asked(text), THIRD: lab.ask(cases[1])}
    outputs = run(engine, questions)
    failed = outputs[SECOND].failed
    assert failed is not None
    assert isinstance(failed.error, Internal)
    assert told in failed.error.message
    assert frames_of(outputs[FIRST]) == lab.expected(cases[0])
    assert frames_of(outputs[THIRD]) == lab.expected(cases[1])
    # Nor of those that get its slot.
    crowd = {SegmentKey("later", number): lab.ask(CASE) for number in range(SLOTS)}
    assert all(frames_of(each) == lab.expected(CASE) for each in run(engine, crowd).values())


def test_admit_refuses_another_output(lab: Lab) -> None:
    settings, _ = lab.ask(CASE)
    with pytest.raises(InvalidArgument) as refused:
        lab.engine.admit(FIRST, replace(settings, outputs=frozenset({"audio"})))
    assert refused.value.field == "outputs"
