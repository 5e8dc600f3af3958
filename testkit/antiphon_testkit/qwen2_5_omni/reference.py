"""Hugging Face's greedy answer to one case in fp32, the reference for exact comparison.

Generation in transformers 5.19 omits an attention mask of ones from the model's inputs. The talker
adds the embeddings of the codec's pad and start, and counts its positions, only if it has a mask. A
plain call therefore speaks one unpadded prompt without them. The reference here is the same call
with the mask restored. It has the same codes as a prompt padded by one position on the left, and as
the plain call of 4.57.3. A test fails when a release fixes this.
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

# transformers types neither its `from_pretrained` nor the parts of its configurations.
_MODEL: Any = Qwen2_5OmniForConditionalGeneration
_DEFAULTS: dict[str, Any] = cast(Any, Qwen2_5OmniProcessorKwargs)._defaults


@dataclass(frozen=True, slots=True)
class Omni25Case:
    """One request. Recordings are at 16 kHz; token limits count the stop id.

    `conversation` has images and videos as files; `images` and `videos` are their pixels, uint8
    [height, width, 3] and [frames, height, width, 3].
    `seed` is the request's, which keys the noise that speech begins with. Without `waveform`
    nothing is made of the codes, so that nothing can go wrong with them.
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

    `rows`, float32 [P + 2, hidden], are the rows of the prompt, without the codec's pad and start.
    `reply`, float32 [n, hidden], are the rows of later steps; the last one repeats forever.
    `text_ids`, int64 [P + 2], determine the positions.
    """

    rows: npt.NDArray[np.float32]
    reply: npt.NDArray[np.float32]
    text_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Omni25Output:
    """What the reference produced for one case.

    `prompt_ids` int32 [P]; `text_ids` int32 [N], with the stop id if one was drawn; `drawn`
    int32 [D] is all that the talker drew, `codes` int32 [T] what of it comes before an end;
    `waveform` float32 [480 * T]. Without audio the last three are empty and `talker_input`
    is None. `margin` is the narrowest greedy choice of the run.
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
    """`Qwen2_5OmniForConditionalGeneration` of one checkpoint, with an ear on its choices.

    With `mask_kept` False it is called as it comes.
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
        """Generate once, greedily; `thinker_processors` see the thinker's scores, too.

        What Hugging Face raises goes through: for a reply of one token, for speech that ends
        at its first draw, for ids that the decoder has no row for, for an unknown voice.
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
        """The keyword arguments for `generate`, as `Qwen2_5OmniProcessor` makes them."""
        features = self._made.features(conversation, images, videos)
        for name in {"pixel_values", "pixel_values_videos"} & features.keys():
            # Without the prefix the talker gets them, too, and refuses them.
            features[f"thinker_{name}"] = features.pop(name)
        mask = features.get("feature_attention_mask")
        lengths: Any = () if mask is None else (((mask.sum(-1) - 1) // 2 + 1) - 2) // 2 + 1
        inputs = self._made.tokens(conversation, features, lengths) | features
        return {name: each.to(self.model.device) for name, each in inputs.items()}


class _Heard:
    """What went to the talker and to the decoder; empty until it does."""

    def __init__(self) -> None:
        self.drawn = np.empty(0, np.int32)
        self.codes = np.empty(0, np.int32)
        self.talker_input: TalkerInput | None = None


@contextlib.contextmanager
def _listen(model: Any, seed: int, *, decode: bool) -> Iterator[_Heard]:
    """Note what the talker and the decoder get, and give the decoder its noise, or do without."""
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
    """The first of the rows [1, n, hidden], on the host."""
    return rows[0].float().cpu().numpy().copy()


def _keep_mask(talker: Any) -> None:
    """Give the talker the mask of ones that generation leaves out."""
    prepare = talker.prepare_inputs_for_generation

    # Generation looks at the signature for what it may be handed.
    @functools.wraps(prepare)
    def with_mask(input_ids: torch.Tensor, **settings: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = prepare(input_ids, **settings)
        if inputs.get("attention_mask") is None:
            inputs["attention_mask"] = torch.ones_like(input_ids)
        return inputs

    talker.prepare_inputs_for_generation = with_mask
