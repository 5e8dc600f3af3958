"""Codes of many utterances to samples, in shared calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from antiphon.pipelines.qwen2_5_omni import voices_by_name
from services.qwen2_5_omni.token2wav.flow import Flow, FlowCall
from services.qwen2_5_omni.token2wav.utterance import Utterance
from services.qwen2_5_omni.token2wav.vocoder import MelVocoder
from services.qwen2_5_omni.token2wav.voices import VoiceTensors


class Token2Wav:
    """`module` is Hugging Face's, in float32. Must run in inference mode."""

    def __init__(self, module: Any, voices: Mapping[str, VoiceTensors]) -> None:
        self._flow = Flow(module.code2wav_dit_model)
        self._vocoder = MelVocoder(module.code2wav_bigvgan_model)
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
        """Names in lower case, the default first."""
        return tuple(self._voices)

    def open(self, voice: str, *, seed: int, held_blocks: int) -> Utterance:
        """A new utterance; see `Utterance`."""
        return Utterance(self._flow, self._voices[voice], seed=seed, held_blocks=held_blocks)

    def begin(self, utterances: Sequence[Utterance]) -> Decoding:
        """Make what can be made of these; at least one."""
        return Decoding(self._flow, self._vocoder, utterances)


class Decoding:
    """Utterances on their way through flow and vocoder, a step at a time.

    Nothing may be added to one of them meanwhile.
    """

    def __init__(self, flow: Flow, vocoder: MelVocoder, utterances: Sequence[Utterance]) -> None:
        self._vocoder, self._utterances = vocoder, utterances
        parts = [(each, part) for each in utterances if (part := each.next_part()) is not None]
        self._flowing = [each for each, _ in parts]
        self._call: FlowCall | None = flow.begin([part for _, part in parts]) if parts else None

    def advance(self) -> list[Tensor] | None:
        """Make a step of the flow; after the last one, samples float32 [n] of each utterance."""
        if self._call is not None and not self._call.done:
            self._call.advance()
            if not self._call.done:
                return None
        if self._call is not None:
            for utterance, mel in zip(self._flowing, self._call.mels(), strict=True):
                utterance.take(mel)
        made = self._vocoder.decode([each.window() for each in self._utterances])
        return [each.cut(samples) for each, samples in zip(self._utterances, made, strict=True)]

    def run(self) -> list[Tensor]:
        """All steps."""
        while (samples := self.advance()) is None:
            pass
        return samples
