"""The vLLM engine's side of the contract, with a host that is told what comes of its orders."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, ErrorCode, Internal, Unavailable
from antiphon.runtime.engine import (
    Completed,
    DetachedEngine,
    Emitted,
    Failed,
)
from antiphon.values.conversation import Conversation
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_services.qwen3_omni.thinker.load import load, load_intake
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.vllm_engine import engine as engine_module
from antiphon_services.vllm.mailbox import Ended, Rows, Tokens
from antiphon_services.vllm.scores import scores_at
from antiphon_testkit.drive_engine import run_segment
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import AUDIO, TEXT, segment
from tests.unit.services.qwen3_omni.thinker.vllm_bench import KEY, Bench, ids_of


@pytest.fixture(scope="module")
def intake(small_dir: Path) -> PromptIntake:
    return load_intake(small_dir, StageConfig())


@pytest.fixture
def bench(small_dir: Path, intake: PromptIntake) -> Bench:
    made = Bench(small_dir, intake)
    assert isinstance(made.engine, DetachedEngine)
    return made


@pytest.fixture
def every_row(small_dir: Path, intake: PromptIntake) -> Bench:
    """One whose talker reads a row of every position."""
    everything = dataclasses.replace(
        intake, every_row=True, row_positions=lambda ids: np.arange(len(ids))
    )
    return Bench(small_dir, everything)


@pytest.fixture(scope="module")
def exchange(small_dir: Path) -> tuple[Conversation, list[int]]:
    """A question, and the ids of its whole reply: some, with a stop id."""
    engine = load(small_dir, StageConfig()).engine
    for question in TEXT:
        out = run_segment(engine, *segment(question))
        ids: list[int] = out.tensors("text")["ids"].tolist()
        if len(ids) > 8 and out.finish_reason("text") is FinishReason.STOP:
            return question, ids
    raise AssertionError("every reply is short or cut")


@pytest.fixture
def question(exchange: tuple[Conversation, list[int]]) -> Conversation:
    return exchange[0]


@pytest.fixture
def said(exchange: tuple[Conversation, list[int]]) -> list[int]:
    return exchange[1]


def test_prompt_leaves_with_the_order_and_words_want_no_rows(
    bench: Bench, question: Conversation, intake: PromptIntake
) -> None:
    events = bench.begin(segment(question, max_tokens=7))
    (order,) = bench.host.orders
    assert ids_of(events, "prompt") == order.ids.tolist()
    assert not len(order.row_positions)
    assert (order.limit, order.stop_id) == (7, intake.prompts.special.im_end)


def test_every_id_is_delivered_when_an_update_carries_several(
    bench: Bench, question: Conversation, said: list[int]
) -> None:
    prompt = ids_of(bench.begin(segment(question)), "prompt")
    events = bench.bring(
        Tokens(0, said[:1], prompt, 5, False),
        Tokens(0, said[1:4], None, 0, False),
        Tokens(0, said[4:], None, 0, True),
    )
    assert ids_of(events, "text") == said
    assert ids_of(events, "tokens") == said[:-1]
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.input_cached_positions == 5
    assert completed.output_positions == len(said)


@dataclass
class Flat:
    """Scores as vLLM lays them out; of each id i also those of `others`."""

    ids: list[int]
    others: tuple[int, ...]
    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for id_ in self.ids:
            self.start_indices.append(len(self.token_ids))
            ranks = [9, *range(1, 1 + len(self.others))]
            for each, rank in zip((id_, *(id_ + n for n in self.others)), ranks, strict=True):
                self.token_ids.append(each)
                self.logprobs.append(-each / 8)
                self.ranks.append(rank)
            self.end_indices.append(len(self.token_ids))


def test_logprobs_stay_with_their_ids_when_an_update_carries_several(
    bench: Bench, question: Conversation, said: list[int], intake: PromptIntake
) -> None:
    prompt = ids_of(bench.begin(segment(question, top_logprobs=2)), "prompt")
    assert bench.host.orders[0].sampling.top_logprobs == 2
    events = bench.bring(
        Tokens(0, said[:1], prompt, 5, False, Flat(said[:1], (1, 2))),
        Tokens(0, said[1:4], None, 0, False, Flat(said[1:4], (1, 2))),
        Tokens(0, said[4:], None, 0, True, Flat(said[4:], (1, 2))),
    )
    texts = [each for each in events if isinstance(each, Emitted) and each.edge == "text"]
    came = [token for each in texts for token in logprobs_from_tensors(each.tensors)]
    shown = [id_ for id_ in said if intake.vocabulary.token_bytes(id_)]
    assert [each.token_id for each in came] == shown
    for token in came:
        everything = (token, *token.top)
        assert [each.token_id - token.token_id for each in everything] == [0, 1, 2]
        assert [each.logprob for each in everything] == [-each.token_id / 8 for each in everything]


def test_scores_name_an_id_among_the_likeliest_again_when_vllm_has_joined_updates() -> None:
    """Id 5 is there once, in front, as the second likeliest."""
    flat = Flat([5], (2,))
    flat.token_ids, flat.ranks, flat.logprobs = [5, 7, 9], [2, 1, 3], [-2.0, -1.0, -3.0]
    flat.end_indices = [3]
    assert scores_at(flat, 0, [5], 3) == ([5, 7, 5, 9], [-2.0, -1.0, -2.0, -3.0])
    assert scores_at(flat, 0, [5], 2) == ([5, 7, 9], [-2.0, -1.0, -3.0])


@pytest.mark.parametrize("scores", [None, Flat([1], (1,)), Flat([1, 2], ())])
def test_segment_fails_when_vllm_keeps_back_the_logprobs_that_were_asked_for(
    bench: Bench, question: Conversation, said: list[int], scores: Flat | None
) -> None:
    prompt = ids_of(bench.begin(segment(question, top_logprobs=2)), "prompt")
    (failed,) = bench.bring(Tokens(0, said[:2], prompt, 0, False, scores))
    assert isinstance(failed, Failed)
    assert "returned no log probabilities" in failed.error.message


def test_ids_behind_a_stop_string_are_nobodys_and_vllm_is_stopped(
    bench: Bench, question: Conversation, said: list[int], intake: PromptIntake
) -> None:
    text = intake.prompts.chat.tokenizer.decode(said, skip_special_tokens=True)
    prompt = ids_of(bench.begin(segment(question, stop=(text[3:6],))), "prompt")
    events = bench.bring(Tokens(0, said, prompt, 0, False))
    (finish,) = [
        each.finish_reason
        for each in events
        if isinstance(each, Emitted) and each.edge == "text" and each.finish_reason
    ]
    assert finish is FinishReason.STOP
    assert len(ids_of(events, "text")) < len(said)
    assert 0 in bench.host.cancelled
    assert bench.bring(Tokens(0, said, None, 0, True)) == []


def test_segment_ends_when_the_rows_that_come_after_its_reply_have_come(
    bench: Bench, said: list[int]
) -> None:
    prompt = ids_of(bench.begin(segment(AUDIO[0], max_tokens=1)), "prompt")
    positions = bench.host.orders[0].row_positions
    events = bench.bring(Tokens(0, said[:1], prompt, 0, True))
    assert not any(isinstance(each, Completed) for each in events)
    start, half = int(positions[0]), len(positions) // 2
    rows = np.arange(len(positions) * 3, dtype=np.float32).reshape(-1, 3)
    events = bench.bring(Rows(0, start, rows[:half]))
    events += bench.bring(Rows(0, start + half, rows[half:]))
    chunks = [each for each in events if isinstance(each, Emitted)]
    assert [each.finish_reason for each in chunks] == [None, FinishReason.STOP]
    came = np.concatenate([each.tensors["row_positions"] for each in chunks])
    assert came.tolist() == positions.tolist()
    assert isinstance(events[-1], Completed)


def test_segment_fails_alone_when_rows_have_a_gap(
    bench: Bench, question: Conversation, said: list[int]
) -> None:
    bench.begin(segment(AUDIO[0]))
    prompt = ids_of(bench.begin(segment(question), SegmentKey("t", 0)), "prompt")
    start = int(bench.host.orders[0].row_positions[0])
    events = bench.bring(
        Rows(0, start + 1, np.zeros((1, 3), np.float32)), Tokens(1, said, prompt, 0, True)
    )
    assert isinstance(events[0], Failed)
    assert events[0].error.code is ErrorCode.DATA_LOSS
    assert bench.host.cancelled[0] == 0
    assert isinstance(events[-1], Completed)


def test_reply_rows_leave_with_their_ids_however_they_come(
    every_row: Bench, question: Conversation, said: list[int]
) -> None:
    prompt = every_row.begin(segment(question))
    (order,) = every_row.host.orders
    length = len(order.ids)
    assert order.row_positions.tolist() == list(range(length))
    assert order.reply_rows_from == length
    rows = np.arange((length + len(said)) * 3, dtype=np.float32).reshape(-1, 3)
    ids = ids_of(prompt, "prompt")
    # The second id's row overtakes it; then ids come together, and a row that is nobody's.
    events = every_row.bring(Rows(0, 0, rows[: length - 1]), Tokens(0, said[:1], ids, 0, False))
    events += every_row.bring(Rows(0, length - 1, rows[length - 1 : length]))
    events += every_row.bring(Rows(0, length, rows[length : length + 2]))
    assert [each.edge for each in events if isinstance(each, Emitted)][-1] == "tokens"
    events += every_row.bring(Tokens(0, said[1:], None, 0, True))
    assert not any(isinstance(each, Completed) for each in events)
    events += every_row.bring(Rows(0, length + 2, rows[length + 2 :]))
    assert isinstance(events[-1], Completed)
    for edge, expected in (("prompt", rows[:length]), ("tokens", rows[length:-1])):
        chunks = [each for each in events if isinstance(each, Emitted) and each.edge == edge]
        told = [each for each in chunks if "rows" in each.tensors]
        np.testing.assert_array_equal(
            np.concatenate([each.tensors["rows"] for each in told]), expected
        )
        counts = np.cumsum([0] + [len(each.tensors["rows"]) for each in told])
        assert [each.position for each in told] == counts[:-1].tolist()
        assert {name for each in told for name in each.tensors} == {"rows"}
        assert [each.finish_reason for each in chunks][:-1] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason is FinishReason.STOP


def test_no_rows_are_asked_for_when_nothing_is_spoken(
    every_row: Bench, question: Conversation, said: list[int]
) -> None:
    settings, chunks = segment(question)
    written = dataclasses.replace(settings, outputs=frozenset({"text"}))
    every_row.begin((written, list(chunks)))
    (order,) = every_row.host.orders
    assert not len(order.row_positions)
    assert order.reply_rows_from is None
    events = every_row.bring(Tokens(0, said, order.ids.tolist(), 0, True))
    assert isinstance(events[-1], Completed)


def test_segment_fails_alone_when_a_reply_row_is_missing_or_overdue(
    every_row: Bench, question: Conversation, said: list[int]
) -> None:
    row = np.zeros((1, 3), np.float32)
    for number in range(2):
        ids = ids_of(every_row.begin(segment(question), SegmentKey("s", number)), "prompt")
    (failed,) = every_row.bring(Rows(0, len(ids) + 1, row))
    assert isinstance(failed, Failed)
    assert failed.error.code is ErrorCode.DATA_LOSS
    rows = np.zeros((len(ids), 3), np.float32)
    with patch.object(engine_module, "ROWS_TIMEOUT_S", 0.0):
        events = every_row.bring(Rows(1, 0, rows), Tokens(1, said, ids, 0, True))
    (failed,) = [each for each in events if isinstance(each, Failed)]
    assert "hidden rows were not received" in failed.error.message


def test_segment_fails_when_its_rows_are_overdue(bench: Bench, said: list[int]) -> None:
    prompt = ids_of(bench.begin(segment(AUDIO[0], max_tokens=1)), "prompt")
    with patch.object(engine_module, "ROWS_TIMEOUT_S", 0.0):
        events = bench.bring(Tokens(0, said[:1], prompt, 0, True))
    (failed,) = [each for each in events if isinstance(each, Failed)]
    assert "hidden rows" in failed.error.message


@pytest.mark.parametrize("error", [Internal("it broke"), Unavailable("it is down")])
def test_segment_fails_with_the_fault_that_ended_its_order(
    bench: Bench, question: Conversation, error: AntiphonError
) -> None:
    bench.begin(segment(question))
    (failed,) = bench.bring(Ended(0, error))
    assert isinstance(failed, Failed)
    assert failed.error is error


def test_segment_fails_when_vllm_ends_early_or_makes_another_prompt(
    bench: Bench, question: Conversation, said: list[int]
) -> None:
    prompt = ids_of(bench.begin(segment(question)), "prompt")
    *_, failed = bench.bring(Tokens(0, said[:2], prompt, 0, True))
    assert isinstance(failed, Failed)
    assert "early, after 2 IDs" in failed.error.message
    bench.begin(segment(question), SegmentKey("t", 0))
    (failed,) = bench.bring(Tokens(1, said[:2], prompt[:-1], 0, False))
    assert isinstance(failed, Failed)
    assert "a different prompt" in failed.error.message


def test_released_segment_is_cancelled_and_what_still_comes_is_dropped(
    bench: Bench, question: Conversation, said: list[int]
) -> None:
    bench.begin(segment(question))
    bench.engine.release(KEY)
    assert bench.host.cancelled == [0]
    assert bench.bring(Tokens(0, said, None, 0, True)) == []


def test_segments_are_refused_while_vllm_is_down(bench: Bench, question: Conversation) -> None:
    bench.host.fault = Unavailable("it is down")
    with pytest.raises(Unavailable):
        bench.engine.admit(KEY, segment(question)[0])
