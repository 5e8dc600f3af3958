"""An order in vLLM's terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from services.qwen3_omni.thinker.audio import AudioFeatures
from services.qwen3_omni.thinker.video import FRAMES_PER_S
from services.qwen3_omni.thinker.vision import VIDEO
from services.qwen3_omni.thinker.vllm_engine.order import Order
from services.qwen3_omni.thinker.vllm_engine.spans import wanted


def prompt_of(order: Order) -> dict[str, Any]:
    """Ids, the recordings as mel features, and images and videos as pixels.

    Pixels are decoded here, which takes long. Raises `InvalidArgument` for a file that cannot
    be decoded.
    """
    media: dict[str, Any] = {}
    if order.audio is not None:
        media["audio"] = _features(order.audio)
    for visual in order.visuals:
        media.setdefault(visual.kind, []).append(visual.pixels())
    prompt: dict[str, Any] = {"prompt_token_ids": order.ids.tolist()}
    if media:
        prompt["multi_modal_data"] = media
    if VIDEO in media:
        # How much time two frames of a video are apart: from it come their positions.
        prompt["mm_processor_kwargs"] = {"fps": FRAMES_PER_S}
    return prompt


def parameters_of(order: Order) -> SamplingParams:
    """Sampling. Raises what vLLM does for values that it does not take.

    vLLM stops at the stop id and at the limit alone: stop strings are ours, so that both
    engines cut alike. Log probabilities come as flat lists, without an object for each.
    """
    sampling = order.sampling
    rows = wanted(order.number, order.row_positions) if len(order.row_positions) else None
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.greedy else sampling.seed,
        max_tokens=order.limit,
        stop_token_ids=[order.stop_id],
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        logprobs=sampling.top_logprobs,
        flat_logprobs=sampling.top_logprobs is not None,
        extra_args=None if rows is None else {"kv_transfer_params": rows},
    )


def _features(audio: AudioFeatures) -> dict[str, torch.Tensor]:
    """All recordings along time, [mel bins, frames], with lengths [n] and masks [n, widest].

    The masks keep the width that they were padded to together: see `model`.
    """
    mask = torch.from_numpy(np.ascontiguousarray(audio.mask))
    features = torch.from_numpy(np.ascontiguousarray(audio.features))
    return {
        "input_audio_features": features.transpose(1, 2)[mask.bool()].T.contiguous(),
        "audio_feature_lengths": mask.sum(-1),
        "feature_attention_mask": mask,
    }
