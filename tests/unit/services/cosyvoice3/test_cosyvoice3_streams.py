"""Streams of code2wav: blocks leave as they are complete, and are those of one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.pipelines.cosyvoice3 import AUDIO, CODES, FIRST, MEL_BINS, SPEAKER_WIDTH, VOICE
from antiphon.runtime.engine import Emitted, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.cosyvoice3.code2wav.engine import Code2WavEngine
from antiphon_services.cosyvoice3.code2wav.load import NO_SAMPLING, load_decoder
from antiphon_testkit.drive_engine import SegmentOutput, run_segment, run_segments
from antiphon_testkit.flat_settings import stage_config

STREAMED = SegmentSettings("", NO_SAMPLING, frozenset({AUDIO}))
WHOLE = SegmentSettings("", NO_SAMPLING, frozenset({AUDIO}), whole_inputs=frozenset({CODES}))
SLOTS = 8
TOLERANCE = 1e-4
# The tiny checkpoint's: 10 evaluations, 3 layers, 2 halves, keys and values, 50 frames of 64.
PAGE = 10 * 3 * 2 * 2 * 50 * 64 * 4
BLOCK, LOOK_AHEAD, HELD = 25, 3, 3

Opened = Callable[[int], tuple[Code2WavEngine, SpeechDecoder]]


@pytest.fixture(scope="module")
def opened(checkpoints: dict[str, Path]) -> Opened:
    """An engine with room for so many blocks."""

    def make(pages: int) -> tuple[Code2WavEngine, SpeechDecoder]:
        decoder = load_decoder(checkpoints["voices"], stage_config(flow_cache_bytes=pages * PAGE))
        return Code2WavEngine(decoder, context_limit=400, slots=SLOTS), decoder

    return make


def voice(count: int, seed: int = 0) -> Tensors:
    draw = np.random.default_rng(seed)
    return {
        "speaker": draw.standard_normal((1, SPEAKER_WIDTH), np.float32),
        "prompt_codes": draw.integers(FIRST, size=count, dtype=np.int32),
        "prompt_mel": draw.standard_normal((2 * count, MEL_BINS), np.float32),
    }


def codes(count: int, seed: int = 1) -> Tensor:
    return np.random.default_rng(seed).integers(FIRST, size=(count, 1), dtype=np.uint16)


def asked(prompt: int, spoken: Tensor, cut: int, *, bare_end: bool = True) -> list[InputChunk]:
    """A voice and codes in chunks of `cut`; the last of them ends, or one without codes does."""
    chunks = [InputChunk(VOICE, 0, voice(prompt), True, FinishReason.STOP)]
    for start in range(0, len(spoken), cut):
        last = not bare_end and start + cut >= len(spoken)
        reason = FinishReason.STOP if last else None
        part = {CODES: spoken[start : start + cut]}
        chunks.append(InputChunk(CODES, start, part, last, reason))
    if bare_end:
        chunks.append(InputChunk(CODES, len(spoken), {}, True, FinishReason.STOP))
    return chunks


def parts_of(output: SegmentOutput) -> list[int]:
    """How many codes each chunk has samples of; checks positions."""
    assert output.failed is None, output.failed
    position, counts = 0, []
    for each in output.emitted:
        assert each.position == position
        if each.tensors:
            counts.append(len(each.tensors[CODES]))
            assert len(each.tensors["samples"]) == 960 * counts[-1]
            position += 960 * counts[-1]
    return counts


def samples_of(output: SegmentOutput) -> Tensor:
    parts_of(output)
    return output.tensors(AUDIO)["samples"]


# Ends at, before and after the edge of a block, and of a code's look-ahead to it.
ENDS = ((0, 1), (0, 25), (0, 28), (0, 29), (37, 13), (37, 16), (37, 41), (37, 70), (25, 60))


@pytest.mark.parametrize(("prompt", "count"), ENDS)
def test_stream_is_one_pass_however_it_is_cut_and_kept(
    prompt: int, count: int, opened: Opened
) -> None:
    spoken = codes(count)
    expected = samples_of(run_segment(opened(0)[0], STREAMED, asked(prompt, spoken, count)))
    for pages in (0, 2, 40):
        engine, decoder = opened(pages)
        for cut in (1, 7, 26):
            output = run_segment(engine, STREAMED, asked(prompt, spoken, cut, bare_end=cut == 7))
            np.testing.assert_allclose(samples_of(output), expected, rtol=0, atol=TOLERANCE)
            np.testing.assert_array_equal(output.tensors(AUDIO)[CODES], spoken)
        assert decoder.pages.free == pages


def test_mask_makes_another_sound_than_whole_delivery(opened: Opened) -> None:
    engine, spoken = opened(8)[0], codes(70)
    streamed = samples_of(run_segment(engine, STREAMED, asked(37, spoken, 70)))
    whole = samples_of(run_segment(engine, WHOLE, asked(37, spoken, 7)))
    assert np.abs(streamed - whole).max() > 100 * TOLERANCE


def begin(engine: Code2WavEngine, key: SegmentKey, prompt: int) -> None:
    engine.admit(key, STREAMED)
    engine.accept(key, InputChunk(VOICE, 0, voice(prompt), True, FinishReason.STOP))


def fed(engine: Code2WavEngine, key: SegmentKey, spoken: Tensor) -> list[tuple[int, int]]:
    """Feed codes one by one: after how many came how many had samples, each time some left."""
    left, seen = 0, []
    for position in range(len(spoken)):
        chunk = InputChunk(CODES, position, {CODES: spoken[position : position + 1]})
        engine.accept(key, chunk)
        while engine.awaited_edge(key) is None:
            for event in engine.step():
                assert isinstance(event, Emitted)
                left += len(event.tensors[CODES])
                seen.append((position + 1, left))
    return seen


@pytest.mark.parametrize("prompt", [0, 10, 37, 50])
def test_kept_blocks_leave_as_soon_as_they_are_complete(prompt: int, opened: Opened) -> None:
    engine, key = opened(40)[0], SegmentKey("kept", 0)
    begin(engine, key, prompt)
    ends = [end - prompt for end in range(BLOCK, prompt + 90, BLOCK) if end > prompt]
    expected = [(end + LOOK_AHEAD, end - HELD) for end in ends if end + LOOK_AHEAD <= 80]
    assert fed(engine, key, codes(80)) == [each for each in expected if each[1] > 0]
    engine.release(key)


def test_blocks_that_are_computed_again_wait_for_more_of_them(opened: Opened) -> None:
    """1, 2, then 4 blocks, as a stream without room does."""
    engine, key = opened(0)[0], SegmentKey("again", 0)
    begin(engine, key, 37)
    blocks = [50, 100, 200, 300]
    expected = [(end - 37 + LOOK_AHEAD, end - 37 - HELD) for end in blocks]
    assert fed(engine, key, codes(300)) == expected
    engine.release(key)


def test_prompt_is_computed_before_the_first_code(opened: Opened) -> None:
    engine, decoder = opened(40)
    key = SegmentKey("early", 0)
    begin(engine, key, 80)
    while engine.awaited_edge(key) is None:
        assert engine.step() == []
    # The fourth block needs codes.
    assert decoder.pages.free == 40 - 3
    engine.release(key)
    assert decoder.pages.free == 40


def test_release_in_the_middle_of_a_block_gives_its_pages_back(opened: Opened) -> None:
    engine, decoder = opened(4)
    key = SegmentKey("cancelled", 0)
    begin(engine, key, 37)
    engine.accept(key, InputChunk(CODES, 0, {CODES: codes(300)}))
    engine.step()
    assert engine.awaited_edge(key) is None
    assert decoder.pages.free < 4
    engine.release(key)
    assert decoder.pages.free == 4


def test_eight_streams_that_share_few_pages_are_what_each_is_alone(opened: Opened) -> None:
    spoken = [codes(count, count) for count in (90, 41, 28, 13, 66, 1, 25, 53)]
    prompts = (0, 37, 25, 60, 10, 5, 50, 24)
    chunks = [asked(*each, cut=5) for each in zip(prompts, spoken, strict=True)]
    alone = [samples_of(run_segment(opened(0)[0], STREAMED, each)) for each in chunks]
    engine, decoder = opened(5)
    keys = [SegmentKey(f"{number}", 0) for number in range(len(chunks))]
    settings: Sequence[tuple[SegmentSettings, list[InputChunk]]] = [(STREAMED, c) for c in chunks]
    together = run_segments(engine, dict(zip(keys, settings, strict=True)))
    for expected, output in zip(alone, together.values(), strict=True):
        np.testing.assert_allclose(samples_of(output), expected, rtol=0, atol=TOLERANCE)
    assert decoder.pages.free == 5


def test_utterances_of_one_stream_do_not_meet(opened: Opened) -> None:
    engine, decoder = opened(6)
    first, second = codes(40, 3), codes(31, 4)
    marked = second.copy()
    marked[0] += FIRST
    chunks = asked(37, np.concatenate((first, marked)), cut=9)
    output = run_segment(engine, STREAMED, chunks)
    expected = [
        samples_of(run_segment(engine, STREAMED, asked(37, each, cut=100)))
        for each in (first, second)
    ]
    made = samples_of(output)
    np.testing.assert_allclose(made, np.concatenate(expected), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(output.tensors(AUDIO)[CODES], np.concatenate((first, marked)))
    assert decoder.pages.free == 6


def test_all_zero_codes_are_one_sound_however_they_come(opened: Opened) -> None:
    engine, spoken = opened(6)[0], np.zeros((60, 1), np.uint16)
    at_once = samples_of(run_segment(engine, STREAMED, asked(37, spoken, 60)))
    one_by_one = samples_of(run_segment(engine, STREAMED, asked(37, spoken, 1)))
    np.testing.assert_allclose(one_by_one, at_once, rtol=0, atol=TOLERANCE)
    assert 0 < np.abs(at_once).max() < 0.99


def test_a_stream_without_codes_ends_without_samples(opened: Opened) -> None:
    engine, decoder = opened(6)
    output = run_segment(engine, STREAMED, asked(60, codes(0), cut=1))
    assert output.completed is not None
    assert output.tensors(AUDIO) == {}
    assert decoder.pages.free == 6
