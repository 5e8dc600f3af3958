"""Convolutions and transforms of a stream: pieces, joined, are what one call gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from antiphon_services.vocoder.convolution_state import ConvolutionState
from antiphon_services.vocoder.spectrum_stream import StreamingIstft, StreamingStft

WIDTH, OUTPUTS, COUNT = 3, 5, 97
CUTS: Sequence[int] = (1, 2, 3, 10, 50, 97)
FFT, HOP = 16, 4


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, WIDTH, COUNT, generator=torch.Generator().manual_seed(0))


def conv(kernel: int, *, stride: int = 1, dilation: int = 1) -> nn.Conv1d:
    torch.manual_seed(kernel)
    return nn.Conv1d(WIDTH, OUTPUTS, kernel, stride, dilation=dilation).requires_grad_(False)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 5), (11, 3)])
def test_causal_convolution(kernel: int, dilation: int, cut: int, x: Tensor) -> None:
    layer, state = conv(kernel, dilation=dilation), ConvolutionState()
    made = torch.cat([state.causal(layer, piece) for piece in x.split(cut, 2)], 2)
    torch.testing.assert_close(made, layer(pad(x, ((kernel - 1) * dilation, 0))))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (6, 3), (30, 15)])
def test_strided_convolution(kernel: int, stride: int, cut: int, x: Tensor) -> None:
    layer, state = conv(kernel, stride=stride), ConvolutionState()
    made = torch.cat([state.strided(layer, piece) for piece in x.split(cut, 2)], 2)
    torch.testing.assert_close(made, layer(pad(x, (stride - 1, 0))))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kernel", [1, 4, 5])
def test_convolution_that_looks_ahead(kernel: int, cut: int, x: Tensor) -> None:
    layer, state = conv(kernel), ConvolutionState()
    pieces = x.split(cut, 2)
    made = [
        state.ahead(layer, piece, finished=number == len(pieces))
        for number, piece in enumerate(pieces, 1)
    ]
    torch.testing.assert_close(torch.cat(made, 2), layer(pad(x, (0, kernel - 1))))
    if len(pieces) > 1:
        assert sum(each.shape[2] for each in made[:-1]) == max(
            0, COUNT - pieces[-1].shape[2] - kernel + 1
        )


def test_convolutions_of_two_streams_do_not_meet(x: Tensor) -> None:
    layer, first, second = conv(3), ConvolutionState(), ConvolutionState()
    first.causal(layer, torch.full_like(x, 9))
    torch.testing.assert_close(second.causal(layer, x), layer(pad(x, (2, 0))))


@pytest.mark.parametrize("cut", [9, 40, 480, 1920])
def test_spectrum_of_pieces_is_that_of_the_whole(cut: int) -> None:
    samples = torch.randn(1920, generator=torch.Generator().manual_seed(1))
    window = torch.hann_window(FFT)
    stream, pieces = StreamingStft(window, HOP), samples.split(cut)
    made = [
        stream.advance(piece, finished=number == len(pieces))
        for number, piece in enumerate(pieces, 1)
    ]
    whole = torch.stft(samples, FFT, HOP, FFT, window=window, return_complex=True)
    torch.testing.assert_close(torch.cat(made, 1), whole)


@pytest.mark.parametrize("cut", [1, 2, 7, 120, 481])
def test_samples_of_pieces_are_those_of_the_whole(cut: int) -> None:
    generator = torch.Generator().manual_seed(2)
    spectra = torch.randn(FFT // 2 + 1, 481, 2, generator=generator)
    window = torch.hann_window(FFT)
    stream, pieces = StreamingIstft(window, HOP), torch.view_as_complex(spectra).split(cut, 1)
    made = [
        stream.advance(piece, finished=number == len(pieces))
        for number, piece in enumerate(pieces, 1)
    ]
    whole = torch.istft(torch.view_as_complex(spectra), FFT, HOP, FFT, window=window)
    torch.testing.assert_close(torch.cat(made), whole, rtol=1e-4, atol=1e-5)
    assert len(whole) == HOP * 480
