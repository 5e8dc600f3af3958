"""Converts orders to vLLM's types."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from antiphon.values.sampling import Sampling
from antiphon_services.vllm.order import VllmOrder
from antiphon_services.vllm.spans import wanted

_SEED_MASK = (1 << 63) - 1
"""vLLM passes seeds to torch generators, which only accept signed 64-bit numbers."""


def prompt_of(order: VllmOrder) -> dict[str, Any]:
    """Return the IDs and the media. Raises the same errors as `Media.fields`."""
    return {"prompt_token_ids": order.ids.tolist()} | order.media.fields()


def parameters_of(order: VllmOrder) -> SamplingParams:
    """Return the sampling parameters. Raises one of vLLM's errors if a value is not supported.

    vLLM only stops at the stop ID or at the length limit. antiphon handles stop strings itself, so
    that replies end in the same way with both engines. Log probabilities are returned as flat
    lists, to avoid creating an object for each of them.
    """
    sampling = order.sampling
    rows = None
    if len(order.row_positions) or order.reply_rows_from is not None:
        rows = wanted(order.number, order.row_positions, order.reply_rows_from)
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.greedy else sampling.seed & _SEED_MASK,
        max_tokens=order.limit,
        stop_token_ids=[order.stop_id],
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=_constraint(sampling),
        logprobs=sampling.top_logprobs,
        flat_logprobs=sampling.top_logprobs is not None,
        extra_args=None if rows is None else {"kv_transfer_params": rows},
    )


def _constraint(sampling: Sampling) -> StructuredOutputsParams | None:
    if sampling.json_schema is None:
        return None
    return StructuredOutputsParams(json=sampling.json_schema)
