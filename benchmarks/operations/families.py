"""A step of each family's autoregressive stages at the released depths, on the meta device.

Numbers of layers, groups and experts are those of the released checkpoints; widths do not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from antiphon.pipelines.qwen2_5_omni import PlaceholderIds
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import TextRow
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.talker import TtsTalker, TtsTurn
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_testkit.late_copies import late_to_host
from antiphon_testkit.qwen2_5_omni import tiny_config as omni25_config
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import TOKENIZER as OMNI25_TOKENIZER
from antiphon_testkit.qwen3_omni.tiny_config import make_config
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL
from antiphon_testkit.qwen3_omni.tiny_tokenizer import TOKENIZER
from antiphon_testkit.qwen3_tts import tiny_config as tts_config
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE

OMNI = replace(
    SMALL,
    layers=48,
    accept_layer=24,
    experts=128,
    experts_per_token=8,
    talker_layers=20,
    talker_experts=128,
    talker_experts_per_token=6,
    code_groups=16,
    codebook_size=2048,
    predictor_layers=5,
)
OMNI25 = TinyOmni25Shape(layers=28, talker_layers=24)
TTS = replace(CUSTOM_VOICE, layers=28, code_groups=16, predictor_layers=5)
DRAWN = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=9
)
LIMIT, SLOTS = 300, 64

Step = Callable[[int, int], Any]
"""A step of so many sessions, the first of which is at a position."""

Make = Callable[[torch.device, Bucketing | None, Kernels | None], Step]


def omni_talker(device: torch.device, bucketing: Bucketing | None, kernels: Kernels | None) -> Step:
    """Qwen3-Omni's: a frame of every session."""
    config = _omni_config()
    special = SpecialIds.from_config(config.to_dict())
    with device:
        module: Any = Qwen3OmniMoeTalkerForConditionalGeneration(config.talker_config)
        words = torch.zeros(special.tts_eos + 512, OMNI.hidden, dtype=torch.bfloat16)
    talker = Talker(
        module.to(torch.bfloat16),
        words,
        special,
        code_entries=OMNI.talker_vocabulary,
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
        bucketing=bucketing,
        kernels=kernels,
    )
    return lambda sessions, position: talker.step(
        [], _draws(sessions, position, 7, DEFAULT_SAMPLING)
    )


def omni_thinker(
    device: torch.device, bucketing: Bucketing | None, kernels: Kernels | None
) -> Step:
    """Qwen3-Omni's: logits of every session."""
    config = _omni_config()
    with device:
        module = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    return _thinker_step(
        module,
        bucketing,
        kernels,
        special=SpecialIds.from_config(config.to_dict()),
        towers=Omni3Towers(),
        tapped_layer=OMNI.accept_layer,
    )


def omni25_talker(
    device: torch.device, bucketing: Bucketing | None, kernels: Kernels | None
) -> Step:
    """Qwen2.5-Omni's: a code of every session."""
    config = _omni25_config()
    fields = config.to_dict()
    with device:
        module: Any = Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config)
        words = torch.zeros(1000, OMNI25.hidden, dtype=torch.bfloat16)
    talker = CodecTalker(
        module.to(torch.bfloat16),
        words,
        TalkerIds.from_config(fields),
        PlaceholderIds.from_config(fields),
        {"Ethan": 8},
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
        bucketing=bucketing,
        kernels=kernels,
    )
    return lambda sessions, position: talker.step(
        [], _draws(sessions, position, TextRow.PAD, DRAWN)
    )


def omni25_thinker(
    device: torch.device, bucketing: Bucketing | None, kernels: Kernels | None
) -> Step:
    """Qwen2.5-Omni's: logits of every session."""
    config = _omni25_config()
    with device:
        module = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
    return _thinker_step(
        module,
        bucketing,
        kernels,
        special=PlaceholderIds.from_config(config.to_dict()),
        towers=Omni25Towers(),
        tapped_layer=OMNI25.layers,
        with_words=True,
    )


def tts_talker(device: torch.device, bucketing: Bucketing | None, kernels: Kernels | None) -> Step:
    """Qwen3-TTS's: a frame of every session."""
    names = ("assistant", "<|im_end|>", "<|im_start|>", "<tts_text_bos>", "<tts_text_eod>")
    ids = {name: at for at, name in enumerate((*names, "<tts_pad>"))}
    config = tts_config.make_config(TTS, ids, 300)
    with device:
        module: Any = TalkerModule(config["talker_config"])
    talker = TtsTalker(
        module.to(torch.bfloat16),
        SpeechIds.from_config(config),
        DRAWN,
        code_entries=TTS.codebook_size,
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
        bucketing=bucketing,
        kernels=kernels,
    )
    return lambda sessions, position: talker.step(
        [TtsTurn((), (), each) for each in _draws(sessions, position, 7, DRAWN)]
    )


FAMILIES: dict[str, Make] = {
    "Qwen3-Omni, talker": omni_talker,
    "Qwen3-Omni, thinker": omni_thinker,
    "Qwen2.5-Omni, talker": omni25_talker,
    "Qwen2.5-Omni, thinker": omni25_thinker,
    "Qwen3-TTS, talker": tts_talker,
}


Text = TypeVar("Text")


def _draws(sessions: int, position: int, text: Text, sampling: Sampling) -> list[FrameDraw[Text]]:
    """A draw of each session, of which each is a position further than the one before."""
    return [
        FrameDraw(slot, position + slot, text, replace(sampling, seed=slot), 3)
        for slot in range(sessions)
    ]


def _thinker_step(
    module: torch.nn.Module, bucketing: Bucketing | None, kernels: Kernels | None, **parts: Any
) -> Step:
    thinker = ThinkerModel(
        module.to(torch.bfloat16),
        slots=SLOTS,
        context_limit=LIMIT,
        bucketing=bucketing,
        kernels=kernels,
        **parts,
    )
    ids, none = np.full(1, 30, np.int32), np.empty(0, np.intp)
    return lambda sessions, position: thinker.forward(
        [ThinkerFeed(at, position + at, ids, none, sampled=True) for at in range(sessions)]
    )


def _omni_config() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        return make_config(OMNI, TOKENIZER.write(Path(directory)))


def _omni25_config() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        return omni25_config.make_config(OMNI25, OMNI25_TOKENIZER.write(Path(directory)))
