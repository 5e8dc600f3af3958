"""What a stage is fed where nobody feeds it: lengths, order, grouping and pace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import FailedPrecondition
from antiphon.pipelines import ming_flash_omni, qwen2_5_omni
from antiphon.pipelines.examples import (
    ExampleSettings,
    TimedChunk,
    conversation,
    random_codes,
    written_text,
)
from antiphon.pipelines.qwen3_omni import (
    PIPELINE,
    SpecialIds,
    assistant_start,
    user_positions,
)
from antiphon.v1 import stage_pb2
from antiphon.values.segment import ChunkPolicy

SETTINGS = ExampleSettings(
    prompt=lambda number: f"day number {number}",
    prompt_length=6,
    tokens=4,
    frames=10,
    rate_hz=10.0,
    groups=ChunkPolicy(first=1, ramp=(2, 4), steady=5),
    model_dir=None,
    description=stage_pb2.DescribeResponse(code_groups=4, code_entries=64),
)
CONFIG = {
    "im_start_token_id": 1000,
    "im_end_token_id": 1001,
    "user_token_id": 7,
    "assistant_token_id": 8,
    "tts_pad_token_id": 1002,
    "tts_bos_token_id": 1003,
    "tts_eos_token_id": 1004,
    "thinker_config": {"audio_token_id": 1005, "image_token_id": 1006, "video_token_id": 1007},
}
SPECIAL = SpecialIds.from_config(CONFIG)


def sent_in_order(feed: Sequence[TimedChunk], first: Mapping[str, int] | None = None) -> None:
    """Every edge's sequences and positions follow on each other, and each edge ends once.

    `first` are the first sequence numbers that are not 0.
    """
    ends: dict[str, bool] = {}
    positions: dict[str, int] = {}
    sequences = dict(first or {})
    for timed in feed:
        chunk = timed.chunk
        assert not ends.get(chunk.edge)
        assert chunk.position == positions.get(chunk.edge, 0)
        assert chunk.sequence == sequences.get(chunk.edge, 0)
        counted = next(iter(chunk.tensors.values()), np.empty(0))
        positions[chunk.edge] = chunk.position + len(counted)
        sequences[chunk.edge] = chunk.sequence + 1
        ends[chunk.edge] = chunk.segment_finished
    assert ends
    assert all(ends.values())
    assert [timed.at_s for timed in feed] == sorted(timed.at_s for timed in feed)


def test_conversation_is_one_message_that_depends_on_the_number_only() -> None:
    made_up = conversation("input")(SETTINGS)
    texts = []
    for number in (1, 1, 2):
        feed = made_up(number)
        sent_in_order(feed)
        (message,) = json.loads(feed[0].chunk.tensors["messages"].tobytes())
        texts.append(message["parts"][0]["text"])
    assert texts == ["day number 1", "day number 1", "day number 2"]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_talkers_example_is_a_prompt_and_then_tokens_one_by_one_at_their_rate(
    model_dir: Path,
) -> None:
    example = PIPELINE.stage("talker").example
    assert example
    feed = example(replace(SETTINGS, model_dir=model_dir))(0)
    sent_in_order(feed)
    prompt = feed[0].chunk.tensors["ids"]
    assert len(user_positions(prompt, SPECIAL)) == 6 + 3
    assert assistant_start(prompt, SPECIAL) == 6 + 3
    assert max(timed.chunk.tensors["ids"][0] for timed in feed[1:-1]) < 1000
    assert [timed.at_s for timed in feed] == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4])


def test_talkers_example_needs_the_checkpoint() -> None:
    example = PIPELINE.stage("talker").example
    assert example
    with pytest.raises(FailedPrecondition, match="special token IDs"):
        example(SETTINGS)


def test_talkers_example_has_rows_of_the_checkpoints_width_when_it_speaks_from_rows(
    tmp_path: Path,
) -> None:
    placeholders = {"audio_token_index": 50, "image_token_index": 51, "video_token_index": 52}
    config = {"thinker_config": placeholders, "talker_config": {"embedding_size": 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    example = qwen2_5_omni.PIPELINE.stage("talker").example
    assert example
    told, prompt, *reply = example(replace(SETTINGS, model_dir=tmp_path))(0)
    sent_in_order([prompt, *reply], first={"prompt": 1})
    assert told.chunk.tensors["ids"].max() < 50
    assert told.chunk.tensors["ids"].shape == (6,)
    assert prompt.chunk.tensors["rows"].shape == (6, 3)
    assert [len(timed.chunk.tensors.get("rows", ())) for timed in reply] == [1, 1, 1, 1, 0]
    for timed in (told, prompt, *reply):
        qwen2_5_omni.PIPELINE.edge(timed.chunk.edge).check(timed.chunk.tensors)
    with pytest.raises(FailedPrecondition, match="width"):
        example(SETTINGS)


def test_random_codes_are_grouped_as_the_policy_says_and_paced() -> None:
    feed = random_codes("codes")(SETTINGS)(0)
    sent_in_order(feed)
    codes = [timed.chunk.tensors["codes"] for timed in feed]
    assert [len(each) for each in codes] == [1, 2, 4, 3]
    assert max(each.max() for each in codes) < 64
    assert [timed.at_s * 10 for timed in feed] == pytest.approx([0, 2, 6, 9])


def test_random_codes_without_a_number_of_frames_are_refused() -> None:
    with pytest.raises(FailedPrecondition, match="--frames"):
        random_codes("codes")(replace(SETTINGS, frames=0))


def test_a_written_text_is_a_single_chunk_of_characters() -> None:
    feed = written_text("text")(SETTINGS)(7)
    sent_in_order(feed)
    (chunk,) = (timed.chunk for timed in feed)
    assert bytes(chunk.tensors["utf8"]).decode() == "day number 7"
    assert len(chunk.tensors["ids"]) == len("day number 7")
    ming_flash_omni.PIPELINE.edge("text").check(chunk.tensors)
