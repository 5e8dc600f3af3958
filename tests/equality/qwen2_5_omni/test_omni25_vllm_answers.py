"""The same answers come from the thinker on vLLM: see `--stage-engine`."""

from __future__ import annotations

import pytest

from tests.equality.qwen2_5_omni.test_omni25_fidelity import pytestmark as marks
from tests.equality.qwen2_5_omni.test_omni25_fidelity import (
    test_answer_equals_the_reference as test_answer_equals_the_reference,
)

pytest.importorskip("vllm")
pytestmark = [*marks, pytest.mark.usefixtures("on_vllm")]


@pytest.fixture
def on_vllm(thinker_engine: str) -> None:
    if thinker_engine != "vllm":
        pytest.skip("only with --stage-engine vllm")
