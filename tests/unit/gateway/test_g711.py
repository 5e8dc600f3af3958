"""G.711 against Python's audioop, numbers of the ITU's tables, and audio in pieces."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import soxr

from antiphon_gateway.media import g711
from antiphon_gateway.media.audio_out import pcm16_of
from antiphon_gateway.media.live_audio import (
    A_LAW,
    LIVE_FORMATS,
    MU_LAW,
    PCM16,
    LiveEncoder,
    LiveFormat,
)

BYTES = bytes(range(256))
SAMPLES = np.arange(-(1 << 15), 1 << 15, dtype=np.int16)


@pytest.fixture(scope="module")
def audioop() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("audioop", reason="Python 3.13 has it no more")


def test_g711_is_what_audioop_makes_of_every_byte_and_sample(audioop: Any) -> None:
    pcm16 = SAMPLES.astype("<i2").tobytes()
    assert g711.MU_LAW.decode(BYTES) == audioop.ulaw2lin(BYTES, 2)
    assert g711.A_LAW.decode(BYTES) == audioop.alaw2lin(BYTES, 2)
    assert g711.MU_LAW.encode(SAMPLES) == audioop.lin2ulaw(pcm16, 2)
    assert g711.A_LAW.encode(SAMPLES) == audioop.lin2alaw(pcm16, 2)


@pytest.mark.parametrize(
    ("law", "values"),
    [
        # Table 2 of G.711, times 4 (14 of 16 bits): both ends, and the smallest steps.
        (g711.MU_LAW, {0x80: 32124, 0x00: -32124, 0xFF: 0, 0xFE: 8, 0x7E: -8, 0xEF: 132}),
        # Table 1, times 8 (13 of 16 bits).
        (g711.A_LAW, {0xAA: 32256, 0x2A: -32256, 0xD5: 8, 0x55: -8, 0xC5: 264, 0xF5: 528}),
    ],
)
def test_g711_bytes_are_the_numbers_of_the_tables(
    law: g711.Companding, values: dict[int, int]
) -> None:
    decoded = np.frombuffer(law.decode(bytes(values)), "<i2")
    assert dict(zip(values, decoded.tolist(), strict=True)) == values


@pytest.mark.parametrize("law", [g711.MU_LAW, g711.A_LAW], ids=lambda law: law.name)
def test_g711_decodes_to_what_encodes_to_it_again(law: g711.Companding) -> None:
    decoded = np.frombuffer(law.decode(BYTES), "<i2")
    again = np.frombuffer(law.decode(law.encode(decoded)), "<i2")
    assert (again == decoded).all()
    assert law.decode(b"") == law.encode(SAMPLES[:0]) == b""


def speech(rate_hz: int, seconds: float = 0.7) -> np.ndarray[Any, Any]:
    at = np.arange(round(rate_hz * seconds)) / rate_hz
    return (0.4 * np.sin(2 * np.pi * 440 * at) + 0.2 * np.sin(2 * np.pi * 1500 * at)).astype(
        np.float32
    )


@pytest.mark.parametrize("rate_hz", [16_000, 24_000])
@pytest.mark.parametrize("wanted", LIVE_FORMATS.values(), ids=LIVE_FORMATS)
def test_live_audio_in_pieces_is_that_of_the_whole(wanted: LiveFormat, rate_hz: int) -> None:
    samples = speech(rate_hz)
    whole = samples
    if rate_hz != wanted.rate_hz:
        whole = soxr.resample(samples, rate_hz, wanted.rate_hz)
    expected = pcm16_of(whole)
    random = np.random.default_rng(3)
    for most in (1, 480, 1920, len(samples)):
        encoder, sent, at = LiveEncoder(wanted, rate_hz), b"", 0
        while at < len(samples):
            size = int(random.integers(1, most + 1)) if most < len(samples) else most
            sent += encoder.add(samples[at : at + size])
            at += size
        sent += encoder.finish()
        law = wanted.companding
        assert sent == (expected.tobytes() if law is None else law.encode(expected))


def test_live_audio_has_the_sizes_that_its_format_says() -> None:
    assert [each.sample_bytes for each in (PCM16, MU_LAW, A_LAW)] == [2, 1, 1]
    assert PCM16.pcm16(b"\1\2") == b"\1\2"
    assert MU_LAW.pcm16(b"\xff\x80") == np.array([0, 32124], "<i2").tobytes()
    assert LiveEncoder(MU_LAW, 8_000).finish() == b""
