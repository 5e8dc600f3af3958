from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import DataLoss
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.session.output_edge import OutputEdge
from antiphon.values.chunk import Tensor, concatenate
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason
from antiphon.wire.logprobs import logprobs_from_tensors, logprobs_to_tensors

NEVER = float("-inf")
OTHERS = (TokenLogprob(9, b"<|end|>", -0.5), TokenLogprob(8, b"", NEVER))
TOKENS = [
    TokenLogprob(1, b"Hello", -0.25, OTHERS),
    TokenLogprob(2, "é".encode()[:1], -1.5, OTHERS[::-1]),
    TokenLogprob(3, "é".encode()[1:] + b" " * 300, 0.0, OTHERS),
]


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS[1:2], [TokenLogprob(7, b"x", -2.0)] * 2, []])
def test_logprobs_round_trip(tokens: list[TokenLogprob]) -> None:
    assert logprobs_from_tensors(logprobs_to_tensors(tokens)) == tuple(tokens)


def test_logprobs_cost_no_tensor_when_there_are_none() -> None:
    assert logprobs_to_tensors([]) == {}


def test_logprobs_of_consecutive_chunks_can_be_joined() -> None:
    pieces = [logprobs_to_tensors(part) for part in (TOKENS[:1], [], TOKENS[1:])]
    assert logprobs_from_tensors(concatenate(list(pieces))) == tuple(TOKENS)


def test_logprobs_tensors_are_those_that_the_edge_declares() -> None:
    declared = {each.name: each for each in PIPELINE.edge("text").tensors}
    for name, tensor in logprobs_to_tensors(TOKENS).items():
        assert declared[name].dtype == tensor.dtype.name
        assert len(declared[name].shape) == tensor.ndim
        assert declared[name].optional


@pytest.mark.parametrize("delivery", list(Delivery))
def test_logprobs_stay_with_their_text_when_the_outlet_joins(delivery: Delivery) -> None:
    """Three ids, of which two are held back and leave with the third."""
    policy = ChunkPolicy(first=2, ramp=(), steady=3)
    outlet = OutputEdge(PIPELINE.edge("text"), delivery, policy)
    parts: list[tuple[str, list[TokenLogprob]]] = [("H", TOKENS[:1]), ("", []), ("eé", TOKENS[1:])]
    pieces = []
    for position, (text, tokens) in enumerate(parts):
        tensors: dict[str, Tensor] = {
            "ids": np.array([position], np.int32),
            "utf8": np.frombuffer(text.encode(), np.uint8),
        }
        finish = FinishReason.STOP if position == 2 else None
        pieces += outlet.push(position, tensors | logprobs_to_tensors(tokens), finish)
    came = [
        (piece.tensors["utf8"].tobytes().decode(), list(logprobs_from_tensors(piece.tensors)))
        for piece in pieces
    ]
    assert came == (parts if delivery is Delivery.STREAM else [("Heé", TOKENS)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": np.zeros((3, 2), np.float32)},
        {"logprob_sizes": np.zeros((3, 3), np.int32)},
        {"logprob_sizes": np.full((3, 3), -1, np.int32)},
        {"logprob_bytes": np.zeros(3, np.uint8)},
        {"logprob_ids": np.zeros(9, np.int32)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_logprobs_raise_data_loss_when_tensors_contradict_each_other(
    wrong: dict[str, Tensor],
) -> None:
    with pytest.raises(DataLoss, match="log probabilities"):
        logprobs_from_tensors(logprobs_to_tensors(TOKENS) | wrong)


def test_logprobs_raise_data_loss_when_a_tensor_is_missing() -> None:
    tensors = logprobs_to_tensors(TOKENS)
    del tensors["logprob_bytes"]
    with pytest.raises(DataLoss, match="logprob_bytes"):
        logprobs_from_tensors(tensors)


def test_token_shows_bytes_that_are_no_whole_character() -> None:
    assert [each.token for each in TOKENS[:2]] == ["Hello", r"\xc3"]
