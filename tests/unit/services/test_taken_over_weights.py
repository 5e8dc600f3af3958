"""A stage that has taken a model's weights over holds no number of them twice.

Checked when it asks its device for the room of its slots: what is there twice by then is room that
the slots do not get, and a card that is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from antiphon.pipelines import qwen2_5_omni, qwen3_omni
from antiphon.values.sampling import Sampling
from antiphon_services.lm.memory import SlotMemory
from antiphon_services.lm.products import Product
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.talker import TtsTalker
from antiphon_services.thinker.model import ThinkerModel
from antiphon_testkit.launches import meta_as_a_gpu
from antiphon_testkit.qwen2_5_omni import tiny_config as omni25_config
from antiphon_testkit.qwen2_5_omni import tiny_tokenizer as omni25_tokenizer
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen3_omni import tiny_config as omni3_config
from antiphon_testkit.qwen3_omni import tiny_tokenizer as omni3_tokenizer
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL
from antiphon_testkit.qwen3_tts import tiny_config as tts_config
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE

# Wide enough that the layers' weights are most of what there is.
OMNI3 = replace(SMALL, layers=24, accept_layer=12, talker_layers=24, code_groups=4)
OMNI25 = TinyOmni25Shape(layers=24, talker_layers=24)
TTS = replace(CUSTOM_VOICE, layers=24, code_groups=4)
DRAWN = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=9
)
LIMITS: dict[str, Any] = {"slots": 2, "context_limit": 64}


def omni3_thinker(config: Any) -> Callable[[], object]:
    module = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    module.to(torch.bfloat16).requires_grad_(False)
    special = qwen3_omni.SpecialIds.from_config(config.to_dict())
    return lambda: ThinkerModel(
        module, special=special, towers=Omni3Towers(), tapped_layer=12, **LIMITS
    )


def omni3_talker(config: Any) -> Callable[[], object]:
    special = qwen3_omni.SpecialIds.from_config(config.to_dict())
    module = Qwen3OmniMoeTalkerForConditionalGeneration(config.talker_config)
    module.to(torch.bfloat16).requires_grad_(False)
    words = torch.zeros(special.tts_eos + 1, OMNI3.hidden, device="cpu")
    entries = OMNI3.talker_vocabulary
    return lambda: Talker(module, words, special, code_entries=entries, **LIMITS)


def omni25_thinker(config: Any) -> Callable[[], object]:
    module = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
    module.to(torch.bfloat16).requires_grad_(False)
    special = qwen2_5_omni.PlaceholderIds.from_config(config.to_dict())
    return lambda: ThinkerModel(
        module, special=special, towers=Omni25Towers(), tapped_layer=OMNI25.layers, **LIMITS
    )


def omni25_talker(config: Any) -> Callable[[], object]:
    told = config.to_dict()
    module = Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config)
    module.to(torch.bfloat16).requires_grad_(False)
    words = torch.zeros(1000, OMNI25.hidden, dtype=torch.bfloat16, device="cpu")
    ids, places = TalkerIds.from_config(told), qwen2_5_omni.PlaceholderIds.from_config(told)
    return lambda: CodecTalker(module, words, ids, places, {"Ethan": 8}, **LIMITS)


def tts_talker(config: Any) -> Callable[[], object]:
    module = TalkerModule(config["talker_config"])
    module.to(torch.bfloat16).requires_grad_(False)
    ids, entries = SpeechIds.from_config(config), TTS.codebook_size
    return lambda: TtsTalker(module, ids, DRAWN, code_entries=entries, **LIMITS)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = ("assistant", "<|im_end|>", "<|im_start|>", "<tts_text_bos>", "<tts_text_eod>")
    ids = {name: at for at, name in enumerate((*names, "<tts_pad>"))}
    made = tmp_path_factory.mktemp
    return {
        "omni3": omni3_config.make_config(OMNI3, omni3_tokenizer.TOKENIZER.write(made("omni3"))),
        "omni25": omni25_config.make_config(
            OMNI25, omni25_tokenizer.TOKENIZER.write(made("omni25"))
        ),
        "tts": tts_config.make_config(TTS, ids, 300),
    }


def held() -> int:
    """Bytes of all tensors that there are on the meta device, each storage once."""
    gc.collect()
    # By type: some objects warn when they are asked for their class.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [each.untyped_storage() for each in tensors if each.is_meta]
    return sum({StorageWeakRef(each): each.nbytes() for each in storages}.values())


@pytest.mark.parametrize(
    "made", [omni3_thinker, omni3_talker, omni25_thinker, omni25_talker, tts_talker]
)
def test_weights_are_there_once_when_slots_ask_for_room(
    made: Callable[[Any], Callable[[], object]],
    configs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with meta_as_a_gpu() as device:
        before = held()
        with device:
            take_over = made(configs[made.__name__.split("_", maxsplit=1)[0]])
        weights = held() - before
        asked: list[int] = []
        monkeypatch.setattr(
            SlotMemory, "require_room", lambda self, **kw: asked.append(held() - before)
        )
        with torch.inference_mode():
            model = take_over()
    assert model is not None
    assert asked
    # Some small tables of its own, and the code predictor's interleaved heads.
    assert asked[0] <= 1.1 * weights, (asked[0], weights)


@torch.inference_mode()
def test_layers_whose_weights_were_joined_still_compute_the_same() -> None:
    layers = [torch.nn.Linear(8, size).requires_grad_(False) for size in (3, 5)]
    rows = torch.randn(6, 8)
    before = [each(rows) for each in layers]
    product = Product.of(*layers)
    for layer, expected in zip(layers, before, strict=True):
        torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(product(rows), torch.cat(before, dim=1))
    one, other = (each.weight.untyped_storage().data_ptr() for each in layers)
    assert one == other


def test_layers_that_are_trained_keep_their_weights() -> None:
    layers = [torch.nn.Linear(8, size) for size in (3, 5)]
    weights = [each.weight for each in layers]
    Product.of(*layers)
    assert all(a is b.weight for a, b in zip(weights, layers, strict=True))
