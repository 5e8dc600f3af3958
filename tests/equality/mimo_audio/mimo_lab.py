"""The modules of a tiny checkpoint with their weights, and what the vendor's code made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import AutoTokenizer

from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.sampling import Sampling
from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.sampler import SamplingRows
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.module import CodecDecoderModule
from antiphon_services.mimo_audio.talker.frame_predictor import DelayedFramePredictor
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.module import SpeechTextModule, per_channel
from antiphon_services.mimo_audio.talker.speech_encoder import CodecEncoderModule, SpeechEncoder
from antiphon_testkit.mimo_audio.tiny_checkpoint import AUDIO_TOKENIZER, EMPTY, LANGUAGE_MODEL
from antiphon_testkit.mimo_audio.tiny_config import SPEECH_MARKS
from tests.equality.mimo_audio.mimo_cases import CHANNELS

HERE = Path(__file__).parent
CPU = torch.device("cpu")
POSITIONS = 1024
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the vendor's code made: `arrays` by name, and a row for each case."""

    arrays: dict[str, np.ndarray]
    rows: dict[str, dict[str, Any]]

    @classmethod
    def read(cls) -> Recorded:
        """From the files beside this one."""
        with np.load(HERE / "recorded.npz") as file:
            arrays = dict(file)
        told = json.loads((HERE / "recorded.json").read_text())
        return cls(arrays, {row["case"]: row for row in told["cases"]})


def recorded_names() -> list[str]:
    """The cases of each checkpoint, as `preset/case`."""
    return list(Recorded.read().rows)


class MimoLab:
    """One checkpoint's parts, in float32."""

    def __init__(self, folder: Path) -> None:
        model, codec = folder / LANGUAGE_MODEL, folder / AUDIO_TOKENIZER
        fields = json.loads((model / "config.json").read_text())
        config = Qwen2Config(**fields)
        self.module = load_submodule(
            SpeechTextModule, config, "", Weights(model), dtype=torch.float32, device=CPU
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
        known = tokenizer.get_vocab()
        for mark in SPEECH_MARKS:
            known.setdefault(mark, len(known))
        self.ids = known
        self.empty_codes = per_channel(config.speech_zeroemb_idx, CHANNELS)
        self.group = config.group_size
        self.encoder = GroupEncoder(
            self.module,
            empty_id=known[EMPTY],
            empty_codes=self.empty_codes,
            group=self.group,
            full=config.input_full_attention,
        )
        self.predictor = DelayedFramePredictor(
            self.module,
            1,
            group=self.group,
            delays=per_channel(config.delay_pattern, CHANNELS),
            empty_codes=self.empty_codes,
        )
        self.decoder = Decoder(
            self.module.model, POSITIONS, batch_invariant=True, exact_norms=False
        )
        self.codec_config = json.loads((codec / "config.json").read_text())
        weights = Weights(codec)
        tables = tuple(
            weights.read(f"encoder.quantizer.vq.layers.{channel}._codebook.embed")
            for channel in range(CHANNELS)
        )
        self.speech_encoder = SpeechEncoder(
            load_submodule(
                CodecEncoderModule,
                self.codec_config,
                "encoder.",
                weights,
                dtype=torch.float32,
                device=CPU,
                skip=("quantizer",),
            ),
            tables,
            self.codec_config,
            group=self.group,
        )
        self.codec = FrameCodecDecoder(
            load_submodule(
                CodecDecoderModule,
                self.codec_config,
                "decoder.",
                weights,
                dtype=torch.float32,
                device=CPU,
            ),
            tables,
            self.codec_config,
        )

    def answer(
        self, prompt: tuple[Tensor, Tensor], ends: set[int], most: int
    ) -> tuple[Tensor, Tensor]:
        """Ids int64 [n] and codes int64 [n, group, channels] of a greedy answer.

        `prompt` are ids int64 [m] and codes int64 [m, group, channels].
        """
        cache = KVCache(self.decoder.shape, 1, POSITIONS)
        ids, codes = prompt
        drawn: list[tuple[Tensor, Tensor]] = []
        start = 0
        empty = torch.tensor(self.empty_codes).expand(1, self.group, -1)
        settings = SamplingRows.of([GREEDY], CPU)
        numbers = torch.zeros(1, self.group, len(self.empty_codes), dtype=torch.float64)
        while True:
            plan = self.decoder.plan(cache, [Span(0, start, len(ids))])
            states, _ = self.decoder.append(self.encoder.rows(ids, codes), plan)
            last = states[len(ids) - 1 : len(ids)]
            start += len(ids)
            ids = linear(last, self.module.lm_head.weight).argmax(-1)
            codes = empty
            if int(ids) == self.ids[EMPTY]:
                codes, decided = self.predictor.draw(last, settings, numbers)
                assert decided.all()
            drawn.append((ids, codes))
            if int(ids) in ends or len(drawn) == most:
                return torch.cat([each for each, _ in drawn]), torch.cat(
                    [each for _, each in drawn]
                )
