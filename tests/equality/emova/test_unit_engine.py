"""A stage that speaks units sounds as EMOVA's own code, whatever else is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import Completed, Emitted, InputChunk, LoadedStage, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.options import Option, OptionKind
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.emova.synthesizer import MOST_UNITS
from antiphon_services.emova.unit_decoder_sizes import UNIT_ENTRIES
from antiphon_services.emova.unit_stage import UnitTerms, unit_stage
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_testkit.drive_engine import run_segment, run_segments
from antiphon_testkit.emova.tiny_speech_tokenizer import STYLES, write_tiny_speech_tokenizer
from antiphon_testkit.flat_settings import stage_config
from tests.equality.emova.emova_cases import SAMPLE_STEP, SEED, UNIT_CASES, UnitCase

pytestmark = pytest.mark.equality

UNITS, AUDIO, STYLE = "units", "audio", "style"
TERMS = UnitTerms("speaker", VocoderEdges(UNITS, AUDIO), Option(STYLE, OptionKind.TEXT))
HOP = 256
TOLERANCE = 1e-4
SLOTS = len(UNIT_CASES)
BY_NAME = {case.name: case for case in UNIT_CASES}
RECORDED = Path(__file__).parent / "recorded.npz"
ONE_OF = np.zeros(1, np.uint16)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    """What the vendor's code made, by case and name."""
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny speech tokenizer."""
    folder = tmp_path_factory.mktemp("emova") / "tokenizer"
    write_tiny_speech_tokenizer(folder, SEED)
    return folder


def load(folder: Path, config: StageConfig | None = None) -> LoadedStage:
    """A loaded stage."""
    return unit_stage(TERMS, folder, folder, config or StageConfig(slots=SLOTS))


@pytest.fixture(scope="module")
def stage(tokenizer: Path) -> LoadedStage:
    """That of the tiny speech tokenizer."""
    return load(tokenizer)


def settings_of(style: str = STYLES[1], key: int = 0, *, wanted: bool = True) -> SegmentSettings:
    """Settings of a segment that speaks in a style with noise of a key."""
    sampling = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=key, max_tokens=1)
    outputs = frozenset({AUDIO} if wanted else ())
    return SegmentSettings("", sampling, outputs, options={STYLE: style})


def chunks_of(units: Tensor, *sizes: int) -> list[InputChunk]:
    """Chunks of these sizes, then a chunk of the rest, then a bare finish."""
    parts = [each for each in np.split(units, np.cumsum(sizes)) if len(each)]
    starts = np.cumsum([0, *map(len, parts)])
    chunks = [
        InputChunk(UNITS, int(start), {UNITS: part})
        for start, part in zip(starts, parts, strict=False)
    ]
    return [*chunks, InputChunk(UNITS, len(units), {}, True, FinishReason.STOP)]


def asked(case: UnitCase, *sizes: int) -> tuple[SegmentSettings, Sequence[InputChunk]]:
    """A case's settings and input."""
    return settings_of(case.style, case.key), chunks_of(case.units, *sizes)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_case_sounds_as_recorded(
    name: str, stage: LoadedStage, recorded: dict[str, Tensor]
) -> None:
    made = run_segment(stage.engine, *asked(BY_NAME[name]))
    samples = made.tensors(AUDIO)["samples"]
    assert len(samples) == HOP * recorded[f"{name}/frames"].sum()
    error = np.abs(samples[::SAMPLE_STEP] - recorded[f"{name}/samples"]).max()
    assert error < TOLERANCE
    assert made.completed is not None
    assert made.completed.input_positions == BY_NAME[name].count
    assert made.completed.output_positions == len(samples)


def test_samples_do_not_depend_on_company_or_chunks(stage: LoadedStage) -> None:
    alone = {
        name: run_segment(stage.engine, *asked(case)).tensors(AUDIO)["samples"]
        for name, case in BY_NAME.items()
    }
    given = {SegmentKey(name, 0): asked(case, 1, 3, 40) for name, case in BY_NAME.items()}
    for key, output in run_segments(stage.engine, given).items():
        np.testing.assert_array_equal(
            output.tensors(AUDIO)["samples"], alone[key.session_id], key.session_id
        )


def test_windows_are_continuous(stage: LoadedStage) -> None:
    made = run_segment(stage.engine, *asked(BY_NAME["windows"])).emitted
    sizes = [len(each.tensors.get("samples", ())) for each in made]
    assert len(sizes) > 3, "the case has several windows"
    assert [each.position for each in made] == [0, *np.cumsum(sizes)[:-1].tolist()]


def test_no_units_are_silence(stage: LoadedStage) -> None:
    made = run_segment(stage.engine, settings_of(), chunks_of(ONE_OF[:0]))
    assert made.tensors(AUDIO) == {}
    assert made.finish_reason(AUDIO) is FinishReason.STOP


def test_unwanted_audio_is_not_made(stage: LoadedStage) -> None:
    made = run_segment(stage.engine, settings_of(wanted=False), chunks_of(ONE_OF))
    assert made.emitted == []
    assert made.completed is not None


def test_the_longest_input_is_spoken(stage: LoadedStage) -> None:
    units = np.arange(MOST_UNITS, dtype=np.uint16)
    made = run_segment(stage.engine, settings_of(), chunks_of(units))
    samples = made.tensors(AUDIO)["samples"]
    assert len(samples) >= HOP * MOST_UNITS
    assert np.isfinite(samples).all()


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        (
            [InputChunk(UNITS, 0, {UNITS: np.zeros(MOST_UNITS + 1, np.uint16)})],
            "units: the segment has more than 1000",
        ),
        ([InputChunk(UNITS, 0, {UNITS: ONE_OF + UNIT_ENTRIES})], "must be below 4096, got 4096"),
        ([InputChunk(UNITS, 0, {UNITS: ONE_OF.astype(np.int32)})], "uint16"),
        ([InputChunk(UNITS, 0, {UNITS: ONE_OF[:, None]})], "uint16"),
        ([InputChunk(UNITS, 0, {"codes": ONE_OF})], "the only tensor"),
        ([InputChunk("codes", 0, {"codes": ONE_OF})], "unknown input edge 'codes'"),
    ],
)
def test_unusable_input_is_refused(
    chunks: list[InputChunk], error: str, stage: LoadedStage
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        refused(stage, chunks)


def test_units_out_of_order_are_refused(stage: LoadedStage) -> None:
    late = InputChunk(UNITS, 1, {UNITS: ONE_OF})
    with pytest.raises(DataLoss, match="instead of id 0"):
        refused(stage, [late])
    after = InputChunk(UNITS, 1, {}, True, FinishReason.STOP)
    with pytest.raises(DataLoss, match="after the last one"):
        refused(stage, [*chunks_of(ONE_OF), after])


def refused(stage: LoadedStage, chunks: Sequence[InputChunk]) -> None:
    """Pass chunks to a segment that is then released."""
    key = SegmentKey("refused", 0)
    stage.engine.admit(key, settings_of())
    try:
        for chunk in chunks:
            stage.engine.accept(key, chunk)
    finally:
        stage.engine.release(key)


def test_cancelled_segments_free_their_slots(stage: LoadedStage) -> None:
    """Cancelled before any input, between windows, and after the last step."""
    case = BY_NAME["windows"]
    whole = run_segment(stage.engine, *asked(case)).tensors(AUDIO)["samples"]
    engine = stage.engine
    for steps in range(3):
        keys = [SegmentKey(f"cancelled {steps}", index) for index in range(SLOTS)]
        for key in keys:
            engine.admit(key, asked(case)[0])
        with pytest.raises(ResourceExhausted, match="slots are in use"):
            engine.admit(SegmentKey("one more", 0), settings_of())
        for chunk in asked(case)[1]:
            engine.accept(keys[0], chunk)
        events = [event for _ in range(steps) for event in engine.step()]
        assert not any(isinstance(each, Completed) for each in events)
        for key in keys:
            engine.release(key)
    again = run_segment(engine, *asked(case)).tensors(AUDIO)["samples"]
    np.testing.assert_array_equal(again, whole)


def test_held_segments_cost_nothing(stage: LoadedStage) -> None:
    engine, key = stage.engine, SegmentKey("held", 0)
    engine.admit(key, settings_of())
    for chunk in chunks_of(ONE_OF):
        engine.accept(key, chunk)
    assert engine.step({key}) == []
    assert any(isinstance(each, Emitted) for each in engine.step())
    engine.release(key)


def test_speech_without_end_fails_its_segment_only(
    stage: LoadedStage, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_NAME["windows"]
    alone = run_segment(stage.engine, *asked(BY_NAME["one"])).tensors(AUDIO)["samples"]
    monkeypatch.setattr("antiphon_services.emova.synthesizer.MOST_SPEECH_S", 1)
    short = load(tokenizer)
    keys = SegmentKey("long", 0), SegmentKey("one", 0)
    made = run_segments(short.engine, {keys[0]: asked(case), keys[1]: asked(BY_NAME["one"])})
    failed = made[keys[0]].failed
    assert failed is not None
    assert isinstance(failed.error, InvalidArgument)
    assert failed.error.field == UNITS
    assert "units: the speech for 150 units is longer than 1 s" in str(failed.error)
    np.testing.assert_array_equal(made[keys[1]].tensors(AUDIO)["samples"], alone)


def test_styles_are_the_checkpoints(stage: LoadedStage) -> None:
    (option,) = stage.facts.options
    assert option.choices == STYLES
    option.check(STYLES[3].upper())
    with pytest.raises(InvalidArgument, match=r"options\.style: must be one of gender-female"):
        option.check("gender-robot")
    upper = replace(asked(BY_NAME["short"])[0], options={STYLE: BY_NAME["short"].style.upper()})
    made = run_segment(stage.engine, upper, chunks_of(BY_NAME["short"].units))
    same = run_segment(stage.engine, *asked(BY_NAME["short"]))
    np.testing.assert_array_equal(made.tensors(AUDIO)["samples"], same.tensors(AUDIO)["samples"])


def test_the_style_that_is_not_given_is_neutral(stage: LoadedStage) -> None:
    unset = replace(settings_of(), options={})
    made = run_segment(stage.engine, unset, chunks_of(ONE_OF)).tensors(AUDIO)["samples"]
    neutral = "gender-female_emotion-neutral_speed-normal_pitch-normal"
    same = run_segment(stage.engine, settings_of(neutral), chunks_of(ONE_OF))
    np.testing.assert_array_equal(made, same.tensors(AUDIO)["samples"])


def test_the_engine_names_the_styles_it_has(stage: LoadedStage) -> None:
    with pytest.raises(InvalidArgument, match=r"options\.style: must be one of gender-female"):
        stage.engine.admit(SegmentKey("robot", 0), settings_of("gender-robot"))


def test_units_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    write_tiny_speech_tokenizer(folder, SEED)
    file = folder / "config.json"
    file.write_text(file.read_text().replace("xujing_cosyvoice_FT", "another"))
    with pytest.raises(FailedPrecondition, match="u2s_unit_type is 40ms_multilingual_8888_another"):
        load(folder)


def test_settings_that_do_not_apply_are_refused(tokenizer: Path) -> None:
    for config, field in (
        (StageConfig(engine="vllm"), "engine"),
        (StageConfig(context_limit=MOST_UNITS + 1), "context_limit"),
        (stage_config(fused=True), "torch.fused"),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            load(tokenizer, config)
        assert refusal.value.field == field


def test_facts_describe_the_stage(stage: LoadedStage) -> None:
    facts = stage.facts
    assert (facts.sample_rate_hz, facts.context_limit) == (22_050, MOST_UNITS)
    assert (facts.code_groups, facts.code_entries) == (1, UNIT_ENTRIES)
