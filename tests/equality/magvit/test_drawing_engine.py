"""A stage that draws image tokens makes PNG files of what the vendor's code draws."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphon.deployment.schema import StageConfig
from antiphon.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import Emitted, InputChunk, LoadedStage, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.magvit.drawing_engine import DrawingTerms
from antiphon_services.magvit.drawing_stage import drawing_stage
from antiphon_services.magvit.image_sizes import IMAGE_ENTRIES, MOST_SIDE_TOKENS
from antiphon_services.vocoder.stage import NO_SAMPLING
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.magvit.tiny_image_tokenizer import SCALE, write_tiny_image_tokenizer
from tests.equality.magvit.magvit_cases import DRAWN_CASES, SEED, DrawnCase

pytestmark = pytest.mark.equality

TOKENS, IMAGE = "image_tokens", "image"
TERMS = DrawingTerms("painter", TOKENS, IMAGE)
SLOTS = len(DRAWN_CASES)
BY_NAME = {case.name: case for case in DRAWN_CASES}
SETTINGS = SegmentSettings("", NO_SAMPLING, frozenset({IMAGE}))
ONE = np.zeros(1, np.uint16)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    """What the vendor's code made, by case and name."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny MAGVITv2."""
    folder = tmp_path_factory.mktemp("magvit") / "magvitv2"
    write_tiny_image_tokenizer(folder, SEED)
    return folder


@pytest.fixture(scope="module")
def stage(tokenizer: Path) -> LoadedStage:
    """A loaded stage."""
    return drawing_stage(TERMS, tokenizer, tokenizer, StageConfig(slots=SLOTS))


def chunks_of(ids: Tensor, *sizes: int) -> list[InputChunk]:
    """Chunks of these sizes, then a chunk of the rest, then a bare finish."""
    parts = [each for each in np.split(ids, np.cumsum(sizes)) if len(each)]
    starts = np.cumsum([0, *map(len, parts)])
    chunks = [
        InputChunk(TOKENS, int(start), {TOKENS: part})
        for start, part in zip(starts, parts, strict=False)
    ]
    return [*chunks, InputChunk(TOKENS, len(ids), {}, True, FinishReason.STOP)]


def file_of(output: SegmentOutput) -> bytes:
    """The one file of a segment."""
    tensors = output.tensors(IMAGE)
    file = tensors["files"].tobytes()
    assert tensors["images"][:, 0].tolist() == [len(file)]
    return file


@pytest.mark.parametrize("case", DRAWN_CASES, ids=lambda case: case.name)
def test_a_case_is_drawn_as_recorded(
    case: DrawnCase, stage: LoadedStage, recorded: dict[str, Tensor]
) -> None:
    output = run_segment(stage.engine, SETTINGS, chunks_of(case.ids))
    assert output.tensors(IMAGE)["images"][0, 1] == case.side**2, "the tokens count as usage"
    assert output.finish_reason(IMAGE) is FinishReason.STOP
    with Image.open(io.BytesIO(file_of(output))) as image:
        assert (image.format, image.size) == ("PNG", (SCALE * case.side, SCALE * case.side))
        pixels = np.asarray(image).transpose(2, 0, 1)
    exact = np.clip((recorded[f"{case.name}/values"] + 1) / 2, 0, 1) * 255
    # The vendor rounds down. A value within the tolerance of a whole number may go either way.
    assert np.abs(pixels + 0.5 - exact).max() <= 0.5 + 256e-4


def test_files_do_not_depend_on_company_or_chunks(stage: LoadedStage) -> None:
    alone = {
        name: file_of(run_segment(stage.engine, SETTINGS, chunks_of(case.ids)))
        for name, case in BY_NAME.items()
    }
    given = {
        SegmentKey(name, 0): (SETTINGS, chunks_of(case.ids, 1, 7, 60))
        for name, case in BY_NAME.items()
    }
    made = run_segments(stage.engine, given)
    assert {key.session_id: file_of(output) for key, output in made.items()} == alone


def test_no_tokens_are_no_image(stage: LoadedStage) -> None:
    output = run_segment(stage.engine, SETTINGS, chunks_of(ONE[:0]))
    assert output.tensors(IMAGE) == {}
    assert output.finish_reason(IMAGE) is FinishReason.STOP


def test_unwanted_images_are_not_drawn(stage: LoadedStage) -> None:
    unwanted = SegmentSettings("", NO_SAMPLING, frozenset())
    output = run_segment(stage.engine, unwanted, chunks_of(ONE))
    assert output.emitted == []
    assert output.completed is not None
    assert (output.completed.input_positions, output.completed.output_positions) == (1, 0)


def test_the_largest_image_is_drawn(stage: LoadedStage) -> None:
    ids = np.arange(MOST_SIDE_TOKENS**2, dtype=np.uint16)
    file = file_of(run_segment(stage.engine, SETTINGS, chunks_of(ids)))
    with Image.open(io.BytesIO(file)) as image:
        assert image.size == (SCALE * MOST_SIDE_TOKENS, SCALE * MOST_SIDE_TOKENS)


def test_tokens_that_make_no_square_fail_their_segment_only(stage: LoadedStage) -> None:
    keys = SegmentKey("two", 0), SegmentKey("one", 0)
    made = run_segments(
        stage.engine,
        {
            keys[0]: (SETTINGS, chunks_of(np.zeros(2, np.uint16))),
            keys[1]: (SETTINGS, chunks_of(ONE)),
        },
    )
    failed = made[keys[0]].failed
    assert failed is not None
    assert isinstance(failed.error, InvalidArgument)
    assert failed.error.field == TOKENS
    assert "image_tokens: 2 image tokens don't form a square image" in str(failed.error)
    assert made[keys[1]].completed is not None


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        (InputChunk(TOKENS, 0, {TOKENS: np.zeros(1025, np.uint16)}), "more than 1024"),
        (InputChunk(TOKENS, 0, {TOKENS: ONE + IMAGE_ENTRIES}), "must be below 8192, got 8192"),
        (InputChunk(TOKENS, 0, {TOKENS: ONE.astype(np.int64)}), "uint16"),
        (InputChunk(TOKENS, 0, {"ids": ONE}), "the only tensor"),
        (InputChunk("ids", 0, {"ids": ONE}), "unknown input edge 'ids'"),
    ],
)
def test_unusable_tokens_are_refused(chunk: InputChunk, error: str, stage: LoadedStage) -> None:
    with pytest.raises(InvalidArgument, match=error):
        refused(stage, [chunk])


def test_tokens_out_of_order_are_refused(stage: LoadedStage) -> None:
    with pytest.raises(DataLoss, match="instead of id 0"):
        refused(stage, [InputChunk(TOKENS, 1, {TOKENS: ONE})])
    after = InputChunk(TOKENS, 1, {}, True, FinishReason.STOP)
    with pytest.raises(DataLoss, match="after the last one"):
        refused(stage, [*chunks_of(ONE), after])
    with pytest.raises(DataLoss, match="must have a finish reason"):
        refused(stage, [InputChunk(TOKENS, 0, {TOKENS: ONE}, True)])


def refused(stage: LoadedStage, chunks: Sequence[InputChunk]) -> None:
    """Pass chunks to a segment that is then released."""
    key = SegmentKey("refused", 0)
    stage.engine.admit(key, SETTINGS)
    try:
        for chunk in chunks:
            stage.engine.accept(key, chunk)
    finally:
        stage.engine.release(key)


def test_cancelled_segments_free_their_slots(stage: LoadedStage) -> None:
    """Before any input, and when everything has come."""
    engine = stage.engine
    keys = [SegmentKey("cancelled", index) for index in range(SLOTS)]
    for key in keys:
        engine.admit(key, SETTINGS)
    with pytest.raises(ResourceExhausted, match="slots are in use"):
        engine.admit(SegmentKey("one more", 0), SETTINGS)
    for chunk in chunks_of(ONE):
        engine.accept(keys[0], chunk)
    for key in keys:
        engine.release(key)
    assert engine.step() == []
    assert run_segment(engine, SETTINGS, chunks_of(ONE)).completed is not None


def test_held_segments_wait_while_others_are_drawn(stage: LoadedStage) -> None:
    engine = stage.engine
    keys = [SegmentKey("held", index) for index in range(2)]
    for key in keys:
        engine.admit(key, SETTINGS)
        for chunk in chunks_of(ONE):
            engine.accept(key, chunk)
    assert {event.key for event in engine.step({keys[0]})} == {keys[1]}
    assert engine.step({keys[0]}) == []
    assert any(isinstance(event, Emitted) for event in engine.step())
    for key in keys:
        engine.release(key)


def test_settings_that_do_not_apply_are_refused(tokenizer: Path) -> None:
    for config, field in (
        (StageConfig(engine="vllm"), "engine"),
        (StageConfig(context_limit=MOST_SIDE_TOKENS**2 + 1), "context_limit"),
        (stage_config(fused=True), "torch.fused"),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            drawing_stage(TERMS, tokenizer, tokenizer, config)
        assert refusal.value.field == field


def test_a_stage_without_pillow_says_what_to_install(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "PIL" else found(name)
    )
    with pytest.raises(FailedPrecondition, match="pip install 'antiphon\\[vision\\]'"):
        drawing_stage(TERMS, tokenizer, tokenizer, StageConfig())
