from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.errors import DataLoss, FailedPrecondition
from antiphon.pipelines.qwen3_omni import PIPELINE


@pytest.mark.parametrize(
    ("edge", "name", "tensor"),
    [
        ("codes", "codes", np.array(1, np.uint16)),
        ("codes", "codes", np.ones(16, np.uint16)),
        ("codes", "codes", np.ones((2, 16), np.float32)),
        ("codes", "codes", np.ones((1 << 40, 0), np.uint16)),
        ("tokens", "ids", np.ones((1, 1), np.int32)),
        ("prompt", "grids", np.ones((1, 4), np.int32)),
        ("prompt", "rows", np.ones(4, np.float32)),
    ],
)
def test_edge_refuses_a_tensor_that_is_not_the_declared_one(
    edge: str, name: str, tensor: np.ndarray
) -> None:
    with pytest.raises(DataLoss, match=f"{edge}: {name} is .*, but must be") as caught:
        PIPELINE.edge(edge).check({name: tensor})
    assert caught.value.edge == edge


def test_edge_takes_what_it_declares_and_what_it_does_not_speak_of() -> None:
    PIPELINE.edge("codes").check({"codes": np.ones((3, 16), np.uint16)})
    PIPELINE.edge("codes").check({"codes": np.ones((0, 16), np.uint16)})
    PIPELINE.edge("prompt").check(
        {"rows": np.ones((2, 8), np.float16), "row_positions": np.ones(2, np.int32)}
    )
    PIPELINE.edge("input").check({"messages": np.ones(2, np.uint8), "audio.0": np.float32(1)})


@pytest.mark.parametrize(
    ("edge", "change", "words"),
    [
        ("tokens", {"look_ahead": 1}, "tokens: look_ahead"),
        ("audio", {"primed": True}, "audio: a client"),
    ],
)
def test_an_edge_is_refused_when_its_parts_contradict_each_other(
    edge: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(FailedPrecondition, match=words):
        replace(PIPELINE.edge(edge), **change)
