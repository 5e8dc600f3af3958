"""Decodes the codes of many utterances to samples, using shared calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from antiphon.pipelines.qwen2_5_omni import voices_by_name
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.qwen2_5_omni.token2wav.vocoder import MelVocoder
from antiphon_services.qwen2_5_omni.token2wav.voices import VoiceTensors

ROWS_AT_A_TIME = 16_384
"""The number of layer rows that are computed in a step.

With the default number of held blocks and the released model's depth, an utterance has about 4,200
rows in each of the 36 evaluations, so a call takes nine steps.
"""


class Token2Wav:
    """The flow and the vocoder. `module` is Hugging Face's module in float32. All methods must be
    called in inference mode.

    If `bucketing` is given, parts of a call run as CUDA graphs.
    """

    def __init__(
        self,
        module: Any,
        voices: Mapping[str, VoiceTensors],
        bucketing: Bucketing | None = None,
    ) -> None:
        # Graphs are captured in the order in which they are replayed, as
        # `antiphon_services.lm.graphs` requires.
        self._flow = Flow(module.code2wav_dit_model, bucketing)
        self._vocoder = MelVocoder(
            module.code2wav_bigvgan_model, bucketing, self._flow.block_frames
        )
        self._voices = {
            name: self._flow.voice(
                each.condition.to(self._flow.device), each.mel.to(self._flow.device)
            )
            for name, each in voices_by_name(voices).items()
        }
        self.samples_per_code = self._flow.frames_per_code * self._vocoder.samples_per_frame
        self.code_entries = self._flow.code_entries
        self.most_codes = self._flow.most_frames // self._flow.frames_per_code

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the voices in lower case, starting with the default voice."""
        return tuple(self._voices)

    def open(self, voice: str, *, seed: int, held_blocks: int) -> Utterance:
        """Create an utterance."""
        return Utterance(self._flow, self._voices[voice], seed=seed, held_blocks=held_blocks)

    def begin(self, utterances: Sequence[Utterance]) -> Decoding:
        """Start a call for one or more utterances."""
        return Decoding(self._flow, self._vocoder, utterances)


class Decoding:
    """A call of the flow and the vocoder for one or more utterances. It is computed in parts.

    No codes may be added to the utterances during the call.
    """

    def __init__(self, flow: Flow, vocoder: MelVocoder, utterances: Sequence[Utterance]) -> None:
        self._flow, self._vocoder, self._utterances = flow, vocoder, utterances
        self._samples: list[Tensor] | None = None
        self._work = self._run()

    def advance(self) -> list[Tensor] | None:
        """Compute about `ROWS_AT_A_TIME` rows. Returns None until the call is complete and then the
        samples (float32 [n]) of each utterance.

        A part can exceed the limit by all rows of one layer, or by one call of the vocoder.
        """
        done = 0
        for rows in self._work:
            done += rows
            if done >= ROWS_AT_A_TIME:
                break
        return self._samples

    def run(self) -> list[Tensor]:
        """Compute the whole call."""
        while (samples := self.advance()) is None:
            pass
        return samples

    def _run(self) -> Iterator[int]:
        """Compute the call. After each layer, yields the number of rows."""
        parts = [
            (each, part) for each in self._utterances if (part := each.next_part()) is not None
        ]
        if parts:
            mels = yield from self._flow.run([part for _, part in parts])
            for (utterance, _), mel in zip(parts, mels, strict=True):
                utterance.take(mel)
        made = yield from self._vocoder.decode([each.window() for each in self._utterances])
        self._samples = [
            each.cut(samples) for each, samples in zip(self._utterances, made, strict=True)
        ]
