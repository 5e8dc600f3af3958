"""The thinker answers with the vendor's ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.values.history import History
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.graphs import Eager, RowFunction
from antiphon_services.ming_flash_omni.thinker.load import load
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.model import ThinkerFeed
from antiphon_services.thinker.prompt import Ids
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from tests.equality.ming_flash_omni.flash_asking import asked, conversation_of
from tests.equality.ming_flash_omni.flash_cases import CASES, ROW_STEP, Case
from tests.equality.ming_flash_omni.flash_truth import FlashTruth

ROW_TOLERANCE = 1e-6
LOGIT_TOLERANCE = 1e-4
TEXT = "text"
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def thinkers(flash_checkpoints: dict[str, Path]) -> dict[str, ThinkerEngine]:
    made = {}
    for name, folder in flash_checkpoints.items():
        engine = load(folder, StageConfig(slots=4, context_limit=1024)).engine
        assert isinstance(engine, ThinkerEngine)
        made[name] = engine
    return made


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A thinker whose decoder runs in buckets, as on a GPU, and how many rows each run had."""

    engine: ThinkerEngine
    runs: list[int]


@pytest.fixture(scope="module")
def bucketed(flash_checkpoints: dict[str, Path]) -> dict[str, Bucketed]:
    """With small parts of prompts, so that many steps consist of a part and of single rows."""
    made = {}
    for name, folder in flash_checkpoints.items():
        runs: list[int] = []
        config = StageConfig(slots=4, context_limit=1024)
        engine = load(folder, config, partial(watched, runs), prefill_rows=40).engine
        assert isinstance(engine, ThinkerEngine)
        made[name] = Bucketed(engine, runs)
    return made


def watched(
    runs: list[int], function: RowFunction, buffers: Sequence[torch.Tensor], least: int
) -> RowFunction:
    """Buckets that note how many rows each run has."""

    def noted(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        runs.append(len(rows[0]))
        return function(*rows)

    return Eager(noted, buffers, least)


@pytest.fixture
def thinker(preset: str, thinkers: dict[str, ThinkerEngine]) -> ThinkerEngine:
    return thinkers[preset]


def assert_as_recorded(output: SegmentOutput, stem: str, truth: FlashTruth) -> None:
    assert output.failed is None, (stem, output.failed)
    assert output.completed is not None
    text = output.tensors(TEXT)
    assert text["ids"].tolist() == truth.arrays[f"{stem}/ids"].tolist(), stem
    assert bytes(text["utf8"]).decode() == truth.rows[stem]["words"], stem
    assert output.completed.input_positions == truth.rows[stem]["prompt"], stem


def test_answers_are_those_of_the_vendor(
    preset: str, thinker: ThinkerEngine, flash_truth: FlashTruth
) -> None:
    for case in CASES if preset == "released" else CASES[::3]:
        key = SegmentKey(case.name, 0)
        output = run_segments(thinker, {key: asked(case)})[key]
        assert_as_recorded(output, f"{preset}/{case.name}", flash_truth)


@pytest.mark.parametrize("buckets", [False, True], ids=["plain", "buckets"])
def test_answers_together_are_those_of_the_vendor(
    buckets: bool,
    preset: str,
    thinker: ThinkerEngine,
    bucketed: dict[str, Bucketed],
    flash_truth: FlashTruth,
) -> None:
    """Rows of text, recordings and images share a step, each with its own router."""
    engine = bucketed[preset].engine if buckets else thinker
    bucketed[preset].runs.clear()
    outputs = run_segments(engine, {SegmentKey(each.name, 0): asked(each) for each in CASES})
    for key, output in outputs.items():
        assert_as_recorded(output, f"{preset}/{key.session_id}", flash_truth)
    assert (max(bucketed[preset].runs, default=0) == 4) == buckets


def test_a_recording_leaves_the_buckets_to_replies(
    preset: str, thinker: ThinkerEngine, bucketed: dict[str, Bucketed]
) -> None:
    """A step with the prompt of one answer and a row of another has the same logits in two passes,
    and the row runs in a bucket."""
    engine, runs = bucketed[preset].engine, bucketed[preset].runs
    reply = engine.intake.prompts.prepare(conversation_of(BY_NAME["hello"]), speaks=False).ids
    prompt = engine.intake.prompts.prepare(conversation_of(BY_NAME["heard-odd"]), speaks=False)
    assert prompt.audio is not None
    made = []
    for each in (thinker, engine):
        # The slots get other content than the engine knows of.
        each.forget()
        with torch.inference_mode():
            each.model.forward([fed(0, 0, reply[:-1])])
            heard = fed(1, 0, prompt.ids, media=each.model.encode(prompt.audio))
            runs.clear()
            made.append(each.model.forward([fed(0, len(reply) - 1, reply[-1:]), heard]))
    assert set(runs) == {1}
    for plain, by_bucket in zip(*made, strict=True):
        assert plain.logits is not None
        torch.testing.assert_close(by_bucket.logits, plain.logits, rtol=0, atol=LOGIT_TOLERANCE)


def fed(slot: int, start: int, ids: Ids, media: torch.Tensor | None = None) -> ThinkerFeed:
    return ThinkerFeed(slot, start, ids, np.empty(0, np.int64), sampled=True, media=media)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_and_rows_are_those_of_the_vendor(
    case: Case, preset: str, thinker: ThinkerEngine, flash_truth: FlashTruth
) -> None:
    stem = f"{preset}/{case.name}"
    prompt = thinker.intake.prompts.prepare(conversation_of(case), speaks=False)
    assert prompt.ids.tolist() == flash_truth.arrays[f"{stem}/prompt"].tolist()
    with torch.inference_mode():
        heard = [thinker.model.encode(prompt.audio)] if prompt.audio else []
        seen = [thinker.model.encode(each) for each in prompt.patches]
    for kind, rows in (("heard", heard), ("seen", seen)):
        name = f"{stem}/{kind}"
        assert bool(rows) == (name in flash_truth.arrays)
        if rows:
            wanted = torch.from_numpy(flash_truth.arrays[name])
            found = torch.cat(rows)[::ROW_STEP]
            torch.testing.assert_close(found, wanted, rtol=0, atol=ROW_TOLERANCE)


def test_a_prompt_in_small_parts_has_the_same_answer(
    flash_checkpoints: dict[str, Path], flash_truth: FlashTruth
) -> None:
    """Parts cut recordings and images, and a part of media alone has no row of text."""
    engine = load(
        flash_checkpoints["released"], StageConfig(slots=2, context_limit=1024), prefill_rows=7
    ).engine
    cases = [BY_NAME[name] for name in ("all", "seen-high", "heard-both", "third")]
    outputs = run_segments(engine, {SegmentKey(each.name, 0): asked(each) for each in cases})
    for key, output in outputs.items():
        assert_as_recorded(output, f"released/{key.session_id}", flash_truth)


@pytest.mark.parametrize("known", [1, 20])
def test_an_answer_goes_on_elsewhere(
    known: int, preset: str, thinker: ThinkerEngine, flash_truth: FlashTruth
) -> None:
    """The known part follows an image, so its positions are behind those in the slot."""
    name = "seen-again" if preset == "wide" else "seen-small"
    stem = f"{preset}/{name}"
    settings, chunks = asked(BY_NAME[name])
    ids = flash_truth.arrays[f"{stem}/ids"][:known].astype(np.int32)
    key = SegmentKey("went-on", 0)
    settings = replace(settings, history=History(ids=ids))
    output = run_segments(thinker, {key: (settings, chunks)})[key]
    assert_as_recorded(output, stem, flash_truth)


def test_the_limit_ends_an_answer(thinker: ThinkerEngine) -> None:
    key = SegmentKey("limited", 0)
    output = run_segments(thinker, {key: asked(replace(BY_NAME["hello"], most=5))})[key]
    assert output.finish_reason(TEXT) is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("llm_config.router_type", "topN", "llm_config.router_type is topN"),
        ("llm_config.use_qkv_bias", True, "llm_config.use_qkv_bias is true"),
        ("llm_config.moe_router_topk_scaling_factor", 1.0, "moe_router_topk_scaling_factor is 1.0"),
        ("llm_config.rope_scaling.type", "3D", "rope_type is 3D"),
        ("llm_config.rope_scaling.type", "mrope", "rope_type is mrope"),
        ("llm_config.rope_scaling", None, "rope_scaling is missing"),
        ("llm_config.num_attention_heads", 4, "make 32 rotated dimensions; the model has 64"),
        ("llm_config.n_group", 5, "num_experts 16 don't fit n_group 5"),
        ("llm_config.image_patch_token", 7, "image_patch_token is 7"),
        ("llm_config.vocab_size", 64, "vocab_size is 64"),
        ("vision_config.num_position_embeddings", 35, "35, which is no square"),
        ("audio_config.norm_query_embeds", None, "norm_query_embeds"),
    ],
)
def test_an_unsupported_configuration_is_refused(
    path: str, value: Any, reason: str, flash_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    source = flash_checkpoints["released"]
    for each in source.iterdir():
        (tmp_path / each.name).symlink_to(each)
    content = json.loads((source / "config.json").read_text())
    *parents, name = path.split(".")
    inner = content
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    if value is None:
        del inner[name]
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(FailedPrecondition, match=reason):
        load(tmp_path, StageConfig(slots=1, context_limit=512))


@pytest.mark.parametrize("name", ["tokenizer.json", "preprocessor_config.json"])
def test_a_directory_without_a_file_that_the_repository_may_lack_is_refused(
    name: str, flash_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    for each in flash_checkpoints["released"].iterdir():
        if each.name != name:
            (tmp_path / each.name).symlink_to(each)
    said = f"{tmp_path}: {name} not found.* copy {name} from https://github.com/inclusionAI/Ming"
    with pytest.raises(FailedPrecondition, match=said):
        load(tmp_path, StageConfig(slots=1, context_limit=512))
