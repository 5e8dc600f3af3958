from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import SpecialIds, talker_row_positions
from antiphon.runtime.engine import LoadedStage
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import AUDIO, TEXT, segment
from tests.unit.services.qwen3_omni.thinker.thinker_reference import (
    MAX_TOKENS,
    Cases,
    Reference,
    ReferenceReply,
    clear_replies,
)

Results = list[tuple[ReferenceReply, SegmentOutput]]


@pytest.fixture(scope="module")
def results(stage: LoadedStage, cases: Cases) -> Results:
    return [
        (expected, run_segment(stage.engine, *segment(spoken_to, max_tokens=MAX_TOKENS)))
        for spoken_to, expected in cases
    ]


def _finish(reference: Reference, ids: list[int]) -> FinishReason:
    ended = ids[-1] == reference.config.im_end_token_id
    return FinishReason.STOP if ended else FinishReason.LENGTH


def test_ids_and_text_equal_generate(reference: Reference, results: Results) -> None:
    for expected, out in results:
        text = out.tensors("text")
        assert text["ids"].tolist() == expected.ids
        whole = reference.tokenizer.decode(expected.ids, skip_special_tokens=True)
        assert text["utf8"].tobytes().decode() == whole
        assert out.finish_reason("text") == _finish(reference, expected.ids)
    reasons = {out.finish_reason("text") for _, out in results}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_spoken_ids_are_all_but_the_last_sampled(reference: Reference, results: Results) -> None:
    for expected, out in results:
        assert out.tensors("tokens")["ids"].tolist() == expected.ids[:-1]
        assert out.finish_reason("tokens") == _finish(reference, expected.ids)


def test_prompt_equals_processor_and_hidden_states(reference: Reference, results: Results) -> None:
    special = SpecialIds.from_config(reference.config.to_dict())
    rows_seen = 0
    for expected, out in results:
        prompt = out.tensors("prompt")
        assert prompt["ids"].dtype == np.int32
        assert prompt["ids"].tolist() == expected.prompt_ids.tolist()
        positions = talker_row_positions(prompt["ids"], special)
        assert ("rows" in prompt) == (len(positions) > 0)
        if len(positions):
            rows_seen += len(positions)
            assert prompt["row_positions"].tolist() == positions.tolist()
            np.testing.assert_allclose(prompt["rows"], expected.hidden[positions], atol=1e-5)
    assert rows_seen > 0


@pytest.mark.parametrize("tapped_layer", [0, 1, 3])
def test_rows_equal_hidden_states_when_layer_is_first_or_last(
    small_dir: Path, tmp_path: Path, tapped_layer: int
) -> None:
    model_dir = tmp_path / "tapped"
    shutil.copytree(small_dir, model_dir)
    config = json.loads((model_dir / "config.json").read_text())
    config["talker_config"]["accept_hidden_layer"] = tapped_layer
    (model_dir / "config.json").write_text(json.dumps(config))
    expected = Reference(model_dir).reply(AUDIO[0], 1)
    prompt = run_segment(
        load(model_dir, StageConfig()).engine, *segment(AUDIO[0], max_tokens=1)
    ).tensors("prompt")
    np.testing.assert_allclose(prompt["rows"], expected.hidden[prompt["row_positions"]], atol=1e-5)


def test_rows_keep_the_dtype_when_it_is_bfloat16(small_dir: Path) -> None:
    stage = load(small_dir, StageConfig(dtype="bfloat16"))
    single = run_segment(load(small_dir, StageConfig()).engine, *segment(AUDIO[0], max_tokens=1))
    rows = run_segment(stage.engine, *segment(AUDIO[0], max_tokens=1)).tensors("prompt")["rows"]
    assert rows.dtype == ml_dtypes.bfloat16
    full = single.tensors("prompt")["rows"]
    near = np.corrcoef(rows.astype(np.float32).ravel(), full.ravel())[0, 1]
    assert near > 0.99


def test_completed_counts_positions(reference: Reference, results: Results) -> None:
    audio_id = reference.config.thinker_config.audio_token_id
    for expected, out in results:
        assert out.completed is not None
        assert out.completed.input_positions == len(expected.prompt_ids)
        assert out.completed.output_positions == len(expected.ids)
        audio = int((expected.prompt_ids == audio_id).sum())
        assert out.completed.input_audio_positions == audio


def test_interleaved_segments_equal_generate(stage: LoadedStage, cases: Cases) -> None:
    keys = [SegmentKey(f"session {index}", index % 2) for index in range(len(cases))]
    segments = {
        key: segment(spoken_to, max_tokens=MAX_TOKENS)
        for key, (spoken_to, _) in zip(keys, cases, strict=True)
    }
    outputs = run_segments(stage.engine, segments)
    for key, (_, expected) in zip(keys, cases, strict=True):
        assert outputs[key].tensors("text")["ids"].tolist() == expected.ids


def test_ids_equal_generate_when_repetition_is_penalised(
    stage: LoadedStage, reference: Reference
) -> None:
    conversations = [*TEXT[:2], *AUDIO[:1]]
    chosen = clear_replies(reference, conversations, 24, repetition_penalty=1.3)
    assert chosen
    for spoken_to, expected in chosen:
        given = segment(spoken_to, max_tokens=24, repetition_penalty=1.3)
        out = run_segment(stage.engine, *given)
        assert out.tensors("text")["ids"].tolist() == expected.ids


@torch.inference_mode()
def test_positions_are_plain_when_there_is_text_and_audio(reference: Reference) -> None:
    thinker: Any = reference.thinker
    for spoken_to in (*TEXT[:2], *AUDIO):
        inputs = reference.inputs(spoken_to)
        mask = inputs.get("feature_attention_mask")
        positions, delta = thinker.get_rope_index(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            audio_seqlens=None if mask is None else mask.sum(-1),
        )
        length = inputs["input_ids"].shape[1]
        assert torch.equal(positions[:, 0], torch.arange(length).expand(3, -1).to(positions.dtype))
        assert delta.abs().max() == 0
