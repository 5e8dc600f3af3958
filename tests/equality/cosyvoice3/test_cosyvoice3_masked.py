"""Code2wav streams what the vendor's code makes with the block mask in one pass, for long answers.

The texts' answers are a few blocks long; see `test_cosyvoice3_services.py`. Here random codes reach
through many, with prompts that end anywhere in a block.

The phase of the vendor's source is a float32 sum of all pitches so far. The rounding of the flow,
1e-6 of a mel frame, moves it by 1e-3 after ten seconds. So frames and vocoder are compared each by
itself, and samples of the two together where the sum is short.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.cosyvoice3.code2wav.load import load_decoder
from antiphon_services.cosyvoice3.code2wav.mel_stream import MelStream
from antiphon_services.flow.work import run_to_end
from antiphon_testkit.flat_settings import stage_config
from tests.equality.cosyvoice3.cosy_asking import AUDIO_TOLERANCE, SAMPLES_PER_CODE, Recorded
from tests.equality.cosyvoice3.cosy_cases import AUDIO_STEP
from tests.equality.cosyvoice3.cosy_masked import (
    CODES_CASES,
    MEL_STEP,
    CodesCase,
    long_mel,
    voice_and_codes,
)

pytestmark = pytest.mark.equality

MEL_TOLERANCE = 1e-5
"""Frames lie within 10."""
SHORT = 60
LONG_TOLERANCE = 1e-3
PAGE = 10 * 3 * 2 * 2 * 50 * 64 * 4
CACHES = {"none": 0, "few": 3, "all": 20}


@pytest.fixture(scope="module", params=CACHES)
def decoder(request: pytest.FixtureRequest, cosy_checkpoints: dict[str, Path]) -> SpeechDecoder:
    torch.set_num_threads(1)
    config = stage_config(flow_cache_bytes=CACHES[request.param] * PAGE)
    return load_decoder(cosy_checkpoints["voices"], config)


@torch.inference_mode()
def streamed(
    decoder: SpeechDecoder, case: CodesCase, cut: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Mel frames and samples of codes that come `cut` at a time."""
    tensors, codes = voice_and_codes(case)
    voice = decoder.voice(tensors["speaker"], tensors["prompt_codes"], tensors["prompt_mel"])
    stream = MelStream(decoder.flow, voice, decoder.pages)
    vocoder, ids = decoder.vocoder.open(), torch.from_numpy(codes.astype(np.int64))
    frames, samples = [], []
    for come in [*range(0, len(codes), cut), len(codes)]:
        finished = come == len(codes)
        while stream.ready(come, finished=finished):
            mel = run_to_end(stream.advance(ids[:come], finished=finished))
            frames.append(mel)
            samples.append(run_to_end(decoder.vocoder.decode(vocoder, mel, finished=stream.done)))
    stream.close()
    assert decoder.pages.free == decoder.pages.count
    return torch.cat(frames).numpy(), torch.cat(samples).numpy()


@pytest.mark.parametrize("case", CODES_CASES, ids=lambda case: case.name)
def test_stream_is_one_masked_pass(
    case: CodesCase, decoder: SpeechDecoder, recorded: Recorded
) -> None:
    for cut in (1, 7, case.codes):
        mel, samples = streamed(decoder, case, cut)
        told = recorded.masked[f"{case.name}/mel"]
        np.testing.assert_allclose(
            mel.reshape(-1)[::MEL_STEP], told, rtol=0, atol=MEL_TOLERANCE, err_msg=f"cut {cut}"
        )
        assert len(samples) == SAMPLES_PER_CODE * case.codes
        tolerance = AUDIO_TOLERANCE if case.codes <= SHORT else LONG_TOLERANCE
        heard = samples[::AUDIO_STEP]
        np.testing.assert_allclose(heard, recorded.masked[case.name], rtol=0, atol=tolerance)


@torch.inference_mode()
@pytest.mark.parametrize("case", CODES_CASES, ids=lambda case: case.name)
def test_whole_delivery_is_one_pass_without_the_mask(
    case: CodesCase, decoder: SpeechDecoder, recorded: Recorded
) -> None:
    """The longest has 606 frames, with its prompt 726."""
    tensors, codes = voice_and_codes(case)
    voice = decoder.voice(tensors["speaker"], tensors["prompt_codes"], tensors["prompt_mel"])
    mel = run_to_end(decoder.flow.run(voice, torch.from_numpy(codes.astype(np.int64))))
    np.testing.assert_allclose(
        mel.numpy().reshape(-1)[::MEL_STEP],
        recorded.masked[f"{case.whole_name}/mel"],
        rtol=0,
        atol=MEL_TOLERANCE,
    )
    samples = run_to_end(decoder.open(voice, whole=True).advance(codes, finished=True)).numpy()
    assert len(samples) == SAMPLES_PER_CODE * case.codes
    tolerance = AUDIO_TOLERANCE if case.codes <= SHORT else LONG_TOLERANCE
    np.testing.assert_allclose(
        samples[::AUDIO_STEP], recorded.masked[case.whole_name], rtol=0, atol=tolerance
    )


@torch.inference_mode()
@pytest.mark.parametrize("cut", [1, 50, 333])
@pytest.mark.parametrize("decoder", ["none"], indirect=True)
def test_vocoder_carries_its_state_through_twenty_seconds(
    cut: int, decoder: SpeechDecoder, recorded: Recorded
) -> None:
    """The vocoder has no part in the flow's cache, so one size of that is enough."""
    pieces = torch.from_numpy(long_mel()).split(cut)
    stream = decoder.vocoder.open()
    made = [
        run_to_end(decoder.vocoder.decode(stream, piece, finished=number == len(pieces)))
        for number, piece in enumerate(pieces, 1)
    ]
    samples = torch.cat(made).numpy()
    assert len(samples) == 480 * 1000
    np.testing.assert_allclose(
        samples[::AUDIO_STEP], recorded.masked["long-mel"], rtol=0, atol=1e-5
    )
