"""Trains code2wav to reproduce the waveform of the phase-locked vocoder from its codes.

The target is a function of the codes, so simple waveform and spectrum losses are sufficient. The
target is synthesized from the features before quantization, because the codes of a word are almost
unique. Codes 6 and 7 do not affect the sound, so all of their embeddings are identical. The
embeddings of code 5 only differ if the pitch differs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from models.recipe import codes as coding
from models.recipe.acoustics import FFT, FRAME, HOPS, RATE, Floats, mel_filters
from models.recipe.codes import BOOKS, ENTRIES, GROUPS, PITCH_GROUP, Codes
from models.recipe.units import PAUSES, Lexicon
from models.recipe.vocoder import synthesise

SHORTFALL = 555
CONTEXT, CROP, BATCH = 4, 8, 8
STREAM_FRAMES, STREAM_STEPS = 6000, 250
FREE_PITCH_SHARE, START_SHARE = 0.3, 0.15
SCALES = (2048, 1024, 512, 256, 128)
SCALES_A_STEP = 3
WAVE_WEIGHT, COMPLEX_WEIGHT = 5.0, 0.5
AMPLITUDE_FLOOR = 2e-3


@dataclass(frozen=True, slots=True)
class Stream:
    """Speech from which training samples are cropped.

    `codes` has shape [T, 8], `samples` has shape [1920 * T], and `starts` contains the first frames
    of sentences.
    """

    codes: Codes
    samples: Floats
    starts: list[int]


def make_stream(lexicon: Lexicon, texts: list[list[str]], seed: int) -> Stream:
    """Return sentences of the repertoire and of random words, in random voices."""
    chance = random.Random(seed)
    words = sorted(name for name in lexicon.units if name not in PAUSES)
    found: list[Codes] = []
    log_mels, voiced, starts, frames = [], [], [], 0
    while frames < STREAM_FRAMES:
        names = chance.choice(texts) if chance.random() < 0.4 else salad(words, chance)
        if names[-1] not in ".!?":
            names = [*names, "."]
        codes = lexicon.encode(names, chance.randrange(len(coding.VOICES)))
        if chance.random() < FREE_PITCH_SHARE:
            free = [chance.randrange(coding.PITCHES) for _ in codes]
            codes[:, PITCH_GROUP] = np.array(free) * coding.COUNTDOWNS
        sound = lexicon.describe(names)
        found.append(codes)
        log_mels.append(sound[0])
        voiced.append(sound[1])
        starts.append(frames)
        frames += len(codes)
    codes = np.concatenate(found)
    pulses = coding.pulses_of(codes[:, PITCH_GROUP])
    samples = synthesise(np.concatenate(log_mels), np.concatenate(voiced), pulses)
    return Stream(codes, samples, [at for at in starts if at + CROP < frames])


def salad(words: list[str], chance: random.Random, longest: int = 9) -> list[str]:
    """Return random words with occasional commas, and usually a punctuation mark at the end."""
    names: list[str] = []
    for _ in range(chance.randint(1, longest)):
        names.append(chance.choice(words))
        if chance.random() < 0.1:
            names.append(chance.choice(",,,:.!?"))
    if names[-1] not in PAUSES and chance.random() < 0.7:
        names.append(chance.choice("...!?"))
    return names


def sound_codes(codes: Codes) -> Codes:
    """Remove all information from the codes that does not affect the sound."""
    plain = codes.copy()
    plain[..., PITCH_GROUP] -= plain[..., PITCH_GROUP] % coding.COUNTDOWNS
    plain[..., PITCH_GROUP + 1 :] = 0
    return plain


@torch.no_grad()
def initialise(model: Any, lexicon: Lexicon, seed: int) -> None:
    """Increase small initial scales, and initialize the code embeddings from the sound of the
    codes.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith((".gamma", "layer_scale.scale")):
            parameter.fill_(0.1)
    width = model.code_embedding.weight.shape[1]
    centroids = lexicon.codebooks.centroids
    sounds = np.concatenate([lexicon.codebooks.decode(each) for each in lexicon.sounds.values()])
    _, spread, axes = np.linalg.svd(sounds - sounds.mean(0), full_matrices=False)
    scale = spread[:width] / np.sqrt(len(sounds)) + 0.02 * spread[0] / np.sqrt(len(sounds))
    rows = np.stack(
        [(b - sounds.mean(0) * (g == 0)) @ axes[:width].T for g, b in enumerate(centroids)]
    )
    table = torch.zeros(GROUPS, ENTRIES, width)
    table[:BOOKS] = torch.from_numpy((rows / scale).astype(np.float32)) * GROUPS
    pitches = torch.randn(coding.PITCHES, width, generator=generator) * GROUPS
    table[PITCH_GROUP] = pitches.repeat_interleave(coding.COUNTDOWNS, 0)
    model.code_embedding.weight.copy_(table.reshape(-1, width))


@torch.no_grad()
def share_rows(model: Any) -> None:
    """Replace the embeddings of codes that sound the same with the one that has been trained."""
    table = model.code_embedding.weight.view(GROUPS, ENTRIES, -1)
    heard = table[PITCH_GROUP, :: coding.COUNTDOWNS].clone()
    table[PITCH_GROUP] = heard.repeat_interleave(coding.COUNTDOWNS, 0)
    for group in range(PITCH_GROUP + 1, GROUPS):
        table[group] = table[group, 0].clone()


class Code2WavLoss:
    """Draws a batch for each step, and compares the output of the module with the vocoder."""

    def __init__(self, model: Any, lexicon: Lexicon, texts: list[list[str]], seed: int) -> None:
        self._model, self._lexicon, self._texts, self._seed = model, lexicon, texts, seed
        self._stream: tuple[int, Stream] | None = None

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss of a step."""
        chance = random.Random(f"{self._seed} {step}")
        codes, target, skipped = self._batch(step, chance)
        wave = self._model(codes)[:, 0]
        target = target[:, : wave.shape[1]]
        wave, target = wave[:, skipped:], target[:, skipped:]
        mel = _mel_distance(wave, target)
        spectra = sum(
            _spectrum_distance(wave, target, size) for size in chance.sample(SCALES, SCALES_A_STEP)
        )
        sample = (wave - target).abs().mean()
        return spectra + mel + WAVE_WEIGHT * sample, {"mel": mel.item(), "wave": sample.item()}

    def _batch(self, step: int, chance: random.Random) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return codes of shape [batch, 8, frames], samples, and the number of context samples."""
        epoch = step // STREAM_STEPS
        if self._stream is None or self._stream[0] != epoch:
            stream = make_stream(self._lexicon, self._texts, hash((self._seed, epoch)))
            self._stream = (epoch, stream)
        stream = self._stream[1]
        frames = CONTEXT + CROP
        codes, samples = [], []
        for _ in range(BATCH):
            if chance.random() < START_SHARE:
                at = chance.choice([s for s in stream.starts if s + frames < len(stream.codes)])
            else:
                at = chance.randrange(len(stream.codes) - frames)
            codes.append(sound_codes(stream.codes[at : at + frames]).T)
            samples.append(stream.samples[at * FRAME : (at + frames) * FRAME])
        skipped = 0 if chance.random() < 0.1 else CONTEXT * FRAME
        wave = torch.from_numpy(np.stack(samples))
        return torch.from_numpy(np.stack(codes)), wave, skipped


@cache
def _window(size: int) -> torch.Tensor:
    return torch.hann_window(size)


def _spectrum_distance(wave: torch.Tensor, target: torch.Tensor, size: int) -> torch.Tensor:
    """Return the spectral convergence, log amplitude and complex loss for one window size."""
    both = torch.stft(
        torch.cat([wave, target]), size, size // 4, window=_window(size), return_complex=True
    )
    ours, theirs = both.chunk(2)
    amplitude, wanted = ours.abs(), theirs.abs()
    size_of = wanted.norm() + 1e-6
    floor = AMPLITUDE_FLOOR * size**0.5
    logs = (torch.log(amplitude + floor) - torch.log(wanted + floor)).abs().mean()
    convergence = (amplitude - wanted).norm() / size_of
    distance: torch.Tensor = convergence + logs + COMPLEX_WEIGHT * (ours - theirs).norm() / size_of
    return distance


@cache
def _filters() -> torch.Tensor:
    return torch.from_numpy(mel_filters())


def _mel_distance(wave: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference of the log-mel spectra in nats."""
    both = torch.stft(
        torch.cat([wave, target]), FFT, RATE // 100, window=_window(FFT), return_complex=True
    )
    mel = torch.log(_filters() @ both.abs() / FFT**0.5 + AMPLITUDE_FLOOR)
    ours, theirs = mel.chunk(2)
    return F.l1_loss(ours, theirs)


@torch.no_grad()
def decode(model: Any, codes: Codes) -> npt.NDArray[np.float32]:
    """Return the waveform of codes with shape [T, 8]."""
    samples: npt.NDArray[np.float32] = model(torch.from_numpy(codes.T[None].copy()))[0, 0].numpy()
    return samples


__all__ = ["HOPS", "Code2WavLoss", "decode", "initialise", "make_stream", "salad", "share_rows"]
