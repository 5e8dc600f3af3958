"""Towers ask a GPU for nothing, take bounded memory, and equal Hugging Face's own call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniVisionEncoder,
)
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeTextConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeThinkerTextModel,
)

from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.qwen2_5_omni.thinker.audio import audio_tower as omni25_tower
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen3_omni.thinker import towers as omni3_towers
from antiphon_services.qwen3_omni.thinker.audio import audio_tower as omni3_tower
from antiphon_services.qwen3_omni.thinker.audio_tower import AudioTowerModule
from antiphon_services.thinker.audio import AudioFeatures
from antiphon_services.thinker.model import ThinkerModel
from antiphon_services.thinker.patches import VisualPatches
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from tests.unit.services.thinker.test_thinker_uploads import Special

OMNI3 = Qwen3OmniMoeAudioEncoderConfig(
    num_mel_bins=16, encoder_layers=2, encoder_attention_heads=2, d_model=16, encoder_ffn_dim=16,
    output_dim=16, downsample_hidden_size=4, n_window=50, n_window_infer=800,
)  # fmt: skip
OMNI25 = Qwen2_5OmniAudioEncoderConfig(
    num_mel_bins=16, encoder_layers=2, encoder_attention_heads=2, d_model=16, encoder_ffn_dim=16,
    output_dim=16, n_window=100,
)  # fmt: skip
SIGHT = Qwen2_5OmniVisionEncoderConfig(
    depth=3, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=16,
    fullatt_block_indexes=[1],
)  # fmt: skip
RECORDINGS = ([40], [2000], [100, 3000, 77], [13, 90], [6500, 6401, 20])
"""Frames of recordings that are encoded together: parts of chunks and of windows among them."""


def encoder(plan: Any, ears: Any = None, eyes: Any = None, dtype: Any = torch.float32) -> Any:
    """A thinker that only encodes: a whole one of a released tower's size is too large for this."""
    device = next((ears if eyes is None else eyes).parameters()).device
    text, head = words(device, dtype)
    module = type("Thinker", (), {
        "device": device, "audio_tower": ears, "visual": eyes, "model": text, "lm_head": head,
    })  # fmt: skip
    with meta_as_a_gpu():
        return ThinkerModel(
            module, special=Special(), towers=plan, tapped_layer=1, slots=1, context_limit=8
        )


@cache
def words(device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    config = Qwen3OmniMoeTextConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8, num_experts=0,
        mlp_only_layers=[0], max_position_embeddings=8,
    )  # fmt: skip
    with device:
        text = Qwen3OmniMoeThinkerTextModel(config).to(dtype)
        return text, torch.nn.Linear(8, 8, bias=False, dtype=dtype)


def heard(frames: Sequence[int], tower: Any, bins: int = 16) -> AudioFeatures:
    numbers = np.random.default_rng(len(frames))
    features = [numbers.standard_normal((bins, each), np.float32) for each in frames]
    positions = tuple(map(tower.positions, frames))
    return AudioFeatures.of(features, positions, (), max(frames))


def ears3(device: str, config: Any = OMNI3) -> Any:
    with torch.device(device):
        tower = AudioTowerModule(config).eval()
    tower.load_state_dict(reference3(device, config).state_dict(), assign=True)
    return tower


def reference3(device: str, config: Any = OMNI3) -> Any:
    torch.manual_seed(1)
    with torch.device(device):
        return Qwen3OmniMoeAudioEncoder(config).eval()


def ears25(device: str) -> Any:
    torch.manual_seed(1)
    with torch.device(device):
        return Qwen2_5OmniAudioEncoder(OMNI25).eval()


FAMILIES = {
    "qwen3_omni": (ears3, omni3_towers.Omni3Towers(), omni3_tower(50, 800)),
    "qwen2_5_omni": (ears25, Omni25Towers(), omni25_tower(100)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frames", RECORDINGS, ids=str)
def test_recordings_are_encoded_without_a_question_to_the_device(
    family: str, frames: list[int]
) -> None:
    ears, plan, tower = FAMILIES[family]
    model = encoder(plan, ears("meta"))
    with launches_on_meta() as launches:
        made = model.encode(heard(frames, tower))
    assert len(made) == sum(map(tower.positions, frames))
    assert launches.waits == launches.on_host == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frames", RECORDINGS, ids=str)
@torch.no_grad()
def test_recordings_are_encoded_as_in_one_call_of_hugging_face(
    family: str, frames: list[int]
) -> None:
    ears, plan, tower = FAMILIES[family]
    reference = reference3 if family == "qwen3_omni" else ears
    audio = heard(frames, tower)
    features, lengths = torch.from_numpy(audio.features), torch.tensor(frames)
    whole = reference("cpu")(features, feature_lens=lengths, return_dict=True)
    assert torch.equal(encoder(plan, ears("cpu")).encode(audio), whole.last_hidden_state)


@pytest.mark.parametrize("grid", [(1, 8, 12), (3, 20, 6)])
def test_pictures_are_encoded_without_a_question_to_the_device(grid: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        eyes = Qwen2_5OmniVisionEncoder(SIGHT).eval()
    patches = np.zeros((np.prod(grid), 3 * 2 * 14 * 14), np.float32)
    with launches_on_meta() as launches:
        made = encoder(Omni25Towers(), eyes=eyes).encode(VisualPatches(patches, grid, 0))
    assert len(made) == len(patches) // 4
    assert launches.waits == launches.on_host == []


@pytest.mark.parametrize("grid", [(1, 8, 12), (3, 20, 6)])
@torch.no_grad()
def test_pictures_are_encoded_as_by_hugging_face(grid: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    eyes = Qwen2_5OmniVisionEncoder(SIGHT).eval()
    patches = np.random.default_rng(1).standard_normal((np.prod(grid), 3 * 2 * 14 * 14), np.float32)
    made = encoder(Omni25Towers(), eyes=eyes).encode(VisualPatches(patches, grid, 0))
    expected = eyes(torch.from_numpy(patches), grid_thw=torch.tensor([grid])).pooler_output
    assert torch.equal(made, expected)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that is made on the meta device, in bytes."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and each.is_meta:
                self.nbytes = max(self.nbytes, each.untyped_storage().nbytes())
        return made


@torch.no_grad()
def test_longest_recording_leaves_room_for_others_on_a_full_device() -> None:
    # At the released sizes, in bfloat16: 1,800 s.
    released = Qwen3OmniMoeAudioEncoderConfig(
        d_model=1280, encoder_ffn_dim=5120, encoder_layers=1, encoder_attention_heads=20,
        num_mel_bins=128, downsample_hidden_size=480, output_dim=2048, n_window=50,
        n_window_infer=800, conv_chunksize=500,
    )  # fmt: skip
    tower, dtype = omni3_tower(50, 800), torch.bfloat16
    model = encoder(omni3_towers.Omni3Towers(), ears3("meta", released).to(dtype), dtype=dtype)
    with Largest() as largest:
        made = model.encode(heard([180_000], tower, bins=128))
    assert len(made) == tower.positions(180_000)
    assert 0 < largest.nbytes <= WORKING_BYTES // 5
