from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2Wav,
)

from antiphon.errors import FailedPrecondition
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.batch import Batch, StreamStates
from antiphon_services.vocoder.kernels import Snake
from antiphon_services.vocoder.stream import StreamDecoder
from antiphon_services.vocoder.transformer import window_mask
from tests.unit.services.vocoder.vocoder_modules import (
    CONFIGS,
    FRAMES,
    build_module,
    decoder_of,
    fresh_states,
    make_codes,
    module_of,
    one_shot,
    piece_of,
    sizes_of,
    stream,
)

EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 25, FRAMES])
def test_stream_equals_one_shot_when_frames_come_in_chunks(name: str, size: int) -> None:
    codes = make_codes(FRAMES)
    streamed = stream(decoder_of(name), codes, sizes_of(FRAMES, size))
    torch.testing.assert_close(streamed, one_shot(module_of(name), codes), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stream_is_as_close_to_the_truth_as_one_shot_when_dtype_is_short(
    dtype: torch.dtype,
) -> None:
    codes = make_codes(FRAMES)
    truth = one_shot(module_of("released"), codes)
    assert truth.abs().max() < 1, "saturated samples would hide differences"
    assert truth.std() > 0.1, "quiet samples would hide differences"
    whole = one_shot(module_of("released", dtype), codes)
    streamed = stream(decoder_of("released", dtype), codes, sizes_of(FRAMES, 4))
    assert streamed.dtype == dtype
    assert (streamed - truth).abs().max() <= 2 * (whole - truth).abs().max()


def test_stream_is_within_1e_4_of_one_shot_when_dtype_is_float32() -> None:
    codes = make_codes(FRAMES)
    whole = one_shot(module_of("released", torch.float32), codes)
    streamed = stream(decoder_of("released", torch.float32), codes, sizes_of(FRAMES, 1))
    torch.testing.assert_close(streamed, whole, rtol=0.0, atol=1e-4)


@settings(max_examples=15, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    name=st.sampled_from(["odd", "released"]),
    seed=st.integers(0, 99),
)
def test_stream_equals_one_shot_when_split_at_random(
    sizes: list[int], name: str, seed: int
) -> None:
    codes = make_codes(sum(sizes), seed)
    streamed = stream(decoder_of(name), codes, sizes)
    torch.testing.assert_close(streamed, one_shot(module_of(name), codes), **EXACT)


@pytest.mark.parametrize("window", [1, 2, 9])
def test_stream_equals_one_shot_when_window_is(window: int) -> None:
    module = build_module(**CONFIGS["odd"] | {"sliding_window": window})
    codes = make_codes(30)
    streamed = stream(StreamDecoder(vocoder_of(module)), codes, sizes_of(30, 4))
    torch.testing.assert_close(streamed, one_shot(module, codes), **EXACT)
    other = build_module(**CONFIGS["odd"] | {"sliding_window": window + 1})
    assert not torch.allclose(streamed, one_shot(other, codes), **EXACT)


def test_mask_shows_window_before_each_frame_when_stream_starts_and_later() -> None:
    start = window_mask(torch.arange(0, 2), 3).int().tolist()
    assert start == [[0, 0, 1, 0], [0, 0, 1, 1]]
    later = window_mask(torch.arange(5, 8), 3).int().tolist()
    assert later == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_samples_are_short_by_the_start_when_rates_are_the_released_ones() -> None:
    decoder = decoder_of("released")
    assert [decoder.samples(frames) for frames in (0, 1, 2, 700)] == [
        0,
        1920 - 555,
        2 * 1920 - 555,
        700 * 1920 - 555,
    ]
    assert decoder.samples_per_frame == 1920


@pytest.mark.parametrize("name", CONFIGS)
def test_samples_equal_those_of_each_call_when_frames_come_singly(name: str) -> None:
    decoder, states, total = decoder_of(name), fresh_states(decoder_of(name)), 0
    for frames, code in enumerate(make_codes(6).split(1), start=1):
        total += len(decoder.decode(states, [piece_of(0, code)])[0])
        assert total == decoder.samples(frames)


def test_stream_gives_nothing_at_first_when_start_does_not_reach_through() -> None:
    decoder = decoder_of("bare")
    states = fresh_states(decoder)
    pieces = [piece_of(0, code) for code in make_codes(5).split(1)]
    first = [len(decoder.decode(states, [piece])[0]) for piece in pieces]
    assert first == [0, 0, 0, 2, 2]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sessions", [1, 4, 16, 64])
def test_batches_equal_one_shots_when_sessions_join_and_leave_at_random(
    name: str, sessions: int
) -> None:
    decoder, rng = decoder_of(name), np.random.default_rng(sessions)
    states, free = fresh_states(decoder, slots=sessions // 2 + 1), list(range(sessions // 2 + 1))
    codes = {each: make_codes(int(rng.integers(1, 24)), each) for each in range(sessions)}
    left, slots = dict(codes), dict[int, int]()
    parts: dict[int, list[torch.Tensor]] = {each: [] for each in codes}
    while left:
        for session in left:
            if session not in slots and free and rng.random() < 0.5:
                slots[session] = free.pop()
                states.reset(slots[session])
        chosen = [each for each in slots if rng.random() < 0.7]
        rng.shuffle(chosen)
        if not chosen:
            continue
        counts = {each: int(rng.integers(1, 9)) for each in chosen}
        pieces = [piece_of(slots[each], left[each][: counts[each]]) for each in chosen]
        for each, samples in zip(chosen, decoder.decode(states, pieces), strict=True):
            parts[each].append(samples)
            left[each] = left[each][counts[each] :]
            # One in ten leaves early.
            if not len(left[each]) or rng.random() < 0.1:
                codes[each] = codes[each][: len(codes[each]) - len(left.pop(each))]
                free.append(slots.pop(each))
    for each, own in codes.items():
        joined = torch.cat(parts[each])
        assert len(joined) == decoder.samples(len(own))
        # The module refuses frames that do not reach through.
        if len(joined):
            torch.testing.assert_close(joined, one_shot(module_of(name), own), **EXACT)


def test_odd_numbers_of_frames_are_decoded_as_even_ones_when_a_session_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """oneDNN keeps what it compiles for each number of frames."""
    decoder, decoded = decoder_of("odd"), []
    forward = StreamDecoder.forward

    def counted(self: StreamDecoder, states: StreamStates, batch: Batch, codes: Tensor) -> Tensor:
        decoded.append(tuple(codes.shape[:2]))
        return forward(self, states, batch, codes)

    monkeypatch.setattr(StreamDecoder, "forward", counted)
    stream(decoder, make_codes(78), range(1, 13))
    assert {frames for _, frames in decoded} == {1, 2, 3, 4, 6, 8, 10, 12}
    decoded.clear()
    states = fresh_states(decoder, 2)
    decoder.decode(states, [piece_of(0, make_codes(5)), piece_of(1, make_codes(5))])
    assert decoded == [(2, 5)]


def test_states_are_as_they_were_when_a_call_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, codes = StreamDecoder(vocoder_of(module_of("odd"))), make_codes(12)
    states = fresh_states(decoder, 2)
    parts = [decoder.decode(states, [piece_of(0, codes[:5]), piece_of(1, codes[:2])])[0]]
    before = states.memory.clone()
    with monkeypatch.context() as patch:
        patch.setattr(Snake, "__call__", lambda *_args, **_named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoder.decode(states, [piece_of(0, codes[5:]), piece_of(1, codes[2:])])
    assert torch.equal(states.memory, before)
    parts += decoder.decode(states, [piece_of(0, codes[5:])])
    torch.testing.assert_close(torch.cat(parts), one_shot(module_of("odd"), codes), **EXACT)


@pytest.mark.parametrize("name", CONFIGS)
def test_state_takes_the_same_memory_when_stream_is_long(name: str) -> None:
    decoder = decoder_of(name)
    states = fresh_states(decoder, 3)
    place = states.memory.data_ptr()
    decoder.decode(states, [piece_of(1, make_codes(90))])
    assert states.memory.untyped_storage().nbytes() == 3 * decoder.state_bytes
    assert states.memory.data_ptr() == place
    assert not states.memory[[0, 2]].any(), "a call wrote into the slot of another session"


def _with_wide_kernel(module: Qwen3OmniMoeCode2Wav) -> None:
    module.decoder[1].block[1] = Qwen3OmniMoeCausalTransConvNet(32, 16, 9, 3)


def _with_stride(module: Qwen3OmniMoeCode2Wav) -> None:
    module.decoder[0] = Qwen3OmniMoeCausalConvNet(32, 32, 4, stride=2)


def _with_unknown_layer(module: Qwen3OmniMoeCode2Wav) -> None:
    module.decoder[-2] = nn.Tanh()


def _without_window(module: Qwen3OmniMoeCode2Wav) -> None:
    module.pre_transformer.config.sliding_window = 0


def _with_full_attention(module: Qwen3OmniMoeCode2Wav) -> None:
    class FullAttention(type(module.config)):  # type: ignore[misc]
        layer_types = ("full_attention",)

    module.pre_transformer.config = FullAttention()


def _with_growing_rope(module: Qwen3OmniMoeCode2Wav) -> None:
    module.pre_transformer.rotary_emb.rope_type = "dynamic"


@pytest.mark.parametrize(
    "change",
    [
        _with_wide_kernel,
        _with_stride,
        _with_unknown_layer,
        _without_window,
        _with_full_attention,
        _with_growing_rope,
    ],
)
def test_decoder_refuses_module_when_it_cannot_be_streamed(change: object) -> None:
    assert callable(change)
    module = build_module(**CONFIGS["odd"])
    change(module)
    with pytest.raises(FailedPrecondition, match="can't stream"):
        StreamDecoder(vocoder_of(module))
