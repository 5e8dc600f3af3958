"""Checkpoints of Qwen2.5-Omni that hold other values than the usual tiny one; see the variants of
Qwen3-Omni, `test_checkpoint_variants.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen2_5_omni import PIPELINE, TALKER, THINKER
from antiphon_testkit.conversations import conversation
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import SHAPE, build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from tests.equality.in_process import Stages, changed

pytestmark = pytest.mark.equality

TOKENS, CODES = 8, 10
TEXTS = (
    "Hello, how are you today?",
    "What is the weather like by the water?",
    "Say one or two words more, and then some others.",
    "Who are you?",
)
THINKER_TEXT, TALKER_PART = "thinker_config.text_config", "talker_config"
DECODERS = THINKER_TEXT, TALKER_PART
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
Changes = Mapping[str, Mapping[str, Any]]


def everywhere(**values: Any) -> Changes:
    return dict.fromkeys(DECODERS, values)


def windowed(window: int) -> Changes:
    """Every layer but the first has a window."""
    kinds = ["full_attention", "sliding_attention"]
    return everywhere(use_sliding_window=True, sliding_window=window, layer_types=kinds)


VARIANTS: Mapping[str, tuple[Changes, TinyOmni25Shape]] = {
    "activation_and_norms": (everywhere(hidden_act="gelu", rms_norm_eps=1e-2), SHAPE),
    "yarn": (everywhere(rope_parameters=YARN), SHAPE),
    "linear": (everywhere(rope_parameters={"rope_type": "linear", "factor": 2.0}), SHAPE),
    "head_dim_128": (
        {},
        replace(SHAPE, hidden=256, heads=2, kv_heads=1, talker_heads=2, talker_kv_heads=1,
                talker_head_dim=128),
    ),
    "wide_window": (windowed(128), SHAPE),
}  # fmt: skip


def decided(reference: Omni25Reference) -> tuple[Omni25Case, Omni25Output]:
    """The first question in whose answer no choice is close."""
    sound = np.random.default_rng(3).standard_normal(9_000).astype(np.float32) * 0.1
    for text in TEXTS:
        case = Omni25Case(
            conversation(("user", [sound, text])),
            thinker_max_tokens=TOKENS,
            talker_max_tokens=CODES,
            waveform=False,
        )
        try:
            with torch.inference_mode():
                output = reference.run(case)
        except (RuntimeError, IndexError):
            continue
        if output.margin >= MIN_MARGIN and len(output.codes) > 1:
            return case, output
    raise AssertionError("no question is answered without a close choice")


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_answers_as_hugging_face(name: str, tmp_path: Path) -> None:
    changes, shape = VARIANTS[name]
    directory = tmp_path / "checkpoint"
    build_tiny_checkpoint(directory, shape, configure=changed(changes))
    case, expected = decided(Omni25Reference(directory))
    limited = StageConfig(slots=1, context_limit=128)
    roles = THINKER, TALKER
    stages = Stages(PIPELINE, directory, dict.fromkeys(roles, limited), roles=roles)
    answered = stages.answer(case.conversation, case.voice, {THINKER: TOKENS, TALKER: CODES})
    assert answered.tensor("text", "ids").tolist() == expected.text_ids.tolist()
    assert answered.tensor("codes", "codes").ravel().tolist() == expected.codes.tolist()


@pytest.mark.parametrize(("role", "path"), [(THINKER, THINKER_TEXT), (TALKER, TALKER_PART)])
def test_window_within_the_context_is_refused_at_the_start(
    role: str, path: str, tmp_path: Path
) -> None:
    """Hugging Face answers otherwise with it, and so the stage may not pass over it."""
    directory = tmp_path / "checkpoint"
    build_tiny_checkpoint(directory, configure=changed({path: windowed(16)[path]}))
    limited = StageConfig(slots=1, context_limit=128)
    with pytest.raises(FailedPrecondition, match=rf"sliding_window is 16.*{role}.context_limit"):
        Stages(PIPELINE, directory, {role: limited}, roles=[role])
