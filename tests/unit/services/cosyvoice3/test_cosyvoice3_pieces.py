"""Texts that come in pieces: the talker's engine says what the vendor's code says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tests.equality.cosyvoice3.cosy_cases as cases
from antiphon.errors import InvalidArgument
from antiphon.pipelines.cosyvoice3 import CODES, INPUT, SPEECH_IDS
from antiphon.pipelines.edges import PIECE
from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.talker.growing_text import GrowingText
from antiphon_services.cosyvoice3.talker.prompt import END
from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from antiphon_testkit.drive_engine import SegmentOutput, advance
from tests.equality.recording import SEED
from tests.unit.services.cosyvoice3.cosy_talker_lab import (
    Asked,
    TalkerLab,
    codes_of,
    message,
    piece,
    pieces_of,
    voice_of,
)

COMPANY = 8
CASES = {case.name: case for case in cases.pieced_cases()}
RECORDED = {
    each["case"]: each
    for each in json.loads((Path(cases.__file__).parent / "pieces.json").read_text())["cases"]
}


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, TalkerLab]:
    """The checkpoints that the vendor's code was asked on, by whether they often ask for text."""
    labs = {}
    for asks in (False, True):
        folder = tmp_path_factory.mktemp("pieces") / "tiny"
        build_tiny_cosyvoice(folder, VOICES, SEED)
        cases.draw_few_ends(folder, asks=asks)
        labs[asks] = TalkerLab(folder, slots=COMPANY)
    return labs


def asked(case: cases.PiecedCase) -> Asked:
    return Asked(case.text, case.mode, RECORDED[case.name]["seed"], voice=case.voice)


def recorded(case: cases.PiecedCase) -> list[int]:
    return list(RECORDED[case.name]["codes"])


def whole(text: str) -> list[bytes]:
    return [text.encode()]


def by_word(text: str) -> list[bytes]:
    first, *others = text.split(" ")
    return [first.encode(), *(f" {each}".encode() for each in others)]


def by_byte(text: str) -> list[bytes]:
    data = text.encode()
    return [data[at : at + 1] for at in range(len(data))]


def by_chance(text: str) -> list[bytes]:
    """Empty pieces among them, and the end of the text by itself."""
    draw, data = random.Random(text), text.encode()
    places = sorted(draw.choices(range(len(data) + 1), k=len(data) // 2))
    bounds = [0, *places, len(data)]
    return [*(data[a:b] for a, b in pairwise(bounds)), b""]


CUTS = [whole, by_word, by_byte, by_chance]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_said_as_recorded_however_it_is_cut(
    name: str, cut: Any, labs: dict[bool, TalkerLab]
) -> None:
    case = CASES[name]
    (output,) = labs[case.asks].speak_pieces((asked(case), cut(case.text)))
    assert voice_of(output)
    assert codes_of(output) == recorded(case)
    assert output.finish_reason(CODES) is FinishReason.STOP


@pytest.mark.parametrize("asks", [False, True])
def test_company_changes_nothing(asks: bool, labs: dict[bool, TalkerLab]) -> None:
    """Of eight at a time, each cut in its own way, whole texts among them."""
    lab = labs[asks]
    chosen = [case for case in CASES.values() if case.asks == asks]
    for start in range(0, len(chosen), COMPANY - 1):
        group = chosen[start : start + COMPANY - 1]
        texts = [CUTS[at % len(CUTS)](case.text) for at, case in enumerate(group)]
        outputs = lab.speak_pieces(*zip(map(asked, group), texts, strict=True))
        for case, output in zip(group, outputs, strict=True):
            assert codes_of(output) == recorded(case), case.name


def test_recorded_cases_have_all_kinds_of_turns(labs: dict[bool, TalkerLab]) -> None:
    """Texts of fewer ids than a turn takes, of just as many and of a multiple; and texts that end
    while the prompt's codes still wait for them."""
    encode = partial(labs[False].tokenizer.encode, field="")
    counts = {name: len(encode(text)) for name, text in cases.PIECED_TEXTS.items()}
    assert min(counts.values()) == 1
    assert {count for count in counts.values() if count <= 10} >= {5, 10}
    assert max(counts.values()) > 25
    # Turns before the last have 15 draws at most.
    assert max(each["draws"] for each in RECORDED.values()) > 60


def drive(lab: TalkerLab, key: SegmentKey, output: SegmentOutput, chunks: Sequence[Any]) -> None:
    """Give the engine these chunks, one after the other."""
    for chunk in chunks:
        lab.engine.accept(key, chunk)
        advance(lab.engine, {key: output})


def test_speech_begins_before_the_text_ends(labs: dict[bool, TalkerLab]) -> None:
    lab, case = labs[False], CASES["instruct-long"]
    key, output = SegmentKey("early", 0), SegmentOutput()
    lab.engine.admit(key, lab.settings(asked(case)))
    cut = pieces_of(by_word(case.text))
    said = []
    for chunk in cut[:-1]:
        drive(lab, key, output, [chunk])
        assert lab.engine.awaited_edge(key) == INPUT
        said.append(len([each for each in output.emitted if each.edge == CODES]))
    assert 0 < said[2] < said[len(said) // 2] < said[-1] < len(recorded(case))
    drive(lab, key, output, cut[-1:])
    assert codes_of(output) == recorded(case)


def test_client_that_pauses_stops_nobody(labs: dict[bool, TalkerLab]) -> None:
    lab, case = labs[False], CASES["zero-shot-english"]
    paused, paused_output = SegmentKey("paused", 0), SegmentOutput()
    lab.engine.admit(paused, lab.settings(asked(case)))
    first, *others = pieces_of(by_word(case.text))
    drive(lab, paused, paused_output, [first])
    other = CASES["instruct-english"]
    (output,) = lab.speak_pieces((asked(other), by_word(other.text)))
    assert codes_of(output) == recorded(other)
    spoken = Asked(cases.TEXTS["chinese"], cases.SFT, 3)
    assert codes_of(*lab.speak(spoken)) == codes_of(*lab.speak(spoken))
    assert lab.engine.awaited_edge(paused) == INPUT
    drive(lab, paused, paused_output, others)
    assert codes_of(paused_output) == recorded(case)


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_slot_of_a_text_that_was_cancelled_is_as_new(
    count: int, labs: dict[bool, TalkerLab]
) -> None:
    lab, case = labs[True], CASES["asking-instruct-long"]
    for number in range(COMPANY + 1):
        key, output = SegmentKey("cancelled", number), SegmentOutput()
        lab.engine.admit(key, lab.settings(asked(case)))
        drive(lab, key, output, pieces_of(by_word(case.text))[:count])
        cost = lab.engine.so_far(key)
        codes = [each for each in output.emitted if each.edge == CODES]
        assert cost.output_positions == len(codes)
        # The text of the first piece makes no turn before its last word is known.
        assert (cost.input_positions > 0) == bool(codes) == (count > 1)
        lab.engine.release(key)
    (output,) = lab.speak_pieces((asked(case), by_byte(case.text)))
    assert codes_of(output) == recorded(case)


def test_lost_session_is_made_again_in_mid_text(labs: dict[bool, TalkerLab]) -> None:
    """Another replica gets all that was sent, at once, and the rest as it comes."""
    lab, case = labs[True], CASES["asking-zero-shot-long"]
    cut = by_word(case.text)
    half = len(cut) // 2
    lost, lost_output = SegmentKey("lost", 0), SegmentOutput()
    lab.engine.admit(lost, lab.settings(asked(case)))
    drive(lab, lost, lost_output, pieces_of([*cut[:half], b"."])[:-1])
    before = [
        int(each.tensors[CODES][0, 0])
        for each in lost_output.emitted
        if each.edge == CODES and each.tensors
    ]
    assert before
    lab.engine.release(lost)
    (output,) = lab.speak_pieces((asked(case), [b"".join(cut[:half]), *cut[half:]]))
    assert codes_of(output) == recorded(case)
    assert codes_of(output)[: len(before)] == before


def test_speech_is_cut_after_so_many_draws(labs: dict[bool, TalkerLab]) -> None:
    lab, case = labs[True], CASES["asking-instruct-long"]
    all_draws = RECORDED[case.name]["draws"]
    for draws in (1, 2, 15, 16, all_draws - 1):
        cut = Asked(case.text, case.mode, RECORDED[case.name]["seed"], {"max_tokens": draws})
        (output,) = lab.speak_pieces((cut, by_word(case.text)))
        codes = codes_of(output)
        assert codes == recorded(case)[: len(codes)]
        assert len(codes) <= draws
        assert output.finish_reason(CODES) is FinishReason.LENGTH


def test_text_that_outgrows_the_context_is_cut(tmp_path: Path, labs: dict[bool, TalkerLab]) -> None:
    build_tiny_cosyvoice(tmp_path / "tiny", VOICES, SEED)
    cases.draw_few_ends(tmp_path / "tiny", asks=False)
    case = CASES["instruct-long"]
    for limit in range(60, 90, 5):
        lab = TalkerLab(tmp_path / "tiny", limit=limit, slots=1)
        (output,) = lab.speak_pieces((asked(case), by_word(case.text)))
        codes = codes_of(output)
        assert codes == recorded(case)[: len(codes)]
        assert 0 < len(codes) < len(recorded(case))
        assert output.finish_reason(CODES) is FinishReason.LENGTH


@pytest.mark.parametrize("id_", [END, SPEECH_IDS + 2, SPEECH_IDS + 199])
def test_id_that_is_no_code_asks_for_more_text_while_it_comes(id_: int, tmp_path: Path) -> None:
    """The vendor's code fails; behind the text's end, every such id ends the speech."""
    build_tiny_cosyvoice(tmp_path / "tiny", VOICES, SEED)
    lab = TalkerLab(tmp_path / "tiny", slots=1)
    begun = Asked("How are you today? I have time.", cases.INSTRUCT, 3, {"temperature": 0.0})
    first = codes_of(*lab.speak_pieces((begun, whole(begun.text))))[0]
    head = lab.engine.model.head.clone()
    lab.engine.model.head = head
    head[id_] = 2 * head[first]
    key, output = SegmentKey("ends", 0), SegmentOutput()
    lab.engine.admit(key, lab.settings(begun))
    drive(lab, key, output, pieces_of([b"How are", b" you", b" "])[:-1])
    assert not output.completed
    assert lab.engine.awaited_edge(key) == INPUT
    drive(lab, key, output, [piece(b" today?", last=True)])
    assert output.finish_reason(CODES) is FinishReason.STOP


@pytest.mark.parametrize("cut", [[b""], [b" ", b"\n "], []])
def test_text_of_nothing_is_refused(cut: list[bytes], labs: dict[bool, TalkerLab]) -> None:
    check_refused(labs[False], [*pieces_of([*cut, b""])], "nothing to say")


@pytest.mark.parametrize("cut", [[b"\xff"], [b"caf\xc3"], [b"a", b"\xc3", b"("]])
def test_what_is_no_text_is_refused(cut: list[bytes], labs: dict[bool, TalkerLab]) -> None:
    check_refused(labs[False], pieces_of(cut), "UTF-8")


def test_pieces_and_a_whole_text_exclude_each_other(labs: dict[bool, TalkerLab]) -> None:
    said = message("Hello")
    first = InputChunk(INPUT, 0, said.tensors)
    check_refused(labs[False], [first, piece(b"Hello", last=True)], "send only one of them")
    check_refused(labs[False], [piece(b"Hello"), said], "send only one of them")
    check_refused(labs[False], [piece(b"word " * 100_000, last=True)], "too many")


def check_refused(lab: TalkerLab, chunks: Sequence[InputChunk], reason: str) -> None:
    """The segment is refused when a chunk comes, or fails when its ids are made."""
    key, output = SegmentKey("refused", 0), SegmentOutput()
    lab.engine.admit(key, lab.settings(Asked("")))
    with pytest.raises(InvalidArgument, match=reason) as refused:
        feed_until_failed(lab, key, output, chunks)
    assert refused.value.field in (f"{INPUT}.{PIECE}", "messages")
    if output.failed is None:
        lab.engine.release(key)


def feed_until_failed(
    lab: TalkerLab, key: SegmentKey, output: SegmentOutput, chunks: Sequence[InputChunk]
) -> None:
    for chunk in chunks:
        drive(lab, key, output, [chunk])
        if output.failed is not None:
            raise output.failed.error


def random_texts() -> Iterator[str]:
    """Of all kinds of characters, some of which belong to those before them."""
    draw = random.Random(1)
    words = [
        "it's",
        "he'll",
        "[breath]",
        "[breat",
        "<strong>",
        "</strong>",
        "<stro",
        "[ǎ]",
        "don't",
    ]
    words += [
        "e\u0301",
        "x\u0327y",
        "한글",
        "\u1112\u1161\u11ab",
        "42",
        "3.5",
        "我们",
        "你好",
        "😀",
        "👩\u200d💻",
    ]
    marks = [
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        ",",
        ".",
        "!?",
        "，",  # noqa: RUF001
        "。",
        "(",
        ")",
        "-",
        "'",
        "¿",
        "\r\n",
        "",
    ]
    for _ in range(150):
        count = draw.randrange(1, 12)
        yield "".join(draw.choice(words) + draw.choice(marks) for _ in range(count))


def test_ids_are_those_of_the_whole_text_however_it_is_cut(labs: dict[bool, TalkerLab]) -> None:
    front_end = labs[False].engine.front_end
    draw, early = random.Random(2), 0
    for text in random_texts():
        expected = labs[False].tokenizer.encode(text, field="")
        data = text.encode()
        for size in (1, 2, 5, 11):
            growing: GrowingText = front_end.growing_text()
            ids: list[int] = []
            at = 0
            while at < len(data):
                stop = at + draw.randint(1, size)
                ids += growing.take(data[at:stop], last=False)
                at = stop
            early += len(ids) > 0
            ids += growing.take(b"", last=True)
            assert ids == expected, (text, size)
    assert early > 400
