"""What the talker waits for, refuses and limits."""

from dataclasses import replace
from typing import Self

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import (
    Internal,
    InvalidArgument,
)
from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment
from tests.unit.services.qwen3_omni.talker.talker_lab import GREEDY, SAMPLED, Lab, Turn, codes_of

KEY = SegmentKey("session", 3)


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Driven:
    """One segment on the lab's engine, fed by hand."""

    def __init__(self, lab: Lab, turn: Turn, key: SegmentKey = KEY) -> None:
        self.engine, self.key, self.output = lab.stage.engine, key, SegmentOutput()
        self.engine.admit(key, turn.settings)

    def feed(self, chunk: InputChunk) -> str | None:
        """Accept, advance to rest; the edge that is then awaited."""
        self.engine.accept(self.key, chunk)
        advance(self.engine, {self.key: self.output})
        done = self.output.completed or self.output.failed
        return None if done else self.engine.awaited_edge(self.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not (self.output.completed or self.output.failed):
            self.engine.release(self.key)

    @property
    def frames(self) -> int:
        return sum(bool(each.tensors) for each in self.output.emitted)


def test_segment_waits_for_what_is_missing_when_input_is_late(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    with Driven(small, turn) as driven:
        prompt, tokens = turn.prompt_chunks(rows_per_chunk=2), turn.token_chunks(per_chunk=1)
        assert driven.engine.awaited_edge(KEY) == "prompt"
        assert [driven.feed(chunk) for chunk in prompt] == ["prompt", "prompt", "tokens"]
        assert driven.frames == 0
        for count, chunk in enumerate(tokens[:-1], 1):
            assert driven.feed(chunk) == "tokens"
            # The first token completes the prompt, each is one frame, and none is drawn ahead.
            assert driven.frames == count
        assert driven.feed(tokens[-1]) is None
        assert driven.frames == len(small.reference(turn).codes)


def test_segment_waits_for_the_prompt_when_tokens_come_first(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    with Driven(small, turn) as driven:
        assert {driven.feed(chunk) for chunk in turn.token_chunks()} == {"prompt"}
        awaited = [driven.feed(chunk) for chunk in turn.prompt_chunks(rows_per_chunk=2)]
        assert awaited == ["prompt", "prompt", None]


def test_frame_is_emitted_when_the_next_text_has_not_come(small: Lab) -> None:
    turn = small.turn(2)
    with Driven(small, turn) as driven:
        for chunk in turn.prompt_chunks():
            driven.feed(chunk)
        assert driven.feed(turn.token_chunks(per_chunk=1)[0]) == "tokens"
        assert driven.output.emitted[-1].tensors["codes"].tolist() == [
            small.reference(turn).codes[0].tolist()
        ]


def test_segment_ends_without_frames_when_nothing_is_said(lab: Lab) -> None:
    turn = lab.make_turn(lab.question(1, audio=2), [])
    output = run_segment(lab.stage.engine, turn.settings, turn.chunks())
    assert len(codes_of(lab, output)) == 0
    assert output.finish_reason("codes") is FinishReason.STOP
    # Nothing is computed for it, so it need not wait for hidden rows either.
    with Driven(lab, turn) as driven:
        assert driven.feed(turn.token_chunks()[0]) == "prompt"
        assert driven.feed(turn.prompt_chunks()[0]) is None
        assert driven.output.finish_reason("codes") is FinishReason.STOP


def test_segment_ends_without_frames_when_one_token_is_allowed(lab: Lab) -> None:
    turn = lab.turn(3, sampling=replace(GREEDY, max_tokens=1))
    output = run_segment(lab.stage.engine, turn.settings, turn.chunks())
    assert len(codes_of(lab, output)) == 0
    assert output.finish_reason("codes") is FinishReason.LENGTH


def test_usage_counts_prompt_rows_and_frames_when_segment_ends(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    output = run_segment(small.stage.engine, turn.settings, turn.chunks())
    assert output.completed is not None
    # The user segment has 5 ids around its 11; nine rows follow.
    assert output.completed.input_positions == 5 + 11 + 9
    assert output.completed.output_positions == len(small.reference(turn).codes)


def test_others_go_on_when_a_segment_is_released_midway(small: Lab) -> None:
    turn = small.turn(2)
    chunks, expected = turn.chunks(), small.reference(turn).codes.tolist()
    with Driven(small, turn) as staying:
        with Driven(small, turn, SegmentKey("leaving", 0)) as leaving:
            for chunk in chunks[:-1]:
                staying.feed(chunk)
                leaving.feed(chunk)
            assert 0 < leaving.frames < len(expected)
        with pytest.raises(KeyError):
            small.stage.engine.awaited_edge(leaving.key)
        assert staying.feed(chunks[-1]) is None
        assert codes_of(small, staying.output).tolist() == expected


def test_others_get_a_frame_each_step_when_a_long_prompt_is_read(small: Lab) -> None:
    turn, long = small.turn(2), small.turn(5, audio=1100)
    with Driven(small, turn) as speaking, Driven(small, long, SegmentKey("long", 0)) as reading:
        engine, steps = small.stage.engine, 0
        for chunk in long.chunks():
            engine.accept(reading.key, chunk)
        for chunk in turn.chunks():
            engine.accept(speaking.key, chunk)
        while not reading.frames:
            advance(engine, {KEY: speaking.output, reading.key: reading.output}, steps=1)
            steps += 1
        assert steps > 1100 // PREFILL_ROWS
        # One step may be spent on the other's rows before its own few are read.
        assert speaking.frames >= steps - 1


def test_sampled_codes_depend_on_the_seed_alone_when_repeated(lab: Lab) -> None:
    turn = lab.turn(5)

    def codes(seed: int) -> list[list[int]]:
        sampled = replace(turn, sampling=replace(SAMPLED, seed=seed))
        torch.manual_seed(seed)
        output = run_segment(lab.stage.engine, sampled.settings, sampled.chunks())
        drawn: list[list[int]] = codes_of(lab, output).tolist()
        return drawn

    first = codes(1)
    torch.rand(3)
    assert codes(1) == first
    assert codes(2) != first
    assert first != lab.reference(turn).codes.tolist()


def test_voice_is_the_first_when_none_is_asked_for(small: Lab) -> None:
    turn = small.turn(4, voice=small.stage.facts.voices[0])
    for name in ("", turn.voice.title()):
        settings = replace(turn.settings, voice=name)
        output = run_segment(small.stage.engine, settings, turn.chunks())
        assert codes_of(small, output).tolist() == small.reference(turn).codes.tolist()


def test_voice_is_refused_when_unknown(small: Lab) -> None:
    settings = replace(small.turn(1).settings, voice="nobody")
    with pytest.raises(InvalidArgument, match="ethan, aiden, chelsie") as caught:
        small.stage.engine.admit(KEY, settings)
    assert caught.value.field == "voice"


def test_output_is_refused_when_it_is_not_codes(small: Lab) -> None:
    settings = replace(small.turn(1).settings, outputs=frozenset({"codes", "audio"}))
    with pytest.raises(InvalidArgument) as caught:
        small.stage.engine.admit(KEY, settings)
    assert caught.value.field == "outputs"


def test_only_the_broken_segment_fails_when_a_row_is_not_a_number(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    broken = replace(turn, rows=np.full_like(turn.rows, np.nan))
    with Driven(small, broken, SegmentKey("broken", 0)) as failing, Driven(small, turn) as fine:
        for bad, good in zip(broken.chunks()[:-1], turn.chunks()[:-1], strict=True):
            small.stage.engine.accept(failing.key, bad)
            small.stage.engine.accept(fine.key, good)
        advance(small.stage.engine, {failing.key: failing.output, fine.key: fine.output})
        assert failing.output.failed is not None
        assert isinstance(failing.output.failed.error, Internal)
        assert fine.feed(turn.chunks()[-1]) is None
        assert codes_of(small, fine.output).tolist() == small.reference(turn).codes.tolist()


def test_frames_are_cut_when_the_context_is_full(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    expected = small.reference(turn).codes
    rows, frames = 5 + 11 + 9, 6
    assert len(expected) > frames
    stage = load(small.directory, StageConfig(context_limit=rows + frames))
    assert stage.facts.context_limit == rows + frames
    output = run_segment(stage.engine, turn.settings, turn.chunks())
    assert codes_of(small, output).tolist() == expected[:frames].tolist()
    assert output.finish_reason("codes") is FinishReason.LENGTH


def test_prompt_is_refused_when_it_exceeds_the_context(small: Lab) -> None:
    turn = small.turn(1, audio=4)
    stage = load(small.directory, StageConfig(context_limit=5 + 11 + 9 - 1))
    stage.engine.admit(KEY, turn.settings)
    with pytest.raises(InvalidArgument, match="25 talker positions; the maximum is 24"):
        stage.engine.accept(KEY, turn.chunks()[0])


def test_load_is_refused_when_settings_do_not_fit(small: Lab) -> None:
    with pytest.raises(InvalidArgument, match="context_limit"):
        load(small.directory, StageConfig(context_limit=1 << 20))
    with pytest.raises(InvalidArgument, match="vllm"):
        load(small.directory, StageConfig(engine="vllm"))


def test_frames_come_when_the_model_is_bfloat16(lab: Lab) -> None:
    stage = load(lab.directory, StageConfig(dtype="bfloat16"))
    turn = lab.turn(1, audio=4)
    output = run_segment(stage.engine, turn.settings, turn.chunks())
    assert len(codes_of(lab, output)) > 0


def test_facts_describe_the_checkpoint_when_loaded(lab: Lab) -> None:
    facts = lab.stage.facts
    assert sorted(facts.voices) == ["aiden", "chelsie", "ethan"]
    assert (facts.code_groups, facts.code_entries) == (
        lab.shape.code_groups,
        lab.shape.codebook_size,
    )
    assert facts.context_limit == 32768
    assert facts.default_sampling.temperature == 0.9
    assert facts.default_sampling.max_tokens == 4096
