"""What the reference says of each case, and which cases prove something."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen2_5_omni import TOKEN2WAV
from antiphon.values.sampling import stream_key
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen2_5_omni.noise import KeyedNoise
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference


class Omni25Truth:
    """The reference of one checkpoint; every case is run once, as far as the codes."""

    def __init__(self, directory: Path) -> None:
        self.reference = Omni25Reference(directory)
        self.ids = TalkerIds.from_config(read_config(directory))
        self._outputs: dict[int, Omni25Output] = {}
        self._kept: list[Omni25Case] = []

    def of(self, case: Omni25Case) -> Omni25Output:
        """What Hugging Face answers, without waveform."""
        if id(case) not in self._outputs:
            with torch.inference_mode():
                self._outputs[id(case)] = self.reference.run(replace(case, waveform=False))
            self._kept.append(case)
        return self._outputs[id(case)]

    def safe(self, candidates: Iterable[Omni25Case], wanted: int) -> list[Omni25Case]:
        """The first `wanted` candidates in which no greedy choice was close.

        The choice looks at the reference alone, before anything is compared.
        """
        safe = (case for case in candidates if self.of(case).margin >= MIN_MARGIN)
        found = list(itertools.islice(safe, wanted))
        assert len(found) == wanted, f"only {len(found)} candidates have a safe margin"
        return found

    def spoken(self, case: Omni25Case) -> list[int]:
        """The codes before an end that the decoder has rows for."""
        drawn: list[int] = self.of(case).drawn.tolist()
        ends = (self.ids.codec_pad, self.ids.codec_end)
        end = next((at for at, id_ in enumerate(drawn) if id_ in ends), len(drawn))
        return [id_ for id_ in drawn[:end] if id_ < self.ids.code_entries]

    def waveform(self, codes: Sequence[int], case: Omni25Case) -> npt.NDArray[np.float32]:
        """What the reference's token2wav makes of codes with the case's voice and seed."""
        if not len(codes):
            return np.empty(0, np.float32)
        voice = self.reference.model.speaker_map[case.voice]
        with torch.inference_mode(), KeyedNoise(stream_key(case.seed, TOKEN2WAV)):
            made: torch.Tensor = self.reference.model.token2wav(
                torch.tensor([list(codes)]),
                conditioning=voice["cond"],
                reference_mel=voice["ref_mel"],
            )
        return made.flatten().numpy()
