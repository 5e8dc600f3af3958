from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.values.segment import FinishReason
from antiphon_services.text.detokenizer import Detokenizer
from antiphon_services.text.stopping import ReleasedText, ReplyText

END = 1
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class _Vocabulary:
    """Ids from 10 on stand for the given pieces; other ids have no text."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def token_bytes(self, id_: int) -> bytes:
        return self._pieces[id_ - 10] if id_ >= 10 else b""


@dataclass(frozen=True)
class _Outcome:
    text: str
    spoken: list[int]
    finish: FinishReason | None
    releases: list[ReleasedText]


def _reply(*pieces: bytes, stop: tuple[str, ...] = (), limit: int = 100) -> ReplyText:
    return ReplyText(
        Detokenizer(_Vocabulary(*pieces)),  # type: ignore[arg-type]
        stop_ids=frozenset({END}),
        stop_strings=stop,
        limit=limit,
    )


def _run(reply: ReplyText, ids: list[int]) -> _Outcome:
    releases: list[ReleasedText] = []
    for id_ in ids:
        releases.append(reply.push(id_))
        if releases[-1].finish:
            break
    return _Outcome(
        "".join(each.text for each in releases),
        [id_ for each in releases for id_ in each.spoken],
        releases[-1].finish,
        releases,
    )


def _run_pieces(
    *pieces: bytes, stop: tuple[str, ...] = (), limit: int = 100, end: bool = False
) -> _Outcome:
    ids = [10 + index for index in range(len(pieces))] + ([END] if end else [])
    return _run(_reply(*pieces, stop=stop, limit=limit), ids)


def test_reply_speaks_all_but_the_stop_id_when_it_stops() -> None:
    out = _run_pieces(b"a", b"b", b"c", end=True)
    assert (out.text, out.spoken, out.finish) == ("abc", [10, 11, 12], STOP)


def test_reply_releases_each_id_at_once_when_there_are_no_stop_strings() -> None:
    out = _run_pieces(b"a", b"\xe4", b"\xbd\xa0", end=True)
    assert [each.text for each in out.releases] == ["a", "", "\u4f60", ""]
    assert [each.spoken for each in out.releases] == [(10,), (11,), (12,), ()]


def test_reply_speaks_all_but_the_last_id_when_the_limit_ends_it() -> None:
    out = _run_pieces(b"a", b"b", b"c", limit=3)
    assert (out.text, out.spoken, out.finish) == ("abc", [10, 11], LENGTH)


@pytest.mark.parametrize(("end", "finish"), [(True, STOP), (False, LENGTH)])
def test_reply_speaks_nothing_when_it_has_one_id(end: bool, finish: FinishReason) -> None:
    out = _run(_reply(b"a", limit=1), [END if end else 10])
    assert (out.spoken, out.finish) == ([], finish)
    assert out.text == ("" if end else "a")


def test_reply_stops_when_the_stop_id_comes_at_the_limit() -> None:
    out = _run_pieces(b"a", end=True, limit=2)
    assert (out.spoken, out.finish) == ([10], STOP)


def test_reply_ends_before_the_stop_string_when_it_spans_ids() -> None:
    out = _run_pieces(b"one", b" ST", b"O", b"P two", stop=("STOP",))
    assert (out.text, out.finish) == ("one ", STOP)
    assert out.spoken == [10]


def test_reply_speaks_the_id_that_ends_where_the_stop_string_starts() -> None:
    out = _run_pieces(b"one ", b"STOP", stop=("STOP",))
    assert (out.text, out.spoken) == ("one ", [10])


def test_reply_releases_what_it_held_when_it_is_no_stop_string() -> None:
    out = _run_pieces(b"a", b"S", b"T", b"x", b"b", end=True, stop=("STOP",))
    assert [each.text for each in out.releases] == ["a", "", "", "STx", "b", ""]
    assert [each.spoken for each in out.releases] == [(10,), (), (), (11, 12, 13), (14,), ()]


@pytest.mark.parametrize("end", [True, False])
def test_reply_releases_what_it_held_when_it_ends(end: bool) -> None:
    out = _run_pieces(b"a", b"ST", stop=("STOP",), end=end, limit=3 if end else 2)
    assert out.text == "aST"
    assert out.spoken == ([10, 11] if end else [10])


def test_reply_stops_when_the_stop_string_is_complete_at_the_limit() -> None:
    out = _run_pieces(b"a", b"STOP", stop=("STOP",), limit=2)
    assert (out.text, out.spoken, out.finish) == ("a", [10], STOP)


def test_reply_ends_at_the_earliest_stop_string_when_there_are_several() -> None:
    out = _run_pieces(b"a", b"xENDSTOP", stop=("STOP", "END"))
    assert (out.text, out.spoken) == ("ax", [10])


def test_reply_finds_the_stop_string_when_a_false_start_overlaps_it() -> None:
    out = _run_pieces(b"a", b"a", b"a", b"b", b"c", stop=("aab",))
    assert (out.text, out.finish) == ("a", STOP)
    assert out.spoken == [10]


def test_reply_speaks_no_id_that_begins_the_stop_strings_character() -> None:
    head, tail = "\u4f60".encode()[:1], "\u4f60".encode()[1:]
    out = _run_pieces(b"a", b"b" + head, tail + b"c", stop=("\u4f60",))
    assert (out.text, out.spoken) == ("ab", [10])


def test_reply_text_has_a_replacement_when_it_is_cut_inside_a_character() -> None:
    assert _run_pieces(b"a", b"\xe4", limit=2).text == "a\ufffd"


_PIECES = [b"a", b"b", b"ab", b"ba", b"", "\u00e9".encode(), b"\xc3", b"\xa9", b"aab"]


@given(
    ids=st.lists(st.integers(10, 10 + len(_PIECES) - 1), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["ab", "aab", "b\u00e9", "\u00e9a", "\ufffd"]), max_size=2),
    end=st.booleans(),
)
@settings(max_examples=500)
def test_reply_equals_the_rules_on_the_whole_text_when_ids_are_random(
    ids: list[int], stop: list[str], end: bool
) -> None:
    sampled = ids + ([END] if end else [])
    limit = len(ids) + 1 if end else len(ids)
    reply = _reply(*_PIECES, stop=tuple(stop), limit=limit)
    out = _run(reply, sampled)

    whole = _bytes(reply.ids).decode(errors="replace")
    starts = [start for each in stop if (start := whole.find(each)) >= 0]
    assert out.text == whole[: min(starts, default=len(whole))]
    assert out.finish == (STOP if starts or reply.ids[-1] == END else LENGTH)
    expected = reply.ids[:-1]
    if starts:
        ends = [
            len(_bytes(expected[: n + 1]).decode(errors="replace")) for n in range(len(expected))
        ]
        expected = [id_ for id_, at in zip(expected, ends, strict=True) if at <= min(starts)]
    assert out.spoken == expected


def _bytes(ids: list[int]) -> bytes:
    return b"".join(_PIECES[id_ - 10] for id_ in ids if id_ >= 10)
