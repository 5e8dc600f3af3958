"""The thinker's prompts and answers are those of Dynin-Omni's own code, in any company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument
from antiphon.pipelines.dynin_omni import IMAGE_TOKENS, INPUT, TEXT, UNITS
from antiphon.pipelines.files import read_config
from antiphon.runtime.engine import (
    Advanced,
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    LoadedStage,
)
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    TextPart,
    to_tensors,
)
from antiphon.values.options import IMAGE, OptionValue
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.diffusion.llada import Llada
from antiphon_services.dynin_omni.thinker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, await_ready, run_segment, run_segments
from antiphon_testkit.dynin_omni.tiny_checkpoint import PRESETS
from tests.equality.dynin_omni.dynin_asking import edge_of, masked_asked
from tests.equality.dynin_omni.dynin_cases import (
    CASES,
    IMAGE_TASKS,
    SPEECH_TASKS,
    TEXT_TASKS,
    DyninCase,
    recording,
)
from tests.equality.dynin_omni.dynin_truth import DyninTruth

pytestmark = pytest.mark.equality

BY_NAME = {case.name: case for case in CASES}
KEY = SegmentKey("test", 0)


@pytest.fixture(scope="module")
def loaded(dynin_checkpoints: dict[str, Path], preset: str) -> Iterator[LoadedStage]:
    """The stage of a checkpoint."""
    stage = load(dynin_checkpoints[preset], StageConfig(slots=len(CASES)))
    yield stage
    stage.engine.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def config(dynin_checkpoints: dict[str, Path], preset: str) -> dict[str, Any]:
    """Its configuration."""
    return read_config(dynin_checkpoints[preset])


def check_answer(
    case: DyninCase, output: SegmentOutput, truth: DyninTruth, preset: str, ends: set[int]
) -> None:
    """The answer is the recorded one, up to its end."""
    assert output.failed is None, output.failed
    stem, edge = f"{preset}/{case.name}", edge_of(case)
    made = output.tensors(edge)
    wanted = truth.ids(stem, ends if case.kind in TEXT_TASKS else ())
    ids = made["ids"] if edge == TEXT else made.get(edge, np.empty(0, np.uint16))
    assert ids.tolist() == wanted, stem
    if edge == TEXT:
        assert made["utf8"].tobytes().decode() == truth.words[stem]
    cost = output.completed
    assert cost is not None
    assert (cost.input_positions, cost.output_positions) == (len(truth.prompt(stem)), len(wanted))
    if case.kind in IMAGE_TASKS:
        assert output.finish_reason(edge) is FinishReason.STOP
    else:
        ended = len(wanted) < case.count or (edge == TEXT and wanted[-1] in ends)
        assert output.finish_reason(edge) is (FinishReason.STOP if ended else FinishReason.LENGTH)


@pytest.fixture(scope="module")
def ends(dynin_checkpoints: dict[str, Path], preset: str, config: dict[str, Any]) -> set[int]:
    """Ids that end text: the end of a turn is the last one of the tokenizer."""
    first_image = config["vocab_size"] - 8192 - 4096
    return {config["eos_token_id"], first_image - 1}


@pytest.mark.parametrize("name", BY_NAME)
def test_prompt_and_answer_are_the_recorded_ones(
    name: str,
    preset: str,
    loaded: LoadedStage,
    config: dict[str, Any],
    ends: set[int],
    dynin_truth: DyninTruth,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, read = BY_NAME[name], list[list[int]]()
    forward = Llada.forward

    def watched(model: Llada, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        read.append((ids[0] if seen is None else ids[0][seen[0]]).tolist())
        return forward(model, ids, seen)

    monkeypatch.setattr(Llada, "forward", watched)
    output = run_segment(loaded.engine, *masked_asked(case))
    check_answer(case, output, dynin_truth, preset, ends)
    wanted = dynin_truth.prompt(f"{preset}/{name}")
    assert [each for each in read[0] if each != config["mask_token_id"]] == wanted


def test_answers_are_the_same_when_they_share_calls(
    preset: str, loaded: LoadedStage, ends: set[int], dynin_truth: DyninTruth
) -> None:
    cases = {SegmentKey(case.name, 0): case for case in CASES}
    made = run_segments(loaded.engine, {key: masked_asked(case) for key, case in cases.items()})
    for key, case in cases.items():
        check_answer(case, made[key], dynin_truth, preset, ends)


def test_recorded_answers_end_by_themselves_and_at_their_length(
    ends: set[int], dynin_truth: DyninTruth
) -> None:
    """Else the recorded answers compare little."""
    for kinds in (TEXT_TASKS, SPEECH_TASKS):
        cases = [case for case in CASES if case.kind in kinds]
        whole = {
            len(dynin_truth.ids(f"{preset}/{case.name}", ends)) == case.count
            for case in cases
            for preset in PRESETS
        }
        assert whole == {True, False}, kinds


def events_of(loaded: LoadedStage, case: DyninCase, **changed: Any) -> list[EngineEvent]:
    """All events of a case, in order."""
    settings, chunks = masked_asked(case)
    engine, events = loaded.engine, list[EngineEvent]()
    engine.admit(KEY, replace(settings, **changed))
    for chunk in chunks:
        engine.accept(KEY, chunk)
    await_ready(engine, [KEY])
    while not events or not isinstance(events[-1], Completed | Failed):
        events += engine.step()
    engine.release(KEY)
    return events


def test_steps_are_reported_and_finished_blocks_leave_once(loaded: LoadedStage) -> None:
    case = BY_NAME["greedy"]
    events = events_of(loaded, case)
    steps = [each for each in events if isinstance(each, Advanced)]
    assert [each.done for each in steps] == list(range(1, len(steps) + 1))
    assert steps[-1].done == steps[-1].due <= case.steps
    blocks = [each for each in events if isinstance(each, Emitted)]
    assert [each.position for each in blocks] == list(range(0, 16 * len(blocks), 16))
    assert len(blocks) == -(-len(steps) // (case.steps // 4))


def test_text_ends_before_a_stop_string(
    preset: str, loaded: LoadedStage, dynin_truth: DyninTruth
) -> None:
    case = BY_NAME["greedy"]
    words = dynin_truth.words[f"{preset}/greedy"]
    stop = words[len(words) // 3 :][:3]
    settings, _ = masked_asked(case)
    events = events_of(loaded, case, sampling=replace(settings.sampling, stop=(stop,)))
    made = b"".join(each.tensors["utf8"].tobytes() for each in events if isinstance(each, Emitted))
    assert made.decode() == words[: words.index(stop)]
    assert isinstance(events[-1], Completed)
    assert events[-1].finish_reason is FinishReason.STOP
    assert sum(isinstance(each, Advanced) for each in events) < case.steps


def test_other_edges_end_without_output(loaded: LoadedStage) -> None:
    outputs = frozenset({TEXT, UNITS, IMAGE_TOKENS})
    output = run_segment(loaded.engine, *masked_asked(BY_NAME["drawn-image"], outputs))
    assert not output.tensors(TEXT)
    assert not output.tensors(UNITS)
    assert all(output.finish_reason(edge) is FinishReason.STOP for edge in outputs)


def test_image_needs_no_task_when_images_are_asked_for(
    preset: str, loaded: LoadedStage, ends: set[int], dynin_truth: DyninTruth
) -> None:
    case = BY_NAME["drawn-image"]
    settings, chunks = masked_asked(case)
    options = {name: each for name, each in settings.options.items() if name != "task"}
    output = run_segment(loaded.engine, replace(settings, options=options), chunks)
    check_answer(case, output, dynin_truth, preset, ends)


def test_live_recording_is_heard_as_a_whole_one(
    preset: str, loaded: LoadedStage, ends: set[int], dynin_truth: DyninTruth
) -> None:
    case, heard = BY_NAME["spoken"], recording()
    settings, _ = masked_asked(case)
    live = ConversationMessage("user", (AudioPart(0, live=True),))
    chunks = [InputChunk(INPUT, 0, to_tensors(Conversation((live,))))]
    for start in range(0, len(heard), 6000):
        last = start + 6000 >= len(heard)
        piece = {"samples": heard[start : start + 6000]}
        reason = FinishReason.STOP if last else None
        chunks.append(InputChunk(INPUT, 1, piece, last, reason))
    output = run_segment(loaded.engine, replace(settings, live=True), chunks)
    check_answer(case, output, dynin_truth, preset, ends)


def said(*messages: tuple[str, str]) -> list[InputChunk]:
    """A conversation of texts."""
    made = tuple(ConversationMessage(role, (TextPart(text),)) for role, text in messages)  # type: ignore[arg-type]
    return [InputChunk(INPUT, 0, to_tensors(Conversation(made)), True, FinishReason.STOP)]


@pytest.mark.parametrize(
    ("options", "outputs", "asked", "field"),
    [
        ({"task": "speech"}, {TEXT}, {}, "options.task"),
        ({"task": "image"}, {TEXT, UNITS}, {}, "options.task"),
        ({"task": "dialogue"}, {IMAGE_TOKENS}, {}, "options.task"),
        ({"size": "24x24"}, {TEXT}, {}, "options.size"),
        ({"steps": 2.5}, {TEXT}, {}, "options.steps"),
        ({"block": 8.0}, {IMAGE_TOKENS}, {}, "options.block"),
        ({}, {"audio"}, {}, "outputs"),
        ({}, {TEXT}, {"top_logprobs": 1}, "top_logprobs"),
        ({}, {TEXT}, {"repetition_penalty": 1.1}, "repetition_penalty"),
        ({}, {TEXT}, {"json_schema": "{}"}, "json_schema"),
    ],
)
def test_settings_without_a_place_are_refused(
    options: dict[str, OptionValue],
    outputs: set[str],
    asked: dict[str, Any],
    field: str,
    loaded: LoadedStage,
) -> None:
    settings, _ = masked_asked(BY_NAME["one"])
    sampling = settings.sampling.with_request(SamplingRequest(**asked))
    bad = replace(settings, options=options, outputs=frozenset(outputs), sampling=sampling)
    with pytest.raises(AntiphonError) as refused:
        loaded.engine.admit(KEY, bad)
    assert refused.value.field == field


def test_voice_is_refused(loaded: LoadedStage) -> None:
    settings, _ = masked_asked(BY_NAME["one"])
    with pytest.raises(InvalidArgument, match=r"options\.style"):
        loaded.engine.admit(KEY, replace(settings, voice="anna"))


TURNS = (("user", "a"), ("assistant", "b"), ("user", "c"))


@pytest.mark.parametrize(
    ("options", "outputs", "messages", "most", "field"),
    [
        ({}, {TEXT}, (("user", "a"), ("assistant", "b")), None, "messages"),
        ({}, {TEXT, UNITS}, (("user", "a"),), None, "options.task"),
        ({"task": "speech"}, {UNITS}, TURNS, None, "messages"),
        ({"task": "speech"}, {UNITS}, (("user", " "),), None, "messages"),
        ({"task": "transcription"}, {TEXT}, (("user", "a"),), None, "messages"),
        ({"task": "image"}, {IMAGE_TOKENS}, (("user", " "),), None, "messages"),
        ({"task": "image"}, {IMAGE_TOKENS}, TURNS, None, "messages"),
        ({"task": "image"}, {IMAGE_TOKENS}, (("user", "a"),), 9, "max_tokens"),
        ({"task": "image", "size": "9x9"}, {IMAGE_TOKENS}, (("user", "a"),), None, "options.size"),
        ({}, {TEXT}, (("user", "a b " * 1200),), None, "messages"),
    ],
)
def test_messages_without_a_place_are_refused(
    options: dict[str, OptionValue],
    outputs: set[str],
    messages: tuple[tuple[str, str], ...],
    most: int | None,
    field: str,
    loaded: LoadedStage,
) -> None:
    settings, _ = masked_asked(BY_NAME["one"])
    asked = SamplingRequest(max_tokens=most)
    bad = replace(settings, options=options, outputs=frozenset(outputs), asked=asked)
    output = run_segment(loaded.engine, bad, said(*messages))
    assert output.failed is not None
    assert output.failed.error.field == field, output.failed


def test_media_in_the_wrong_place_are_refused(loaded: LoadedStage) -> None:
    for name, options, outputs, wanted in (
        ("shown", {}, {TEXT, UNITS}, "options.task"),
        ("heard", {}, {TEXT, UNITS}, "messages"),
        ("spoken", {}, {TEXT}, "messages"),
        ("heard", {"task": IMAGE}, {IMAGE_TOKENS}, "messages"),
        ("shown", {"task": "transcription"}, {TEXT}, "messages"),
    ):
        settings, chunks = masked_asked(BY_NAME[name])
        changed = replace(settings, options=options, outputs=frozenset(outputs))
        output = run_segment(loaded.engine, changed, chunks)
        assert output.failed is not None
        assert output.failed.error.field == wanted, (name, output.failed)


def test_bad_media_are_refused_by_their_names(loaded: LoadedStage) -> None:
    settings, chunks = masked_asked(BY_NAME["shown"])
    bad = {**chunks[0].tensors, "image.0": np.zeros(9, np.uint8)}
    output = run_segment(
        loaded.engine, settings, [InputChunk(INPUT, 0, bad, True, FinishReason.STOP)]
    )
    assert output.failed is not None
    assert output.failed.error.field == "image.0"
    settings, chunks = masked_asked(BY_NAME["transcribed"])
    bad = {**chunks[0].tensors, "audio.0": np.zeros(9, np.float32)}
    output = run_segment(
        loaded.engine, settings, [InputChunk(INPUT, 0, bad, True, FinishReason.STOP)]
    )
    assert output.failed is not None
    assert output.failed.error.field == "audio.0"


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_vq_tokens", 35), ("num_vq_tokens", 33**2), ("mask_token_id", None)],
)
def test_checkpoint_that_does_not_fit_together_is_refused(
    field: str, value: object, dynin_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    source = dynin_checkpoints["released"]
    for each in source.iterdir():
        if each.name != "config.json":
            (tmp_path / each.name).symlink_to(each)
    (tmp_path / "config.json").write_text(json.dumps(read_config(source) | {field: value}))
    with pytest.raises(FailedPrecondition, match=field):
        load(tmp_path, StageConfig(slots=1))
