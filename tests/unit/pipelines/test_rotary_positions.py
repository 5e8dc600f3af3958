"""Positions in rotary attention equal Hugging Face's `get_rope_index`."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniPreTrainedModelForConditionalGeneration,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration,
)

from antiphon.errors import DataLoss
from antiphon.pipelines.mrope import centred_positions, rotary_positions
from antiphon.pipelines.qwen3_omni import SpecialIds

PER_SECOND, MERGE, N_WINDOW = 13, 2, 50
SEEN, SEEN_END, HEARD, HEARD_END, WORD = 60, 61, 62, 63, 1
SPECIAL = SpecialIds(40, 41, 42, 43, 44, 45, 46, audio=50, image=51, video=52)

# With how many positions the audio tower makes of a hundred frames.
MODELS: tuple[tuple[Any, int], ...] = (
    (Qwen3OmniMoePreTrainedModelForConditionalGeneration, 13),
    (Qwen2_5OmniPreTrainedModelForConditionalGeneration, 25),
)


def stand_in(model: Any) -> SimpleNamespace:
    """What `get_rope_index` reads of a model."""
    made = SimpleNamespace(
        spatial_merge_size=MERGE,
        config=SimpleNamespace(
            image_token_id=SPECIAL.image,
            video_token_id=SPECIAL.video,
            audio_token_id=SPECIAL.audio,
            vision_start_token_id=SEEN,
            audio_start_token_id=HEARD,
            position_id_per_seconds=PER_SECOND,
            seconds_per_chunk=2,
            audio_config=SimpleNamespace(n_window=N_WINDOW),
        ),
    )
    made.get_llm_pos_ids_for_vision = partial(model.get_llm_pos_ids_for_vision, made)
    return made


side = st.integers(1, 5)
image = st.tuples(st.just("image"), st.just(1), side, side)
video = st.tuples(st.just("video"), st.integers(1, 4), side, side)
audio = st.tuples(st.just("audio"), st.integers(1, 3), side, side)
words = st.tuples(st.just("words"), st.integers(0, 4), side, side)
Piece = tuple[str, int, int, int]


@pytest.mark.parametrize(("model", "audio_positions"), MODELS)
@given(pieces=st.lists(st.one_of(image, video, audio, words), max_size=8))
def test_positions_equal_the_reference(
    model: Any, audio_positions: int, pieces: list[Piece]
) -> None:
    ids: list[int] = []
    shown: dict[str, list[tuple[int, int, int]]] = {"image": [], "video": []}
    grids, steps, heard = [], [], []
    for kind, count, rows, columns in pieces:
        if kind == "words":
            ids += [WORD] * count
        elif kind == "audio":
            heard.append(100 * count)
            ids += [HEARD, *[SPECIAL.audio] * (audio_positions * count), HEARD_END]
        else:
            id_ = SPECIAL.image if kind == "image" else SPECIAL.video
            ids += [SEEN, *[id_] * (count * rows * columns), SEEN_END]
            shown[kind].append((count, MERGE * rows, MERGE * columns))
            grids.append((count, rows, columns))
            steps.append(PER_SECOND if kind == "video" else 1)
    ids += [WORD] * 3
    wanted, delta = model.get_rope_index(
        stand_in(model),
        torch.tensor([ids]),
        torch.tensor(shown["image"]) if shown["image"] else None,
        torch.tensor(shown["video"]) if shown["video"] else None,
        torch.ones(1, len(ids), dtype=torch.long),
        audio_seqlens=torch.tensor(heard) if heard else None,
        second_per_grids=torch.ones(len(shown["video"])),
    )
    positions, following = rotary_positions(
        np.array(ids, np.int32),
        SPECIAL.seen,
        np.array(grids, np.int32).reshape(-1, 3),
        np.array(steps, np.int32),
        edge="prompt",
    )
    assert positions.T.tolist() == wanted[:, 0].tolist()
    assert following - len(ids) == int(delta)


@pytest.mark.parametrize(
    ("ids", "grids"),
    [
        ([1, 51, 51, 1], []),
        ([1, 51, 51, 1], [(1, 1, 3)]),
        ([1, 51, 51, 1], [(1, 1, 2), (1, 1, 2)]),
        ([1, 51, 52, 1], [(1, 1, 2)]),
        ([1, 1], [(1, 1, 1)]),
        ([1, 51, 51, 1], [(1, -1, -2)]),
    ],
)
def test_positions_are_refused_when_grids_do_not_fit(
    ids: list[int], grids: list[tuple[int, int, int]]
) -> None:
    steps = np.ones(len(grids), np.int32)
    with pytest.raises(DataLoss):
        rotary_positions(
            np.array(ids, np.int32),
            SPECIAL.seen,
            np.array(grids, np.int32).reshape(-1, 3),
            steps,
            edge="prompt",
        )


def test_rows_and_columns_can_be_counted_from_the_middle_of_an_image() -> None:
    """Written by hand from Ming-flash-omni's `get_t_scale_rope_index`; its thinker is compared with
    the vendor's answers."""
    ids = np.array([1, *[51] * 12, 2, *[51] * 2, 3, 4], np.int32)
    grids = np.array([(1, 3, 4), (1, 1, 2)], np.int32)
    positions, following = centred_positions(
        ids, SPECIAL.seen, grids, np.ones(2, np.int32), edge="prompt"
    )
    first = [[1, 1 + row, 1 + column] for row in (-1, 0, 1) for column in (-1, 0, 1, 2)]
    second = [[3, 3, 3], [3, 3, 4]]
    words = [[at] * 3 for at in (0, 2, 4, 5)]
    assert positions.tolist() == [words[0], *first, words[1], *second, *words[2:]]
    assert following == 6


@pytest.mark.parametrize("grid", [(1, 1, 3), (2, 1, 1), (1, -1, -2)])
def test_centred_positions_are_refused_when_grids_do_not_fit(grid: tuple[int, int, int]) -> None:
    with pytest.raises(DataLoss):
        centred_positions(
            np.array([1, 51, 51, 1], np.int32),
            SPECIAL.seen,
            np.array([grid], np.int32),
            np.ones(1, np.int32),
            edge="prompt",
        )
