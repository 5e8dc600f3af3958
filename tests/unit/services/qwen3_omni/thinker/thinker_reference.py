"""Hugging Face's thinker and the parts of its processor that need no torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    AutoTokenizer,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    Qwen3OmniMoeProcessor,
    _get_feat_extract_output_lengths,
)

from antiphon.values.conversation import Conversation, TextPart
from antiphon.values.logprobs import TokenLogprob
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_testkit.margins import LOGPROB_TOLERANCE

MARGIN = 1e-4
MAX_TOKENS = 48


@dataclass(frozen=True)
class ReferenceReply:
    """What `generate` returns: reply ids, tapped prompt states, least top-2 margin, logits."""

    prompt_ids: npt.NDArray[np.int64]
    ids: list[int]
    hidden: npt.NDArray[np.float32]
    margin: float
    logits: torch.Tensor


Cases = list[tuple[Conversation, ReferenceReply]]


class Reference:
    """The whole model from `from_pretrained`, run one prompt at a time."""

    def __init__(self, model_dir: Path) -> None:
        model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(model_dir)
        self.config = model.config
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self.thinker = model.thinker.eval()
        self._extractor = WhisperFeatureExtractor.from_pretrained(model_dir)

    def inputs(self, conversation: Conversation) -> dict[str, torch.Tensor]:
        """What `Qwen3OmniMoeProcessor.__call__` returns for the conversation."""
        audio: dict[str, torch.Tensor] = {}
        lengths: Any = iter([])
        if conversation.recordings:
            batch: Any = self._extractor(
                list(conversation.recordings),
                sampling_rate=16000,
                padding=True,
                truncation=False,
                return_attention_mask=True,
                return_tensors="pt",
            )
            audio = {
                "input_features": batch["input_features"],
                "feature_attention_mask": batch["attention_mask"],
            }
            lengths = iter(_get_feat_extract_output_lengths(batch["attention_mask"].sum(-1)))
        [text] = Qwen3OmniMoeProcessor.replace_multimodal_special_tokens(
            self._processor(), [self._render(conversation)], lengths, *[iter([])] * 2,
            video_second_per_grid=iter([]), use_audio_in_video=False,
            position_id_per_seconds=13.0, seconds_per_chunk=2.0,
        )  # fmt: skip
        return {**self.tokenizer([text], return_tensors="pt"), **audio}

    def reply(self, conversation: Conversation, max_tokens: int, **options: Any) -> ReferenceReply:
        """Greedy `generate` of the thinker, as the whole model calls it."""
        inputs = self.inputs(conversation)
        length = inputs["input_ids"].shape[1]
        out = self.thinker.generate(
            **inputs,
            max_new_tokens=max_tokens,
            eos_token_id=self.config.im_end_token_id,
            do_sample=False,
            output_hidden_states=True,
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
        tapped = out.hidden_states[0][self.config.talker_config.accept_hidden_layer]
        best = [scores[0].topk(2).values for scores in out.scores]
        return ReferenceReply(
            inputs["input_ids"][0].numpy(),
            out.sequences[0, length:].tolist(),
            tapped[0].numpy(),
            min(float(first - second) for first, second in best),
            torch.cat(out.logits),
        )

    def _render(self, conversation: Conversation) -> str:
        """The chat template on content lists, as a processor gives it them."""
        messages = [
            {
                "role": message.role,
                "content": [
                    {"type": "text", "text": part.text}
                    if isinstance(part, TextPart)
                    else {"type": "audio", "audio": "recording.wav"}
                    for part in message.parts
                ],
            }
            for message in conversation.messages
        ]
        rendered: str = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return rendered

    def _processor(self) -> Any:
        """As much of a processor as placeholder expansion reads."""
        tokenizer, merge = self.tokenizer, SimpleNamespace(merge_size=2)
        return SimpleNamespace(
            image_processor=merge,
            video_processor=merge,
            audio_token=tokenizer.audio_token,
            image_token=tokenizer.image_token,
            video_token=tokenizer.video_token,
        )


def clear_replies(
    reference: Reference, conversations: list[Conversation], max_tokens: int, **options: Any
) -> list[tuple[Conversation, ReferenceReply]]:
    """Those whose every id wins by at least `MARGIN`; others may differ by rounding."""
    replies = [(each, reference.reply(each, max_tokens, **options)) for each in conversations]
    return [(each, reply) for each, reply in replies if reply.margin >= MARGIN]


def assert_logprobs_equal(
    tokens: Sequence[TokenLogprob], expected: ReferenceReply, vocabulary: Vocabulary, top: int
) -> None:
    """One entry for each id with text: its own log-softmax, and the highest of the row."""
    logprobs = expected.logits.log_softmax(-1, dtype=torch.float32)
    close = LOGPROB_TOLERANCE * float(expected.logits.abs().max())
    shown = [at for at, id_ in enumerate(expected.ids) if vocabulary.token_bytes(id_)]
    assert [each.token_id for each in tokens] == [expected.ids[at] for at in shown]
    for at, token in zip(shown, tokens, strict=True):
        assert token.token_bytes == vocabulary.token_bytes(token.token_id)
        everything = (token, *token.top)
        theirs = [float(logprobs[at, each.token_id]) for each in everything]
        np.testing.assert_allclose([e.logprob for e in everything], theirs, rtol=0, atol=close)
        highest = logprobs[at].topk(top).values.tolist()
        np.testing.assert_allclose([e.logprob for e in token.top], highest, rtol=0, atol=close)
        assert len({each.token_id for each in token.top}) == top
