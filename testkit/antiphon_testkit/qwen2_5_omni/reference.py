"""Hugging Face's greedy answer to a case in fp32, which is the reference for exact comparison.

If an attention mask consists only of ones, generation in transformers 5.19 omits it from the
model's inputs. However, the talker only counts its positions and adds the codec's pad and start
embeddings if it has a mask. As a result, a plain call generates speech for a single unpadded prompt
without them. The reference used here is the same call with the mask restored. Its codes are the
same as those for a prompt padded by one position on the left, and as those of a plain call in
4.57.3. A test fails if a new release fixes this.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    LogitsProcessorList,
    Qwen2_5OmniForConditionalGeneration,
)
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import (
    Qwen2_5OmniProcessor,
    Qwen2_5OmniProcessorKwargs,
)

from antiphon.pipelines.qwen2_5_omni import TOKEN2WAV
from antiphon.values.conversation import Conversation
from antiphon.values.sampling import stream_key
from antiphon.values.segment import FinishReason
from antiphon_testkit.conversations import Pixels
from antiphon_testkit.margins import LogitGap
from antiphon_testkit.qwen2_5_omni.noise import KeyedNoise
from antiphon_testkit.reference_inputs import ReferenceInputs

# transformers doesn't have type annotations for `from_pretrained` or for the sections of its
# configurations.
_MODEL: Any = Qwen2_5OmniForConditionalGeneration
_DEFAULTS: dict[str, Any] = cast(Any, Qwen2_5OmniProcessorKwargs)._defaults


@dataclass(frozen=True, slots=True)
class Omni25Case:
    """A request. Recordings have a sample rate of 16 kHz, and token limits include the stop ID.

    `conversation` contains images and videos as files. `images` and `videos` contain their pixels
    (uint8 [height, width, 3] and [frames, height, width, 3]). `seed` is the request's seed, which
    determines the noise from which speech is generated. If `waveform` is false, the codes are not
    decoded, so that decoding can't fail.
    """

    conversation: Conversation
    voice: str = "Chelsie"
    thinker_max_tokens: int = 60
    talker_max_tokens: int = 60
    audio: bool = True
    seed: int = 0
    waveform: bool = True
    talker_repetition_penalty: float = 1.05
    images: tuple[Pixels, ...] = ()
    videos: tuple[Pixels, ...] = ()


@dataclass(frozen=True, slots=True)
class TalkerInput:
    """The input of the reference's talker.

    `rows` (float32 [P + 2, hidden]) contains the rows of the prompt, without the codec's pad and
    start embeddings. `reply` (float32 [n, hidden]) contains the rows of later steps. Its last row
    is repeated indefinitely. `text_ids` (int64 [P + 2]) determines the positions.
    """

    rows: npt.NDArray[np.float32]
    reply: npt.NDArray[np.float32]
    text_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Omni25Output:
    """The reference's output for a case.

    `prompt_ids` is int32 [P]. `text_ids` (int32 [N]) includes the stop ID if it was drawn. `drawn`
    (int32 [D]) contains everything that the talker drew, and `codes` (int32 [T]) contains the part
    before the end. `waveform` is float32 [480 * T]. Without audio, the last three are empty and
    `talker_input` is None. `margin` is the smallest margin of a greedy choice in the run.
    """

    prompt_ids: npt.NDArray[np.int32]
    text_ids: npt.NDArray[np.int32]
    text_finish: FinishReason
    drawn: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]
    waveform: npt.NDArray[np.float32]
    talker_input: TalkerInput | None
    margin: float


class Omni25Reference:
    """`Qwen2_5OmniForConditionalGeneration` for a checkpoint, including a record of its choices.

    If `mask_kept` is false, the model is called without any changes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        mask_kept: bool = True,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model: Any = _MODEL.from_pretrained(directory, dtype=dtype)
        self.model.to(device).eval()
        self.merge_size: int = self.model.config.thinker_config.vision_config.spatial_merge_size
        self._made = ReferenceInputs(directory, Qwen2_5OmniProcessor, _DEFAULTS, self.merge_size)
        self.tokenizer = self._made.tokenizer
        self.stop_id: int = self.tokenizer.eos_token_id
        talker = self.model.config.talker_config
        self.ends = [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]
        if mask_kept:
            _keep_mask(self.model.talker)

    def run(self, case: Omni25Case, *, thinker_processors: Sequence[Any] = ()) -> Omni25Output:
        """Generate once with greedy decoding. `thinker_processors` also receive the thinker's
        scores.

        Hugging Face's exceptions are passed on. They occur if a reply consists of a single token,
        if speech ends with the first draw, if the decoder has no row for an ID, or if a voice is
        unknown.
        """
        inputs = self.inputs(case.conversation, case.images, case.videos)
        thinker, talker = LogitGap(), LogitGap()
        with _listen(self.model, case.seed, decode=case.waveform) as heard:
            answer = self.model.generate(
                **inputs,
                generation_mode=None if case.audio else "text",
                speaker=case.voice,
                thinker_do_sample=False,
                thinker_max_new_tokens=case.thinker_max_tokens,
                thinker_eos_token_id=self.stop_id,
                thinker_logits_processor=LogitsProcessorList([thinker, *thinker_processors]),
                talker_do_sample=False,
                talker_max_new_tokens=case.talker_max_tokens,
                talker_eos_token_id=self.ends,
                talker_repetition_penalty=case.talker_repetition_penalty,
                talker_logits_processor=LogitsProcessorList([talker]),
            )
        ids = (answer[0] if case.audio else answer)[0].cpu().numpy().astype(np.int32)
        prompt_length = inputs["input_ids"].shape[1]
        stopped = ids[-1] == self.stop_id
        return Omni25Output(
            prompt_ids=ids[:prompt_length],
            text_ids=ids[prompt_length:],
            text_finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            drawn=heard.drawn,
            codes=heard.codes,
            waveform=answer[1].float().cpu().numpy() if case.audio else np.empty(0, np.float32),
            talker_input=heard.talker_input,
            margin=min(thinker.smallest, talker.smallest),
        )

    def inputs(
        self,
        conversation: Conversation,
        images: Sequence[Pixels] = (),
        videos: Sequence[Pixels] = (),
    ) -> dict[str, torch.Tensor]:
        """Return the keyword arguments for `generate`, as created by `Qwen2_5OmniProcessor`."""
        features = self._made.features(conversation, images, videos)
        for name in {"pixel_values", "pixel_values_videos"} & features.keys():
            # Without the prefix, the talker would also receive them, and would reject them.
            features[f"thinker_{name}"] = features.pop(name)
        mask = features.get("feature_attention_mask")
        lengths: Any = () if mask is None else (((mask.sum(-1) - 1) // 2 + 1) - 2) // 2 + 1
        inputs = self._made.tokens(conversation, features, lengths) | features
        return {name: each.to(self.model.device) for name, each in inputs.items()}


class _Heard:
    """The inputs of the talker and of the decoder. They are empty until these are called."""

    def __init__(self) -> None:
        self.drawn = np.empty(0, np.int32)
        self.codes = np.empty(0, np.int32)
        self.talker_input: TalkerInput | None = None


@contextlib.contextmanager
def _listen(model: Any, seed: int, *, decode: bool) -> Iterator[_Heard]:
    """Record the inputs of the talker and the decoder. Also provide the decoder's noise, or skip
    decoding.
    """
    heard = _Heard()
    generate, forward = model.talker.generate, model.token2wav.forward

    def on_talker(**settings: Any) -> torch.Tensor:
        heard.talker_input = TalkerInput(
            _copied(settings["inputs_embeds"]),
            _copied(settings["thinker_reply_part"]),
            settings["input_text_ids"][0].cpu().numpy().copy(),
        )
        drawn: torch.Tensor = generate(**settings)
        heard.drawn = drawn[0, settings["input_ids"].shape[1] :].cpu().numpy().astype(np.int32)
        return drawn

    def on_decoder(codes: torch.Tensor, **settings: Any) -> torch.Tensor:
        heard.codes = codes[0].cpu().numpy().astype(np.int32)
        if not decode:
            return torch.zeros(0)
        with KeyedNoise(stream_key(seed, TOKEN2WAV)):
            samples: torch.Tensor = forward(codes, **settings)
        return samples

    model.talker.generate, model.token2wav.forward = on_talker, on_decoder
    try:
        yield heard
    finally:
        del model.talker.generate, model.token2wav.forward


def _copied(rows: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the first of the rows [1, n, hidden], on the host."""
    return rows[0].float().cpu().numpy().copy()


def _keep_mask(talker: Any) -> None:
    """Pass the talker the mask of ones that generation omits."""
    prepare = talker.prepare_inputs_for_generation

    # Generation inspects the signature to determine which arguments it can pass.
    @functools.wraps(prepare)
    def with_mask(input_ids: torch.Tensor, **settings: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = prepare(input_ids, **settings)
        if inputs.get("attention_mask") is None:
            inputs["attention_mask"] = torch.ones_like(input_ids)
        return inputs

    talker.prepare_inputs_for_generation = with_mask
