"""Loaders take the tensors of the released checkpoints: none is missing, none unexpected, and
all have the shapes that the configuration makes.

A family's releases go into `released/` and `CASES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MimiConfig,
    MimiModel,
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.qwen2_5_omni.token2wav.load import STORED_BUFFERS
from antiphon_services.qwen3_omni.code2wav.module import Code2WavModule
from antiphon_services.qwen3_omni.talker.module import OmniTalkerModule
from antiphon_services.qwen3_omni.thinker.module import ThinkerModule
from antiphon_services.qwen3_tts.code2wav.module import CodecConfig, CodecDecoder
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.reference import NOT_THERE
from antiphon_services.qwen3_tts.talker.speaker import SpeakerEncoder
from antiphon_testkit.launches import meta_as_a_gpu
from tests.unit.services.released_names import (
    Shapes,
    omni3_config,
    omni25_config,
    released,
    write_release,
)


@dataclass(frozen=True)
class Case:
    """A part of a release: how it is loaded, and how many tensors and, where that is published,
    numbers it has."""

    release: str
    prefix: str
    module_class: type[torch.nn.Module]
    config: Callable[[], Any]
    tensors: int
    numbers: int | None
    skip: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.release}-{self.prefix}{'-'.join(('', *self.skip))}"


def tts_talker(hidden: int, intermediate: int) -> dict[str, Any]:
    """`talker_config` of Qwen3-TTS at this width."""
    sizes = {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "num_attention_heads": 16,
        "num_code_groups": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    }
    predictor = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "vocab_size": 2048,
    }
    return sizes | {
        "code_predictor_config": sizes | predictor,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 28,
        "text_hidden_size": 2048,
        "text_vocab_size": 151_936,
        "vocab_size": 3072,
    }


def tts_decoder() -> CodecConfig:
    """`decoder_config` of the codec."""
    sizes = {
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "head_dim": 64,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "latent_dim": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    }
    made: CodecConfig = CodecConfig.from_dict(sizes)
    return made


OMNI3 = {
    "thinker": ThinkerModule,
    "talker": OmniTalkerModule,
    "code2wav": Code2WavModule,
}
OMNI25 = {
    "thinker": Qwen2_5OmniThinkerForConditionalGeneration,
    "talker": Qwen2_5OmniTalkerForConditionalGeneration,
    "token2wav": Qwen2_5OmniToken2WavModel,
}


def omni3(part: str, tensors: int, numbers: int, skip: Sequence[str] = ()) -> Case:
    """A part of Qwen3-Omni."""

    def config() -> Any:
        return getattr(omni3_config(), f"{part}_config")

    return Case("qwen3_omni_30b", f"{part}.", OMNI3[part], config, tensors, numbers, skip)


def omni25(size: str, part: str, tensors: int, numbers: int, skip: Sequence[str] = ()) -> Case:
    """A part of Qwen2.5-Omni."""

    def config() -> Any:
        return getattr(omni25_config(size), f"{part}_config")

    release = f"qwen2_5_omni_{size}"
    ignored = STORED_BUFFERS if part == "token2wav" else ()
    return Case(release, f"{part}.", OMNI25[part], config, tensors, numbers, skip, ignored)


def tts(release: str, hidden: int, intermediate: int, tensors: int) -> Case:
    """The talker of a release of Qwen3-TTS."""

    def config() -> Any:
        return tts_talker(hidden, intermediate)

    return Case(f"qwen3_tts_{release}", "talker.", TalkerModule, config, tensors, None)


def voices(release: str, width: int) -> Case:
    """The speaker encoder of a release that clones voices."""
    name = f"qwen3_tts_{release}"
    return Case(name, "speaker_encoder.", SpeakerEncoder, lambda: {"enc_dim": width}, 76, None)


CASES = [
    omni3("thinker", 19_743, 31_719_205_488, skip=("visual",)),
    omni3("talker", 8_037, 3_324_596_480),
    omni3("code2wav", 230, 216_016_577),
    omni25("7b", "thinker", 1_346, 8_931_813_888),
    omni25("7b", "thinker", 1_346, 8_931_813_888, skip=("visual",)),
    omni25("7b", "talker", 293, 1_351_360_256),
    # The flow's frequencies are stored, too.
    omni25("7b", "token2wav", 809, 449_051_264 + 32),
    omni25("3b", "thinker", 1_442, 4_703_464_448),
    omni25("3b", "talker", 293, 384_604_928),
    omni25("3b", "token2wav", 809, 449_051_264 + 32),
    tts("0.6b", 1024, 3072, 402),
    tts("1.7b", 2048, 6144, 404),
    tts("0.6b_base", 1024, 3072, 402),
    tts("1.7b_base", 2048, 6144, 404),
    voices("0.6b_base", 1024),
    voices("1.7b_base", 2048),
    Case("qwen3_tts_codec", "decoder.", CodecDecoder, tts_decoder, 271, None),
    Case(
        "qwen3_tts_codec",
        "encoder.",
        MimiModel,
        lambda: MimiConfig(num_quantizers=32),
        225,
        None,
        skip=NOT_THERE,
    ),
]


def load(case: Case, folder: Path) -> Any:
    """The part, as its stage loads it, without its numbers."""
    return load_submodule(
        case.module_class,
        case.config(),
        case.prefix,
        Weights(folder),
        dtype=torch.bfloat16,
        device="meta",
        skip=case.skip,
        ignored=case.ignored,
    )


def part_of(case: Case) -> Shapes:
    """The part's tensors."""
    return {
        name: shape
        for name, shape in released(case.release).items()
        if name.startswith(case.prefix)
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_released_tensors_are_those_that_the_loader_takes(case: Case, tmp_path: Path) -> None:
    shapes = part_of(case)
    assert len(shapes) == case.tensors
    assert case.numbers in (None, sum(map(math.prod, shapes.values())))
    # Other parts of the release are there and are passed over.
    write_release(tmp_path, released(case.release))
    with meta_as_a_gpu():
        module = load(case, tmp_path)
    made = sum(each.numel() for each in module.state_dict().values())
    skipped = (*(f"{case.prefix}{child}." for child in case.skip),)
    left = {
        name: shape
        for name, shape in shapes.items()
        if not name.startswith(skipped) and name.removeprefix(case.prefix) not in case.ignored
    }
    assert made == sum(map(math.prod, left.values()))


CODE2WAV = next(case for case in CASES if case.prefix == "code2wav.")
WEIGHT = "code2wav.decoder.0.conv.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({WEIGHT: None}, f"tensors are missing: {WEIGHT}$"),
        ({"code2wav.extra.weight": (3,)}, r"tensors are unexpected: code2wav\.extra\.weight$"),
        ({WEIGHT: (1536, 1024, 5)}, rf"{WEIGHT}: the shape is \[1536, 1024, 5\] in the checkpoint"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_release_with_another_tensor_is_refused(
    change: dict[str, tuple[int, ...] | None], said: str, tmp_path: Path
) -> None:
    shapes = part_of(CODE2WAV)
    for name, shape in change.items():
        shapes.pop(name, None)
        if shape is not None:
            shapes[name] = shape
    write_release(tmp_path, shapes)
    with pytest.raises(FailedPrecondition, match=said):
        load(CODE2WAV, tmp_path)
