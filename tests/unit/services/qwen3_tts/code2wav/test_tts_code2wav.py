"""Streamed audio equals what the vendor's package makes of all frames in one forward."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_tts import CODEC_FOLDER
from antiphon.values.chunk import Tensor as Array
from antiphon.values.chunk import Tensors
from antiphon_services.qwen3_tts.code2wav.module import load_codec_decoder
from antiphon_services.vocoder.stream import StreamDecoder, StreamPiece
from tests.equality.qwen3_tts.cases import all_cases

KINDS = ("custom_voice", "base")
CASES = {case.name: case for case in all_cases()}
AUDIO_STEP = 13
SAMPLES_PER_FRAME = 1920
TOLERANCE = 1e-4
TOLD = Path(__file__).parents[4] / "equality" / "qwen3_tts" / "recorded.json"


def cut(codes: Array, sizes: Iterable[int]) -> list[Array]:
    ends = np.cumsum(list(sizes))
    return [each for each in np.split(codes, ends) if len(each)]


def stream(decoder: StreamDecoder, parts: Sequence[Array], *, prime: Array | None = None) -> Tensor:
    states = decoder.new_states(1)
    states.reset(0)
    if prime is not None:
        decoder.decode(states, [StreamPiece(0, prime)])
    return torch.cat([decoder.decode(states, [StreamPiece(0, part)])[0] for part in parts])


def check(audio: Tensor, recorded: Array) -> None:
    heard = audio.numpy()[::AUDIO_STEP]
    assert heard.shape == recorded.shape
    assert np.abs(heard - recorded).max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 7, 12, 40])
def test_audio_equals_the_recorded_when_chunks_have_any_size(
    kind: str, size: int, decoders: dict[str, StreamDecoder], recorded: Tensors
) -> None:
    codes = recorded[f"decoded-{kind}/codes"]
    parts = cut(codes, [size] * (len(codes) // size))
    audio = stream(decoders[kind], parts)
    assert len(audio) == SAMPLES_PER_FRAME * len(codes)
    check(audio, recorded[f"decoded-{kind}/audio"])


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_a_prefix_are_those_of_the_whole(
    kind: str, decoders: dict[str, StreamDecoder], recorded: Tensors
) -> None:
    codes, decoder = recorded[f"decoded-{kind}/codes"], decoders[kind]
    whole = stream(decoder, [codes])
    for frames in (1, 6, 19):
        prefix = stream(decoder, [codes[:frames]])
        assert len(prefix) == SAMPLES_PER_FRAME * frames
        torch.testing.assert_close(prefix, whole[: len(prefix)], atol=1e-5, rtol=0)


def test_every_recorded_answer_is_heard_when_frames_come_as_the_talker_makes_them(
    decoders: dict[str, StreamDecoder], recorded: Tensors
) -> None:
    cases = json.loads(TOLD.read_text())["cases"]
    for case in cases:
        name = case["case"]
        base = name.startswith(("vector", "codes", "two-draws"))
        codes = recorded[f"{name}/codes"]
        recording = CASES[name].recording.name
        prime = recorded[f"{recording}/codes"] if name.startswith("codes") else None
        parts = cut(codes, [1, 1, 2, 3, 4])
        audio = stream(decoders["base" if base else "custom_voice"], parts, prime=prime)
        assert len(audio) == case["samples"] == SAMPLES_PER_FRAME * len(codes)
        check(audio, recorded[f"{name}/audio"])


def test_clone_by_codes_sounds_otherwise_when_the_decoder_is_not_primed(
    decoders: dict[str, StreamDecoder], recorded: Tensors
) -> None:
    codes = recorded["codes-4-trailing/codes"]
    audio = stream(decoders["base"], [codes])
    heard = audio.numpy()[::AUDIO_STEP]
    assert np.abs(heard - recorded["codes-4-trailing/audio"]).max() > 100 * TOLERANCE


def test_sessions_in_company_hear_their_own_audio(
    decoders: dict[str, StreamDecoder], recorded: Tensors
) -> None:
    decoder = decoders["base"]
    names = ["codes-1-trailing", "vector-4-trailing", "codes-3-trailing", "vector-0-whole"]
    states = decoder.new_states(len(names))
    primed = []
    for slot, name in enumerate(names):
        states.reset(slot)
        if name.startswith("codes"):
            primed.append(StreamPiece(slot, recorded["reference/codes"]))
    decoder.decode(states, primed)
    left = {slot: recorded[f"{name}/codes"] for slot, name in enumerate(names)}
    heard: dict[int, list[Tensor]] = {slot: [] for slot in left}
    while left:
        # Pieces of different lengths, one of each session in a call.
        pieces = [StreamPiece(slot, codes[: 1 + slot]) for slot, codes in left.items()]
        for piece, samples in zip(pieces, decoder.decode(states, pieces), strict=True):
            heard[piece.slot].append(samples)
            left[piece.slot] = left[piece.slot][len(piece.codes) :]
        left = {slot: codes for slot, codes in left.items() if len(codes)}
    for slot, name in enumerate(names):
        check(torch.cat(heard[slot]), recorded[f"{name}/audio"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decoder_config": None}, "decoder_config"),
        ({"decoder_config": {"codebook_dim": 20}}, "according to its configuration"),
    ],
)
def test_codec_is_refused_when_configuration_and_weights_differ(
    change: dict[str, dict[str, int] | None],
    named: str,
    checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(checkpoints["base"], tmp_path, dirs_exist_ok=True)
    path = tmp_path / CODEC_FOLDER / "config.json"
    config = json.loads(path.read_text())
    part = change["decoder_config"]
    config["decoder_config"] = part and config["decoder_config"] | part
    path.write_text(json.dumps(config))
    with pytest.raises(FailedPrecondition, match=named):
        load_codec_decoder(tmp_path, torch.float32, "cpu")
