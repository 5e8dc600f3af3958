"""What a step of the thinker brings to its device, and when; counted on the meta device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTextConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeThinkerTextModel,
)

from antiphon.values.sampling import Sampling
from antiphon_services.lm import sampling
from antiphon_services.lm.sampling import LogitsRow, Sampled, score_together
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_testkit.launches import meta_as_a_gpu

META = torch.device("meta")
WIDTH, VOCABULARY, SLOTS = 64, 90, 16
DRAWN = Sampling(temperature=0.7, top_k=20, top_p=0.9, repetition_penalty=1.1, seed=3, max_tokens=9)
QUESTIONS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal"}


@dataclass(frozen=True)
class Special:
    audio: int = 80
    image: int = 81
    video: int = 82


class Bus(TorchDispatchMode):
    """Notes what crosses between host and device, and what the host asks, among the products."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each for each in args if isinstance(each, torch.Tensor)]
        made = func(*args, **kwargs or {})
        name = func.name().partition(".")[0]
        if name in QUESTIONS and any(each.device == META for each in given):
            self.seen.append("question")
        elif name in ("aten::_to_copy", "aten::copy_") and isinstance(made, torch.Tensor):
            source = given[-1] if name == "aten::copy_" else given[0]
            if source.device != made.device:
                self.seen.append("upload" if made.device == META else "question")
        elif name in ("aten::mm", "aten::addmm"):
            self.seen.append("product")
        return made


@pytest.fixture(scope="module", params=[False, True], ids=["ids", "words"])
def model(request: pytest.FixtureRequest) -> ThinkerModel:
    config = Qwen3OmniMoeTextConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=0,
        mlp_only_layers=[0, 1, 2], max_position_embeddings=512,
    )  # fmt: skip
    with META:
        text = Qwen3OmniMoeThinkerTextModel(config)
        head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    module = type("Thinker", (), {
        "device": META, "audio_tower": None, "visual": None, "model": text, "lm_head": head,
    })  # fmt: skip
    with meta_as_a_gpu():
        return ThinkerModel(
            module, special=Special(), towers=Omni3Towers(), tapped_layer=2,
            with_words=request.param, slots=SLOTS, context_limit=256,
        )  # fmt: skip


def feed(slot: int, start: int, ids: list[int], **more: Any) -> ThinkerFeed:
    tapped = np.arange(len(ids)) if len(ids) > 1 else np.zeros(1, np.intp)
    return ThinkerFeed(slot, start, np.array(ids, np.int32), tapped, sampled=True, **more)


DECODING = [feed(slot, 40 + 3 * slot, [slot]) for slot in (0, 2, 3, 9)]
HEARD = feed(5, 0, [1, 80, 80, 2, 81], media=torch.zeros(3, WIDTH, device=META))
SEEN = feed(
    6, 0, [3, 81, 81], media=torch.zeros(2, WIDTH, device=META),
    turned=np.arange(9).reshape(3, 3), shift=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "feeds",
    [DECODING[:1], DECODING, [*DECODING, HEARD], [*DECODING, HEARD, SEEN],
     [replace(each, shift=7) for each in DECODING]],
    ids=["one", "four", "prompt", "images", "behind images"],
)  # fmt: skip
@torch.no_grad()
def test_step_brings_all_to_the_device_at_once_before_its_layers(
    model: ThinkerModel, feeds: list[ThinkerFeed]
) -> None:
    with Bus() as bus:
        model.forward(feeds)
    assert bus.seen.count("product") > 3
    assert bus.seen[0] == "upload"
    assert set(bus.seen[1:]) == {"product"}


def rows(count: int) -> list[LogitsRow]:
    logits = torch.zeros(VOCABULARY, device=META)
    seen = torch.zeros(VOCABULARY, dtype=torch.bool, device=META)
    return [LogitsRow(logits, replace(DRAWN, seed=each), each, seen) for each in range(count)]


@pytest.mark.parametrize("count", [1, 16])
def test_ids_are_drawn_with_penalties_without_a_question_to_the_device(count: int) -> None:
    with Bus() as bus:
        sampling._choose_each(rows(count))
    # Settings, and the numbers that draws come of.
    assert bus.seen == ["upload", "upload"]


def test_scores_of_all_ids_are_one_question() -> None:
    logits = torch.randn(3, VOCABULARY)
    asked = [
        Sampled(each, id_, top)
        for each, id_, top in zip(logits, (4, 89, 0), (0, 2, 5), strict=True)
    ]
    expected = logits.log_softmax(-1)
    for (ids, values), each, row in zip(score_together(asked), asked, expected, strict=True):
        best = row.topk(each.top)
        assert ids == [each.id_, *best.indices.tolist()]
        assert values == [row[each.id_].item(), *cast(list[float], best.values.tolist())]
