"""The stochastic duration predictor of VITS, which draws the durations of speech units from noise.

The flows and convolutions that infer noise from known durations are only used in training and are
not loaded. Like the reference implementation, inference skips the first coupling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

from antiphon_services.emova.unit_decoder_sizes import UnitDecoderSizes
from antiphon_services.emova.unit_encoder import ChannelNorm

LAYERS = 3
BINS = 10
TAIL = 5.0
"""The spline only changes values whose magnitude is at most `TAIL`."""
LEAST = 1e-3
"""The minimum width, height and slope of a bin."""


class DurationPredictor(nn.Module):
    """Predicts the logarithms of durations, which are measured in frames."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        width = sizes.hidden
        self.pre = nn.Conv1d(width, width, 1)
        self.cond = nn.Conv1d(sizes.style, width, 1)
        self.convs = _SeparableLayers(width, sizes.duration_kernel)
        self.proj = nn.Conv1d(width, width, 1)
        # In the checkpoint, the couplings have odd numbers. Each one is followed by a reversal of
        # the two channels, which has no weights.
        self.flows = nn.ModuleDict({"0": _Affine()})
        for index in range(1, sizes.duration_flows):
            self.flows[str(2 * index + 1)] = _SplineCoupling(width, sizes.duration_kernel)

    def forward(self, rows: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        """Return the log durations, as a tensor of shape [n].

        `rows` has shape [hidden, n], `style` has shape [width, 1], and `noise` has shape [2, n].
        """
        hidden = self.proj(self.convs(self.pre(rows) + self.cond(style)))
        affine, *couplings = self.flows.values()
        z = noise
        for coupling in reversed(couplings):
            z = coupling(z.flip(0), hidden)
        out: Tensor = affine(z.flip(0))[0]
        return out


class _SeparableLayers(nn.Module):
    """Depthwise convolutions with increasing dilation, each followed by a pointwise convolution."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        dilations = [kernel**layer for layer in range(LAYERS)]
        self.convs_sep = nn.ModuleList(
            nn.Conv1d(width, width, kernel, groups=width, dilation=each, padding="same")
            for each in dilations
        )
        self.convs_1x1 = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in dilations)
        self.norms_1 = nn.ModuleList(ChannelNorm(width) for _ in dilations)
        self.norms_2 = nn.ModuleList(ChannelNorm(width) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        each = (self.convs_sep, self.norms_1, self.convs_1x1, self.norms_2)
        for depthwise, first, pointwise, second in zip(*each, strict=True):
            x = x + gelu(second(pointwise(gelu(first(depthwise(x))))))
        return x


class _Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.empty(2, 1))
        self.logs = nn.Parameter(torch.empty(2, 1))

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.m) * torch.exp(-self.logs)


class _SplineCoupling(nn.Module):
    """Transforms the second channel with a spline that depends on the first channel and the
    rows.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.pre = nn.Conv1d(1, width, 1)
        self.convs = _SeparableLayers(width, kernel)
        self.proj = nn.Conv1d(width, 3 * BINS - 1, 1)
        self.scale = math.sqrt(width)

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        made = self.proj(self.convs(self.pre(z[:1]) + rows)).T
        widths, heights, slopes = made.split((BINS, BINS, BINS - 1), 1)
        bent = inverse_spline(z[1], widths / self.scale, heights / self.scale, slopes)
        return torch.stack((z[0], bent))


def inverse_spline(y: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor) -> Tensor:
    """Invert a monotonic rational-quadratic spline for values `y` of shape [n].

    Returns x, also of shape [n], such that the spline maps x to `y`. Each value has its own spline
    with `BINS` bins. `widths` and `heights` contain the logits of the bin sizes and have shape [n,
    BINS]. `slopes` contains the logits of the slopes between bins and has shape [n, BINS - 1]. The
    spline is the identity outside of -`TAIL` to `TAIL`. See Neural Spline Flows (arXiv 1906.04032).
    """
    left, width = _bins(widths)
    bottom, height = _bins(heights)
    ends = slopes.new_full((len(y), 1), math.log(math.exp(1 - LEAST) - 1))
    slope = LEAST + softplus(torch.cat((ends, slopes, ends), 1))
    inside = y.clamp(-TAIL, TAIL)
    index = ((inside[:, None] >= bottom).sum(1) - 1).clamp(0, BINS - 1)[:, None]

    def of_bin(values: Tensor) -> Tensor:
        return values.gather(1, index)[:, 0]

    rise, run = of_bin(height), of_bin(width)
    mean, before, after = rise / run, of_bin(slope), of_bin(slope[:, 1:])
    above = inside - of_bin(bottom)
    bend = before + after - 2 * mean
    a = above * bend + rise * (mean - before)
    b = rise * before - above * bend
    c = -mean * above
    root = 2 * c / (-b - torch.sqrt(b.square() - 4 * a * c))
    return torch.where(y.abs() <= TAIL, root * run + of_bin(left), y)


def _bins(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower edges and the sizes of the bins between -`TAIL` and `TAIL`.

    Both tensors have shape [n, BINS].
    """
    sizes = LEAST + (1 - LEAST * BINS) * logits.softmax(1)
    inner = 2 * TAIL * sizes.cumsum(1)[:, :-1] - TAIL
    end = inner.new_full((len(inner), 1), TAIL)
    edges = torch.cat((-end, inner, end), 1)
    return edges[:, :-1], edges.diff(dim=1)
