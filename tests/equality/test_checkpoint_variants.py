"""Checkpoints of Qwen3-Omni that hold other values than the usual tiny ones, against Hugging Face.

Each changes what a field of `config.json` says and is compared in one process: text, codes and
audio. `docs/checkpoint-fields.md` names these tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon_testkit.conversations import conversation
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, Reference, ReferenceOutput
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, TinyShape, build_tiny_checkpoint
from tests.equality.in_process import Stages, changed

pytestmark = pytest.mark.equality

TOKENS = FRAMES = 8
AUDIO_TOLERANCE = 1e-4
TEXTS = (
    "Hello, how are you today?",
    "What is the weather like by the water?",
    "Say one or two words more, and then some others.",
    "Tell me all that there is to tell about the oil.",
    "Who are you?",
)
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """`changes` by the path of the object, of a checkpoint of this `shape`.

    One that is `felt` changes what the weights of `SMALL` answer. The tokenizer has so many
    `entries` at least, and the question so many `seconds` of sound.
    """

    name: str
    changes: Mapping[str, Values]
    shape: TinyShape = SMALL
    felt: bool = True
    entries: int = 0
    seconds: float = 0.5


THINKER_TEXT, TALKER_TEXT = "thinker_config.text_config", "talker_config.text_config"
PREDICTOR, DECODER = "talker_config.code_predictor_config", "code2wav_config"
DECODERS = (THINKER_TEXT, TALKER_TEXT, PREDICTOR, DECODER)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def everywhere(**values: Any) -> Mapping[str, Values]:
    """The same in every stack of layers."""
    return dict.fromkeys(DECODERS, values)


def rope(**values: Any) -> Mapping[str, Values]:
    """The same rotary embedding in every stack of layers, on the axes that it has."""
    return everywhere(rope_parameters=values)


VARIANTS = (
    Variant("biases_and_norms", everywhere(attention_bias=True, rms_norm_eps=1e-2)),
    Variant("activation", everywhere(hidden_act="gelu")),
    Variant("rope_theta", rope(rope_theta=500.0)),
    Variant("linear", rope(**LINEAR)),
    Variant("llama3", rope(**LLAMA3)),
    Variant("yarn", rope(**YARN)),
    Variant(
        "dense_layers",
        {
            THINKER_TEXT: {"mlp_only_layers": [1], "norm_topk_prob": False},
            TALKER_TEXT: {"mlp_only_layers": [0], "norm_topk_prob": False},
        },
    ),
    Variant(
        "sparse_steps",
        {THINKER_TEXT: {"decoder_sparse_step": 2}, TALKER_TEXT: {"decoder_sparse_step": 2}},
    ),
    Variant(
        "released_sizes",
        {},
        replace(
            SMALL,
            head_dim=128,
            talker_head_dim=128,
            predictor_head_dim=128,
            experts=128,
            experts_per_token=8,
            expert_intermediate=8,
            talker_experts=128,
            talker_experts_per_token=6,
            talker_expert_intermediate=8,
        ),
        felt=False,
        entries=151_643,
    ),
    # Windows of 2 s, and three convolutions for a recording of 21 s.
    Variant(
        "audio_tower",
        {"thinker_config.audio_config": {"n_window_infer": 200, "conv_chunksize": 8}},
        seconds=21.0,
    ),
)


def build(directory: Path, variant: Variant, seed: int = 0) -> Path:
    build_tiny_checkpoint(
        directory,
        variant.shape,
        seed,
        configure=changed(variant.changes),
        entries=variant.entries,
    )
    return directory


def sound(seconds: float) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng(3).standard_normal(int(seconds * 16_000))
    return noise.astype(np.float32) * np.float32(0.1)


def decided(reference: Reference, seconds: float) -> tuple[Case, ReferenceOutput]:
    """The first question in whose answer no choice is close."""
    for text in TEXTS:
        case = Case(
            conversation(("user", [sound(seconds), text])),
            thinker_max_tokens=TOKENS,
            talker_max_tokens=FRAMES,
        )
        try:
            output = reference.run(case)
        except RuntimeError:
            continue
        if output.min_margin >= MIN_MARGIN and len(output.codes) > 1:
            return case, output
    raise AssertionError("no question is answered without a close choice")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Of the same weights, without a change."""
    return Reference(build(tmp_path_factory.mktemp("plain") / "checkpoint", Variant("plain", {})))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_variant_answers_as_hugging_face(
    variant: Variant, plain: Reference, tmp_path: Path
) -> None:
    directory = build(tmp_path / "checkpoint", variant)
    case, expected = decided(Reference(directory), variant.seconds)
    if variant.felt:
        # Else equality would prove nothing.
        usual = plain.run(case).waveform
        assert len(usual) != len(expected.waveform) or (
            np.abs(usual - expected.waveform).max() > 10 * AUDIO_TOLERANCE
        )
    answered = Stages(PIPELINE, directory).answer(
        case.conversation, case.voice, {THINKER: TOKENS, TALKER: FRAMES}
    )
    assert answered.tensor("text", "ids").tolist() == expected.text_ids.tolist()
    assert answered.tensor("codes", "codes").tolist() == expected.codes.tolist()
    samples = answered.tensor("audio", "samples")
    np.testing.assert_allclose(samples, expected.waveform, rtol=0, atol=AUDIO_TOLERANCE)


@pytest.mark.parametrize(
    ("role", "path", "values", "named"),
    [
        (THINKER, THINKER_TEXT, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
         "rope_type is dynamic"),
        (TALKER, PREDICTOR, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
         "sliding_window is 4"),
        (TALKER, TALKER_TEXT, {"rope_parameters": {"rope_type": "longrope"}},
         "rope_type is longrope"),
        (CODE2WAV, DECODER, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
         "rope_type is dynamic"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_at_the_start(
    role: str, path: str, values: Values, named: str, tmp_path: Path
) -> None:
    directory = build(tmp_path / "checkpoint", Variant("refused", {}))
    file = directory / "config.json"
    config = json.loads(file.read_text())
    part = config
    for name in path.split("."):
        part = part[name]
    part |= values
    file.write_text(json.dumps(config))
    with pytest.raises(FailedPrecondition, match=named):
        Stages(PIPELINE, directory, roles=[role])


def test_recording_of_more_than_500_seconds_fills_a_context_of_8192(tmp_path: Path) -> None:
    """Of a second of sound each convolution has one chunk, and 500 chunks go through together.

    Without experts: among so many positions the choice of some would be close.
    """
    dense = {THINKER_TEXT: {"mlp_only_layers": list(range(SMALL.layers))}}
    directory = build(tmp_path / "checkpoint", Variant("long", dense))
    long = sound(620.0)
    reference = Reference(directory)
    stages = Stages(
        PIPELINE, directory, {THINKER: StageConfig(slots=1, context_limit=8192)}, roles=[THINKER]
    )
    for text in TEXTS:
        case = Case(conversation(("user", [long, text])), thinker_max_tokens=4, audio=False)
        expected = reference.run(case)
        if expected.min_margin < MIN_MARGIN:
            continue
        assert 8000 < len(expected.prompt_ids) < 8192 - 4
        answered = stages.answer(case.conversation, "", {THINKER: 4})
        assert answered.tensor("text", "ids").tolist() == expected.text_ids.tolist()
        return
    raise AssertionError("no question is answered without a close choice")
