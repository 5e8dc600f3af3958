"""The thinker answers with the vendor's ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.covo_audio import CODES, TEXT
from antiphon.pipelines.files import read_config
from antiphon.values.history import History
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.covo_audio.thinker.load import load
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from tests.equality.covo_audio.covo_asking import asked, conversation_of
from tests.equality.covo_audio.covo_cases import CASES, ROW_STEP, Case
from tests.equality.covo_audio.covo_truth import CovoTruth

ROW_TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def thinkers(covo_checkpoints: dict[str, Path]) -> dict[str, ThinkerEngine]:
    made = {}
    for name, folder in covo_checkpoints.items():
        engine = load(folder, StageConfig(slots=4, context_limit=1200)).engine
        assert isinstance(engine, ThinkerEngine)
        made[name] = engine
    return made


@pytest.fixture
def thinker(preset: str, thinkers: dict[str, ThinkerEngine]) -> ThinkerEngine:
    return thinkers[preset]


def first_code(checkpoint: Path) -> int:
    return int(read_config(checkpoint)["audio_token_index"])


def assert_as_recorded(
    output: SegmentOutput, case: Case, stem: str, truth: CovoTruth, first: int
) -> None:
    assert output.failed is None, (stem, output.failed)
    assert output.completed is not None
    wanted = truth.arrays[f"{stem}/ids"]
    text = output.tensors(TEXT)
    assert text["ids"].tolist() == wanted.tolist(), stem
    assert bytes(text["utf8"]).decode() == truth.rows[stem]["words"], stem
    assert output.completed.input_positions == truth.rows[stem]["prompt"], stem
    if case.spoken:
        codes = output.tensors(CODES).get(CODES, np.zeros((0, 1), np.uint16))
        assert codes[:, 0].tolist() == (wanted[wanted >= first] - first).tolist(), stem
        assert output.finish_reason(CODES) is not None


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_answers_are_those_of_the_vendor(
    together: bool,
    preset: str,
    thinker: ThinkerEngine,
    covo_checkpoint: Path,
    covo_truth: CovoTruth,
) -> None:
    """`second` and `third` are longer prompts, with the penalties over all of them."""
    segments = {SegmentKey(case.name, 0): asked(case) for case in CASES}
    for each in [segments] if together else [{key: one} for key, one in segments.items()]:
        outputs = run_segments(thinker, each)
        for case in CASES:
            output = outputs.get(SegmentKey(case.name, 0))
            if output is not None:
                stem = f"{preset}/{case.name}"
                assert_as_recorded(output, case, stem, covo_truth, first_code(covo_checkpoint))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_and_rows_are_those_of_the_vendor(
    case: Case, preset: str, thinker: ThinkerEngine, covo_truth: CovoTruth
) -> None:
    stem = f"{preset}/{case.name}"
    prompt = thinker.intake.prompts.prepare(conversation_of(case), speaks=False)
    assert prompt.ids.tolist() == covo_truth.arrays[f"{stem}/prompt"].tolist()
    wanted = torch.from_numpy(covo_truth.arrays[f"{stem}/rows"])
    if prompt.audio is None:
        assert not len(wanted)
        return
    with torch.inference_mode():
        rows = thinker.model.encode(prompt.audio)
    torch.testing.assert_close(rows[::ROW_STEP], wanted, rtol=0, atol=ROW_TOLERANCE)


@pytest.mark.parametrize("known", [1, 7, 33])
def test_an_answer_goes_on_elsewhere(
    known: int, preset: str, thinker: ThinkerEngine, covo_checkpoint: Path, covo_truth: CovoTruth
) -> None:
    """Another replica repeats the codes of the part that the client already has."""
    case = next(each for each in CASES if each.name == "noise")
    stem = f"{preset}/{case.name}"
    ids = covo_truth.arrays[f"{stem}/ids"][:known].astype(np.int32)
    settings, chunks = asked(case)
    settings = replace(settings, history=History(ids=ids))
    key = SegmentKey("went-on", 0)
    output = run_segments(thinker, {key: (settings, chunks)})[key]
    assert_as_recorded(output, case, stem, covo_truth, first_code(covo_checkpoint))


def test_a_limit_ends_text_and_codes(thinker: ThinkerEngine) -> None:
    case = next(each for each in CASES if each.name == "odd")
    key = SegmentKey("limited", 0)
    output = run_segments(thinker, {key: asked(replace(case, most=5))})[key]
    assert output.finish_reason(CODES) is FinishReason.LENGTH
    assert output.finish_reason(TEXT) is FinishReason.LENGTH


def test_a_vocabulary_with_more_codes_is_refused(
    covo_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """A code of 16384 would have no row in code2wav, so the model must not be able to draw it."""
    for path in covo_checkpoints["released"].iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = covo_checkpoints["released"] / "config.json"
    (tmp_path / "config.json").unlink()
    first = first_code(covo_checkpoints["released"])
    vocabulary = f'"vocab_size": {first + 16384}'
    text = config.read_text()
    assert vocabulary in text
    more = f'"vocab_size": {first + 16385}'
    (tmp_path / "config.json").write_text(text.replace(vocabulary, more))
    with pytest.raises(FailedPrecondition, match="including 16384 codes"):
        load(tmp_path, StageConfig(slots=1, context_limit=900))
