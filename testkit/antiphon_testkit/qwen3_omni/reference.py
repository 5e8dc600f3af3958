"""Hugging Face's greedy answer to a case in fp32, which antiphon's answer must equal.

Two correct implementations differ because of rounding, so a case only proves something if none of
its greedy choices was close. `ReferenceOutput.min_margin` is the smallest margin in the run. If it
is below `MIN_MARGIN`, replace the case instead of loosening a tolerance.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    LogitsProcessorList,
    Qwen3OmniMoeForConditionalGeneration,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeProcessorKwargs,
    _get_feat_extract_output_lengths,
)

from antiphon.values.conversation import Conversation
from antiphon.values.segment import FinishReason
from antiphon_testkit.conversations import Pixels
from antiphon_testkit.margins import LogitGap
from antiphon_testkit.qwen3_omni.margins import Margins, Narrowest
from antiphon_testkit.reference_inputs import ReferenceInputs

# transformers doesn't have type annotations for `from_pretrained` or for the sections of its
# configurations.
_MODEL: Any = Qwen3OmniMoeForConditionalGeneration
_DEFAULTS: dict[str, Any] = cast(Any, Qwen3OmniMoeProcessorKwargs)._defaults
_audio_positions: Any = _get_feat_extract_output_lengths


@dataclass(frozen=True, slots=True)
class Case:
    """A request. Recordings have a sample rate of 16 kHz, and token limits include the stop ID.

    `conversation` contains images and videos as files. `images` and `videos` contain their pixels
    (uint8 [height, width, 3] and [frames, height, width, 3]).
    """

    conversation: Conversation
    voice: str = "ethan"
    thinker_max_tokens: int = 60
    talker_max_tokens: int = 60
    audio: bool = True
    images: tuple[Pixels, ...] = ()
    videos: tuple[Pixels, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceOutput:
    """The reference's output for a case.

    `prompt_ids` is int32 [P]. `text_ids` (int32 [N]) includes the stop ID if it was drawn. `codes`
    is int32 [T, groups]. `waveform` (float32 [1920 * T - 555]) is the result of a single forward
    pass over all codes. Without audio, the last two are empty and `audio_finish` is None.
    """

    prompt_ids: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    text_finish: FinishReason
    codes: npt.NDArray[np.int32]
    waveform: npt.NDArray[np.float32]
    audio_finish: FinishReason | None
    margins: Margins

    @property
    def min_margin(self) -> float:
        """The smallest margin in the entire run."""
        margins = self.margins
        return min(margins.thinker, margins.talker, margins.predictor, margins.router)


class Reference:
    """`Qwen3OmniMoeForConditionalGeneration` for a checkpoint, including a record of its
    choices.
    """

    def __init__(
        self, directory: Path, device: str = "cpu", *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model: Any = _MODEL.from_pretrained(directory, dtype=dtype)
        self.model.to(device).eval()
        merge_size = self.model.config.thinker_config.vision_config.spatial_merge_size
        self._made = ReferenceInputs(directory, Qwen3OmniMoeProcessor, _DEFAULTS, merge_size)
        self.tokenizer = self._made.tokenizer
        # The talker computes its positions from the user's IDs in the same way as the thinker. If
        # there is both an image and a recording, it reads a field from its own configuration that
        # this doesn't declare.
        talker = self.model.talker.config
        talker.audio_config = self.model.config.thinker_config.audio_config

    def run(self, case: Case, *, thinker_processors: Sequence[Any] = ()) -> ReferenceOutput:
        """Generate once with greedy decoding. `thinker_processors` also receive the thinker's
        scores.

        Hugging Face's exceptions are passed on. `RuntimeError` is raised if a reply consists of a
        single token, if speech ends with the first draw, or if a prompt contains no user message.
        `NotImplementedError` is raised if a voice is unknown.
        """
        inputs = self.inputs(case.conversation, case.images, case.videos)
        narrowest = Narrowest()
        with (
            warnings.catch_warnings(),
            narrowest.listen(self.model),
            _capture_codes(self.model) as captured,
        ):
            # This warning is correct and intended: the talker's prompt doesn't have any IDs that
            # could be repeated.
            warnings.filterwarnings("ignore", message="Passing `repetition_penalty`")
            sequences = self.model.generate(
                **inputs,
                return_audio=case.audio,
                speaker=case.voice,
                thinker_do_sample=False,
                thinker_max_new_tokens=case.thinker_max_tokens,
                thinker_eos_token_id=self.model.config.im_end_token_id,
                thinker_logits_processor=LogitsProcessorList(
                    [narrowest.thinker, *thinker_processors]
                ),
                talker_do_sample=False,
                talker_max_new_tokens=case.talker_max_tokens,
                talker_logits_processor=LogitsProcessorList([narrowest.talker]),
            )
        ids = (sequences[0] if case.audio else sequences)[0].cpu().numpy().astype(np.int32)
        prompt_length = inputs["input_ids"].shape[1]
        codes = captured[0] if case.audio else None
        return ReferenceOutput(
            prompt_ids=ids[:prompt_length],
            text_ids=ids[prompt_length:],
            text_finish=_finish(ids[-1], self.model.config.im_end_token_id),
            codes=_to_frames(codes, self.model.config.talker_config.num_code_groups),
            waveform=self._decode(codes),
            audio_finish=None if codes is None else self._audio_finish(narrowest.talker),
            margins=narrowest.margins(),
        )

    def inputs(
        self,
        conversation: Conversation,
        images: Sequence[Pixels] = (),
        videos: Sequence[Pixels] = (),
    ) -> dict[str, torch.Tensor]:
        """Return the keyword arguments for `generate`, as created by `Qwen3OmniMoeProcessor`."""
        features = self._made.features(conversation, images, videos)
        mask = features.get("feature_attention_mask")
        n_window = _DEFAULTS["audio_kwargs"]["n_window"]
        lengths = () if mask is None else _audio_positions(mask.sum(-1), n_window)
        inputs = self._made.tokens(conversation, features, lengths) | features
        return {name: each.to(self.model.device) for name, each in inputs.items()}

    @torch.no_grad()
    def _decode(self, codes: torch.Tensor | None) -> npt.NDArray[np.float32]:
        """Return the waveform of codes [1, groups, T], using a single forward pass."""
        if codes is None:
            return np.empty(0, dtype=np.float32)
        waveform: npt.NDArray[np.float32] = (
            self.model.code2wav(codes).flatten().float().cpu().numpy()
        )
        return waveform

    def _audio_finish(self, talker: LogitGap) -> FinishReason:
        """Return why the talker stopped. In either case, its last draw is not a frame."""
        return _finish(talker.last_drawn, self.model.config.talker_config.codec_eos_token_id)


@contextlib.contextmanager
def _capture_codes(model: Any) -> Iterator[list[torch.Tensor]]:
    """Capture the codes [1, groups, T] that `generate` passes to `code2wav.chunked_decode`.

    The chunked decoding itself is skipped, because it drops samples at the end of each block.
    """
    captured: list[torch.Tensor] = []

    def chunked_decode(codes: torch.Tensor, **_settings: int) -> torch.Tensor:
        captured.append(codes)
        return torch.zeros(1, 1, 0)

    model.code2wav.chunked_decode = chunked_decode
    try:
        yield captured
    finally:
        del model.code2wav.chunked_decode


def _to_frames(codes: torch.Tensor | None, groups: int) -> npt.NDArray[np.int32]:
    """Return codes [1, groups, T] as int32 [T, groups]."""
    if codes is None:
        return np.empty((0, groups), dtype=np.int32)
    return np.ascontiguousarray(codes[0].T.cpu().numpy().astype(np.int32))


def _finish(last: int, stop: int) -> FinishReason:
    """Return `STOP` if the last ID is the stop ID."""
    return FinishReason.STOP if last == stop else FinishReason.LENGTH
