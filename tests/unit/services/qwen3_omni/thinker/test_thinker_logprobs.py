"""How likely ids were: what the torch engine says, and which text it comes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.runtime.engine import LoadedStage
from antiphon.values.conversation import Conversation
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_services.lm.sampling import Sampled, score_together
from antiphon_services.text.detokenizer import Detokenizer, Vocabulary
from antiphon_services.text.logprobs import ReplyLogprobs
from antiphon_services.text.stopping import ReplyText
from antiphon_services.thinker import engine as engine_module
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    AUDIO,
    EVERYTHING,
    TEXT,
    segment,
)
from tests.unit.services.qwen3_omni.thinker.thinker_reference import (
    MAX_TOKENS,
    Cases,
    Reference,
    assert_logprobs_equal,
)

TEXT_ONLY = frozenset({"text"})


def logprobs_of(output: SegmentOutput) -> tuple[TokenLogprob, ...]:
    return logprobs_from_tensors(output.tensors("text"))


def text_of(output: SegmentOutput) -> str:
    return output.tensors("text")["utf8"].tobytes().decode()


@pytest.fixture(scope="module")
def vocabulary(reference: Reference) -> Vocabulary:
    return Vocabulary(reference.tokenizer)


@pytest.mark.parametrize("top", [0, 5])
def test_logprobs_equal_the_references_log_softmax(
    stage: LoadedStage, cases: Cases, vocabulary: Vocabulary, top: int
) -> None:
    for spoken_to, expected in cases:
        given_ = segment(spoken_to, max_tokens=MAX_TOKENS, top_logprobs=top)
        out = run_segment(stage.engine, *given_)
        assert out.tensors("text")["ids"].tolist() == expected.ids
        assert_logprobs_equal(logprobs_of(out), expected, vocabulary, top)


def test_logprobs_equal_the_reference_in_the_company_of_those_who_do_not_ask(
    stage: LoadedStage, cases: Cases, vocabulary: Vocabulary
) -> None:
    """Every third segment asks, each for another number."""
    asked = {at: at + 1 for at in range(0, len(cases), 3)}
    segments = {
        SegmentKey("s", at): segment(spoken_to, max_tokens=MAX_TOKENS, top_logprobs=asked.get(at))
        for at, (spoken_to, _) in enumerate(cases)
    }
    for key, out in run_segments(stage.engine, segments).items():
        _, expected = cases[key.segment]
        assert out.tensors("text")["ids"].tolist() == expected.ids
        if key.segment in asked:
            top = asked[key.segment]
            assert_logprobs_equal(logprobs_of(out), expected, vocabulary, top)
        else:
            assert set(out.tensors("text")) == {"ids", "utf8"}


def test_only_the_rows_of_those_who_ask_are_scored(
    small_stage: LoadedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def counted(sampled: Sequence[Sampled]) -> Any:
        rows.append(len(sampled))
        return score_together(sampled)

    monkeypatch.setattr(engine_module, "score_together", counted)
    quiet = {SegmentKey("q", n): segment(TEXT[n], max_tokens=6) for n in range(3)}
    run_segments(small_stage.engine, quiet)
    assert not rows
    asking = SegmentKey("a", 0)
    loud = {**quiet, asking: segment(TEXT[3], max_tokens=4, top_logprobs=2)}
    outputs = run_segments(small_stage.engine, loud)
    assert rows == [1] * len(outputs[asking].tensors("text")["ids"])


def test_others_go_on_when_scoring_fails_for_one(
    small_stage: LoadedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(sampled: Sequence[Sampled]) -> Any:
        if any(each.top == 3 for each in sampled):
            raise RuntimeError("no memory")
        return score_together(sampled)

    monkeypatch.setattr(engine_module, "score_together", faulty)
    tops = (3, 2, None)
    segments = {
        SegmentKey("s", n): segment(TEXT[3], max_tokens=4, top_logprobs=top)
        for n, top in enumerate(tops)
    }
    fails, asks, quiet = run_segments(small_stage.engine, segments).values()
    assert fails.failed is not None
    assert "no memory" in fails.failed.error.message
    assert text_of(asks) == text_of(quiet)
    assert logprobs_of(asks)
    assert quiet.completed is not None


def test_logprobs_are_not_made_when_no_text_is_wanted(small_stage: LoadedStage) -> None:
    given_ = segment(TEXT[0], outputs=frozenset({"tokens"}), max_tokens=3, top_logprobs=2)
    out = run_segment(small_stage.engine, *given_)
    assert out.completed is not None
    assert all(set(each.tensors) <= {"ids"} for each in out.emitted)


def test_logprobs_are_the_models_own_when_ids_are_drawn_and_penalised(
    small_stage: LoadedStage,
) -> None:
    """The first id's distribution is the same, whatever is made of it."""
    plain = run_segment(
        small_stage.engine, *segment(TEXT[1], max_tokens=1, top_logprobs=20, outputs=TEXT_ONLY)
    )
    sampled = {"temperature": 1.7, "top_k": 3, "repetition_penalty": 1.9, "seed": 5}
    for seed in range(20):
        other = run_segment(
            small_stage.engine,
            *segment(TEXT[1], max_tokens=1, top_logprobs=20, **{**sampled, "seed": seed}),
        )
        if logprobs_of(other) and logprobs_of(other)[0].token_id != logprobs_of(plain)[0].token_id:
            break
    else:
        raise AssertionError("every seed drew the likeliest id, or one without text")
    (ours,), (theirs,) = logprobs_of(other), logprobs_of(plain)
    assert ours.top == theirs.top
    assert ours.logprob < theirs.logprob


def some_text(stage: LoadedStage) -> tuple[Conversation, list[str]]:
    """A question, and the pieces of text of its answer: some, of some characters each."""
    for question in [*TEXT, *AUDIO]:
        out = run_segment(stage.engine, *segment(question))
        pieces = [e.tensors["utf8"].tobytes().decode() for e in out.emitted if e.edge == "text"]
        if sum(len(piece) > 1 for piece in pieces[:-2]) > 3:
            return question, pieces
    raise AssertionError("no answer has enough text")


def test_logprobs_end_where_a_stop_string_cuts(small_stage: LoadedStage) -> None:
    question, pieces = some_text(small_stage)
    whole = run_segment(small_stage.engine, *segment(question, top_logprobs=1))
    at = next(at for at, piece in enumerate(pieces) if at > 2 and len(piece) > 1 and pieces[at + 1])
    stop = pieces[at][-1] + pieces[at + 1][:1]
    start = text_of(whole).find(stop)

    out = run_segment(small_stage.engine, *segment(question, top_logprobs=1, stop=(stop,)))
    assert text_of(out) == text_of(whole)[:start]
    assert out.finish_reason("text") is FinishReason.STOP
    shown = logprobs_of(out)
    assert shown == logprobs_of(whole)[: len(shown)]
    data = b"".join(each.token_bytes for each in shown)
    assert data.decode(errors="replace").startswith(text_of(out))
    without = data[: -len(shown[-1].token_bytes)].decode(errors="replace")
    assert len(without) < len(text_of(out))


def test_bytes_of_all_logprobs_are_the_text(small_stage: LoadedStage) -> None:
    for spoken_to in EVERYTHING:
        out = run_segment(small_stage.engine, *segment(spoken_to, top_logprobs=0))
        data = b"".join(each.token_bytes for each in logprobs_of(out))
        assert data.decode(errors="replace") == text_of(out)


def test_special_ids_are_printed_by_name(reference: Reference, vocabulary: Vocabulary) -> None:
    end = reference.config.im_end_token_id
    assert vocabulary.print_bytes(end) == b"<|im_end|>"
    assert vocabulary.token_bytes(end) == b""
    (word,) = reference.tokenizer.encode("a")
    assert vocabulary.print_bytes(word) == vocabulary.token_bytes(word) == b"a"
    assert vocabulary.print_bytes(1 << 30) == b""


_END = 1
_PIECES = [b"a", b"ab", b"ba", b"", "é".encode(), b"\xc3", b"\xa9", b"\xe0", b"\x80a", b"\xf0\x9f"]


class _Vocabulary:
    """Ids from 10 on stand for the pieces; other ids have no text but a name."""

    def token_bytes(self, id_: int) -> bytes:
        return _PIECES[id_ - 10] if id_ >= 10 else b""

    def print_bytes(self, id_: int) -> bytes:
        return self.token_bytes(id_) or b"<|end|>"


@dataclass
class _Told:
    text: str = ""
    count: int = 0


@given(
    ids=st.lists(st.integers(10, 9 + len(_PIECES)), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["ab", "aab", "bé", "éa", "\ufffd", "\ufffda"]), max_size=2),
    end=st.booleans(),
)
@settings(max_examples=1000)
def test_entries_leave_with_the_character_that_their_id_begins_in(
    ids: list[int], stop: list[str], end: bool
) -> None:
    vocabulary: Any = _Vocabulary()
    reply = ReplyText(
        Detokenizer(vocabulary),
        stop_ids=frozenset({_END}),
        stop_strings=stop,
        limit=len(ids) + end,
    )
    held = ReplyLogprobs(vocabulary, top=1)
    told, starts, data = _Told(), [], b""
    for id_ in [*ids, *[_END] * end]:
        piece = vocabulary.token_bytes(id_)
        if piece:
            upto = (data + piece[:1]).decode(errors="replace")
            starts.append((id_, len(upto) - 1))
        data += piece
        release = reply.push(id_)
        held.push((id_, _END), (-1.0, -2.0))
        told.text += release.text
        due = held.release(release.text)
        expected = [each for each, start in starts if start < len(told.text)][told.count :]
        assert [each.token_id for each in due] == expected
        assert all(each.top == (TokenLogprob(_END, b"<|end|>", -2.0),) for each in due)
        assert release.text or not due
        told.count += len(due)
        if release.finish is not None:
            return
    raise AssertionError("the reply did not end")
