"""The audio decoder gives the vendor's samples, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from antiphon.pipelines.ming_tts import LATENT_SAMPLES, LATENT_WIDTH
from antiphon_services.ming_tts.code2wav.decoder import AudioDecoder, LatentPiece
from antiphon_services.ming_tts.code2wav.module import AudioDecoderModule
from antiphon_testkit.ming_tts.tiny_checkpoint import PRESETS, build_tiny_ming
from tests.equality.ming_tts.ming_asking import Recorded
from tests.equality.ming_tts.ming_cases import AUDIO_STEP, SEED, Case, all_cases
from tests.equality.ming_tts.ming_in_process import TalkerInProcess, load_decoder

TOLERANCE = 1e-4
STREAMED_TOLERANCE = 2e-6


def decode(module: AudioDecoderModule, latents: torch.Tensor, pieces: Sequence[int]) -> np.ndarray:
    decoder = AudioDecoder(module)
    state, made = decoder.new_stream(), []
    parts = torch.split(latents, list(pieces))
    for number, part in enumerate(parts, 1):
        ((samples, state),) = decoder.advance([LatentPiece(state, part, number == len(parts))])
        made.append(samples)
    return torch.cat(made).numpy()


@pytest.mark.parametrize("case", list(all_cases())[::4], ids=lambda case: case.name)
def test_samples(
    case: Case, talker: TalkerInProcess, ming_checkpoint: Path, recorded: Recorded
) -> None:
    said = talker.speak(case, talker.prompt(case), recorded.seed(case))
    latents = torch.from_numpy(said.latents)
    samples = decode(load_decoder(ming_checkpoint), latents, [len(latents)])
    assert len(samples) == LATENT_SAMPLES * len(latents)
    assert_allclose(samples[::AUDIO_STEP], recorded.of(case)["audio"], atol=TOLERANCE)


@pytest.mark.parametrize("preset", PRESETS)
def test_pieces_joined_are_the_whole(preset: str, tmp_path: Path) -> None:
    build_tiny_ming(tmp_path / "tiny", PRESETS[preset], SEED)
    module = load_decoder(tmp_path / "tiny")
    latents = torch.randn(29, LATENT_WIDTH, generator=torch.Generator().manual_seed(3))
    whole = decode(module, latents, [29])
    for pieces in ([1] * 29, [4] * 7 + [1], [2, 1, 7, 19], [28, 1], [1, 28]):
        assert_allclose(decode(module, latents, pieces), whole, atol=STREAMED_TOLERANCE)
    one = decode(module, latents[:1], [1])
    assert len(one) == LATENT_SAMPLES


@pytest.mark.parametrize("preset", PRESETS)
def test_streams_of_one_call_are_those_of_calls_alone(preset: str, tmp_path: Path) -> None:
    """Eight streams that differ in age, in the size of their pieces and in their ends; some pieces
    complete no row, and one is a bare end."""
    build_tiny_ming(tmp_path / "tiny", PRESETS[preset], SEED)
    module = load_decoder(tmp_path / "tiny")
    generator = torch.Generator().manual_seed(5)
    sizes = [[1], [1, 1], [4] * 7, [29, 1, 0], [1, 28], [2, 1, 7, 19], [3, 0], [12, 12, 12]]
    streams = [torch.randn(sum(each), LATENT_WIDTH, generator=generator) for each in sizes]
    decoder = AudioDecoder(module)
    states = [decoder.new_stream() for _ in sizes]
    made: list[list[torch.Tensor]] = [[] for _ in sizes]
    for call in range(max(i + len(each) for i, each in enumerate(sizes))):
        # A stream begins one call after the one before it.
        due = [i for i, each in enumerate(sizes) if 0 <= call - i < len(each)]
        pieces = []
        for i in due:
            start, size = sum(sizes[i][: call - i]), sizes[i][call - i]
            part = streams[i][start : start + size]
            pieces.append(LatentPiece(states[i], part, call - i == len(sizes[i]) - 1))
        for i, (samples, state) in zip(due, decoder.advance(pieces), strict=True):
            made[i].append(samples)
            states[i] = state
    for latents, each in zip(streams, made, strict=True):
        whole = decode(module, latents, [len(latents)])
        assert_allclose(torch.cat(each).numpy(), whole, rtol=0, atol=STREAMED_TOLERANCE)


def test_a_call_changes_no_state(ming_checkpoint: Path) -> None:
    """A call that is repeated gives what it gave, as the fallback after a fault needs."""
    decoder = AudioDecoder(load_decoder(ming_checkpoint))
    latents = torch.randn(24, LATENT_WIDTH, generator=torch.Generator().manual_seed(6))
    results = decoder.advance(
        [LatentPiece(decoder.new_stream(), latents[start : start + 4], False) for start in (0, 8)]
    )
    pieces = [LatentPiece(state, latents[16:], True) for _, state in results]
    first, second = decoder.advance(pieces), decoder.advance(pieces)
    for (once, _), (again, _) in zip(first, second, strict=True):
        assert torch.equal(once, again)


@pytest.mark.parametrize("left", [0, 8])
def test_a_window_without_look_ahead_is_wrong_at_every_boundary(
    left: int, ming_checkpoint: Path
) -> None:
    """Decoding each piece behind some earlier latents alone, as one server does, is another sound:
    the last latent of a piece lacks the next one, and the last rows lack later windows. The stream
    is exact there."""
    module, size = load_decoder(ming_checkpoint), 4
    latents = torch.randn(24, LATENT_WIDTH, generator=torch.Generator().manual_seed(4))
    whole = decode(module, latents, [24])
    loudness = float(np.sqrt(np.mean(whole**2)))
    streamed = decode(module, latents, [size] * 6)
    for end in range(size, 24, size):
        start = max(0, end - size - left)
        window = decode(module, latents[start:end], [end - start])
        boundary = slice(end * LATENT_SAMPLES - 1764, end * LATENT_SAMPLES)
        apart = np.abs(window[-1764:] - whole[boundary]).max()
        assert apart > 0.5 * loudness, (end, apart, loudness)
        around = slice(boundary.start, boundary.stop + 1764)
        assert_allclose(streamed[around], whole[around], atol=STREAMED_TOLERANCE)
