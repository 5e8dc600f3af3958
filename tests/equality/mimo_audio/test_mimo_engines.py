"""The engines of MiMo-Audio, without services around them, make what the vendor's code makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace as replace_struct

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.pipelines.mimo_audio import AUDIO, CODEBOOKS, CODES, INPUT, TEXT
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings
from antiphon.values.conversation import AudioPart, Conversation, to_tensors
from antiphon.values.history import History
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.mimo_audio.code2wav.load import load as load_code2wav
from antiphon_services.mimo_audio.talker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from antiphon_testkit.mimo_audio.tiny_checkpoint import EMPTY, LANGUAGE_MODEL, PRESETS
from tests.equality.mimo_audio.mimo_asking import asked, assert_as_recorded, conversation_of
from tests.equality.mimo_audio.mimo_cases import (
    AUDIO_STEP,
    CASES,
    CHANNELS,
    CODES_CASES,
    SAMPLES_PER_FRAME,
    ZEROS,
    codes_of,
)
from tests.equality.mimo_audio.mimo_lab import GREEDY, MimoLab, Recorded, recorded_names

pytestmark = pytest.mark.equality

BY_NAME = {case.name: case for case in CASES}
SLOTS = 8


@pytest.fixture(scope="module")
def talkers(mimo_checkpoints: dict[str, Path]) -> dict[str, LoadedStage]:
    """By preset."""
    config = StageConfig(slots=SLOTS, context_limit=1024)
    return {name: load(mimo_checkpoints[name] / LANGUAGE_MODEL, config) for name in PRESETS}


def test_every_case_is_answered_as_recorded_in_company(
    preset: str, talkers: dict[str, LoadedStage], recorded: Recorded, lab_ids: Mapping[str, int]
) -> None:
    engine = talkers[preset].engine
    names = [each.partition("/")[2] for each in recorded_names() if each.startswith(preset)]
    for start in range(0, len(names), SLOTS):
        batch = names[start : start + SLOTS]
        given = {SegmentKey(name, 0): asked(BY_NAME[name]) for name in batch}
        for key, output in run_segments(engine, given).items():
            name = key.session_id
            assert_as_recorded(output, BY_NAME[name], f"{preset}/{name}", recorded, lab_ids[EMPTY])


@pytest.fixture(scope="module")
def vocoders(mimo_checkpoints: dict[str, Path]) -> dict[str, LoadedStage]:
    """By preset."""
    return {
        name: load_code2wav(mimo_checkpoints[name] / LANGUAGE_MODEL, StageConfig(slots=SLOTS))
        for name in PRESETS
    }


def played(
    stage: LoadedStage, codes: npt.NDArray[np.uint16], sizes: Sequence[int], *, whole: bool
) -> SegmentOutput:
    """What code2wav makes of frames that come in chunks of these sizes, and the rest in one."""
    cuts = [0, *[each for each in np.cumsum(sizes).tolist() if each < len(codes)], len(codes)]
    chunks = [
        InputChunk(CODES, start, {CODES: codes[start:stop]}, False, None)
        for start, stop in pairwise(cuts)
        if start < stop
    ]
    chunks.append(InputChunk(CODES, len(codes), {}, True, FinishReason.STOP))
    inputs = frozenset({CODES}) if whole else frozenset[str]()
    settings = SegmentSettings("", GREEDY, frozenset({AUDIO}), whole_inputs=inputs)
    return run_segment(stage.engine, settings, chunks)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 60, 80, 100, 1501])
def test_every_frame_is_heard_once_wherever_the_stream_ends(
    count: int, whole: bool, vocoders: dict[str, LoadedStage]
) -> None:
    """Also on a block's boundary, and where all codes are zero: that is a code as any other."""
    codes = np.zeros((count, CHANNELS), np.uint16)
    codes[::3] = codes_of("two-segments")[:count:3]
    heard = played(vocoders["widths"], codes, [1, 20, 7, 20, 20, 33], whole=whole)
    assert heard.failed is None
    assert heard.completed is not None
    assert heard.completed.output_positions == SAMPLES_PER_FRAME * count
    if not count:
        return
    made = heard.tensors(AUDIO)
    np.testing.assert_array_equal(made[CODES], codes)
    assert len(made["samples"]) == SAMPLES_PER_FRAME * count
    positions = [each.position for each in heard.emitted]
    sizes = [len(each.tensors.get("samples", ())) for each in heard.emitted]
    assert positions == [0, *np.cumsum(sizes)[:-1].tolist()]


def test_streamed_samples_do_not_depend_on_how_codes_come(
    vocoders: dict[str, LoadedStage], preset: str
) -> None:
    codes = codes_of("long")
    streams = [
        played(vocoders[preset], codes, sizes, whole=False).tensors(AUDIO)["samples"]
        for sizes in ([], [1] * 400, [13] * 40, [20] * 20)
    ]
    for each in streams[1:]:
        np.testing.assert_array_equal(each, streams[0])


@pytest.mark.parametrize("name", [*CODES_CASES, ZEROS])
def test_whole_delivery_is_the_recorded_audio(
    name: str, preset: str, vocoders: dict[str, LoadedStage], recorded: Recorded
) -> None:
    heard = played(vocoders[preset], codes_of(name), [50], whole=True)
    samples = heard.tensors(AUDIO)["samples"]
    wanted = recorded.arrays[f"{preset}/codes-{name}/audio"]
    np.testing.assert_allclose(samples[::AUDIO_STEP], wanted, rtol=0, atol=1e-4)


def test_streamed_audio_is_the_whole_one_where_the_window_holds_all(
    vocoders: dict[str, LoadedStage], preset: str
) -> None:
    """Up to 60 frames there is one window, or the later blocks see all before them."""
    codes = codes_of("long")[:20]
    streamed = played(vocoders[preset], codes, [], whole=False).tensors(AUDIO)["samples"]
    whole = played(vocoders[preset], codes, [], whole=True).tensors(AUDIO)["samples"]
    np.testing.assert_array_equal(streamed, whole)


@pytest.mark.parametrize(
    "codes",
    [
        np.full((4, CHANNELS), 1024, np.uint16),
        np.full((4, CHANNELS), 128, np.uint16),
        np.zeros((4, CHANNELS - 1), np.uint16),
    ],
    ids=["empty", "small-codebook", "channels"],
)
def test_codes_that_no_codebook_has_are_refused(
    codes: npt.NDArray[np.uint16], vocoders: dict[str, LoadedStage]
) -> None:
    engine = vocoders["marks"].engine
    key = SegmentKey("refused", 0)
    engine.admit(key, SegmentSettings("", GREEDY, frozenset({AUDIO})))
    with pytest.raises(InvalidArgument, match="codes"):
        engine.accept(key, InputChunk(CODES, 0, {CODES: codes}))
    engine.release(key)


def test_one_session_s_draws_do_not_depend_on_others(
    talkers: dict[str, LoadedStage], preset: str, lab_ids: Mapping[str, int]
) -> None:
    """Text and codes are drawn; no code is the one that stands for none."""
    case = BY_NAME["tts-english"]
    given = {}
    for seed in range(SLOTS):
        settings, chunks = asked(case)
        options = {name: value for name, value in settings.options.items() if name == "task"}
        drawn = replace(settings.sampling, temperature=1.0, seed=seed, max_tokens=60)
        given[SegmentKey(f"seed {seed}", 0)] = (
            replace(settings, sampling=drawn, options=options),
            chunks,
        )
    together = run_segments(talkers[preset].engine, given)
    codes = []
    for key, (settings, chunks) in given.items():
        alone = run_segment(talkers[preset].engine, settings, chunks)
        for edge in (TEXT, CODES):
            for name, tensor in alone.tensors(edge).items():
                np.testing.assert_array_equal(together[key].tensors(edge)[name], tensor)
        codes.append(alone.tensors(CODES).get(CODES, np.zeros((0, CHANNELS), np.uint16)))
        assert (codes[-1] < np.array(CODEBOOKS)).all()
        drawn_ids = alone.tensors(TEXT)["ids"]
        assert (drawn_ids == lab_ids[EMPTY]).sum() * 4 - len(codes[-1]) in (0, 4)
    assert len({each.tobytes() for each in codes}) > SLOTS // 2


def test_a_live_recording_is_answered_as_one_that_came_whole(
    talkers: dict[str, LoadedStage], preset: str
) -> None:
    settings, (whole,) = asked(BY_NAME["dialogue-system"])
    expected = run_segment(talkers[preset].engine, settings, [whole])
    said = conversation_of(BY_NAME["dialogue-system"])
    part = AudioPart(0, live=True)
    user = replace_struct(said.messages[-1], parts=(part,))
    opened = Conversation((*said.messages[:-1], user))
    samples = said.recordings[0]
    chunks = [InputChunk(INPUT, 0, to_tensors(opened))]
    chunks += [
        InputChunk(INPUT, 0, {"samples": samples[start : start + 5000]})
        for start in range(0, len(samples), 5000)
    ]
    chunks.append(InputChunk(INPUT, 0, {}, True, FinishReason.STOP))
    heard = run_segment(talkers[preset].engine, replace(settings, live=True), chunks)
    assert heard.failed is None
    assert heard.tensors(TEXT)["ids"].tolist() == expected.tensors(TEXT)["ids"].tolist()


@pytest.mark.parametrize("lag", [0, 3, 100])
def test_an_answer_goes_on_from_what_its_client_has(
    lag: int, talkers: dict[str, LoadedStage], preset: str, lab_ids: Mapping[str, int]
) -> None:
    """All of it leaves again, however many groups the client lacks of the ids that it has."""
    settings, chunks = asked(BY_NAME["tts-english"])
    options = {name: value for name, value in settings.options.items() if name == "task"}
    engine = talkers[preset].engine
    for seed in range(32):
        drawn = replace(settings.sampling, temperature=1.0, seed=seed, max_tokens=60, stop=("zq",))
        settings = replace(settings, sampling=drawn, options=options)
        answer = run_segment(engine, settings, chunks)
        if len(codes := answer.tensors(CODES).get(CODES, ())) > 12:
            break
    assert len(codes) > 12
    ids = answer.tensors(TEXT)["ids"]
    for count in (1, 2, len(ids) // 2, len(ids) - 1, len(ids)):
        groups = max(int((ids[:count] == lab_ids[EMPTY]).sum()) - lag, 0)
        history = History(ids[:count], codes[: 4 * groups])
        again = run_segment(engine, replace(settings, history=history), chunks)
        assert again.failed is None
        for edge in (TEXT, CODES):
            assert again.finish_reason(edge) == answer.finish_reason(edge)
            for name, tensor in answer.tensors(edge).items():
                np.testing.assert_array_equal(again.tensors(edge)[name], tensor, f"{count}")
        assert again.completed == replace(answer.completed, key=again.completed.key)  # type: ignore[union-attr,type-var]


@pytest.mark.parametrize(
    "history",
    [
        History(np.array([1 << 30], np.int32)),
        History(np.array([1], np.int32), np.full((1, CHANNELS), 1024, np.uint16)),
        History(np.array([1], np.int32), np.zeros((1, 3), np.uint16)),
    ],
    ids=["id", "code", "channels"],
)
def test_a_history_that_cannot_be_is_refused(
    history: History, talkers: dict[str, LoadedStage]
) -> None:
    settings, _ = asked(BY_NAME["tts-english"])
    with pytest.raises(InvalidArgument, match=r"history\."):
        talkers["marks"].engine.admit(SegmentKey("no", 0), replace(settings, history=history))


def test_a_group_at_the_last_position_is_not_heard(
    talkers: dict[str, LoadedStage], recorded: Recorded, mimo_labs: Mapping[str, MimoLab]
) -> None:
    """The vendor's code drops the last position, also where the limit of positions ends it."""
    settings, chunks = asked(BY_NAME["dialogue-system"])
    stem, lab_ids = "marks/dialogue-system", mimo_labs["marks"].ids
    ids = recorded.arrays[f"{stem}/text"]
    codes = recorded.arrays[f"{stem}/codes"].reshape(len(ids), 4, CHANNELS)
    spoken = np.flatnonzero(ids[:-1] == lab_ids[EMPTY])
    cut = int(spoken[1]) + 1
    limited = replace(settings, sampling=replace(settings.sampling, max_tokens=cut))
    answer = run_segment(talkers["marks"].engine, limited, chunks)
    assert answer.tensors(TEXT)["ids"].tolist() == ids[:cut].tolist()
    assert answer.finish_reason(CODES) is FinishReason.LENGTH
    np.testing.assert_array_equal(answer.tensors(CODES)[CODES], codes[spoken[0]])


def test_codes_are_drawn_apart_from_the_text(talkers: dict[str, LoadedStage]) -> None:
    """Of greedy text the codes are drawn all the same, unless the request says otherwise."""
    settings, chunks = asked(BY_NAME["dialogue-system"])
    first = []
    for seed in range(3):
        sampling = replace(settings.sampling, seed=seed)
        drawn = replace(settings, sampling=sampling, options={})
        answer = run_segment(talkers["marks"].engine, drawn, chunks)
        first.append(answer.tensors(CODES)[CODES][:4].tobytes())
    greedy = run_segment(talkers["marks"].engine, settings, chunks).tensors(CODES)[CODES][:4]
    assert len({*first, greedy.tobytes()}) == 4
