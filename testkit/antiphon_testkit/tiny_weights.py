"""Random weights with which tests detect mistakes.

Hugging Face's own initialization gives an inert model: tiny logits, layers scaled by 1e-6, and
uninitialized expert weights. Here every part affects the greedy output: attention is sharp, routers
are decisive, logits are far from uniform, and audio stays within [-1, 1]. Each tensor is sampled
with a generator seeded by its name, so that an additional layer does not change other weights.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True)
class WeightRules:
    """The distributions of a family's parameters, by patterns of names; the first match applies.

    `uniform` has the lowest and highest value, for vectors that multiply; `normal` a standard
    deviation; `gains` a gain over 1/sqrt(inputs). The last pattern of `gains` matches all other
    parameters.
    """

    uniform: tuple[tuple[str, float, float], ...]
    normal: tuple[tuple[str, float], ...]
    gains: tuple[tuple[str, float], ...]

    @torch.no_grad()
    def fill(self, model: torch.nn.Module, seed: int) -> None:
        """Overwrite every parameter."""
        transposed = {
            f"{name}.weight": module.stride[0]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.ConvTranspose1d)
        }
        for name, parameter in model.named_parameters():
            parameter.copy_(self.draw(name, parameter.shape, seed, transposed.get(name)))

    def draw_each(
        self,
        shapes: Mapping[str, Sequence[int]],
        seed: int,
        strides: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, torch.Tensor]:
        """Fresh values for parameters of these names and shapes; `strides` are those of transposed
        convolutions."""
        return {
            name: self.draw(name, shape, seed, strides.get(name)) for name, shape in shapes.items()
        }

    def draw(
        self, name: str, shape: Sequence[int], seed: int, stride: int | None = None
    ) -> torch.Tensor:
        """Fresh values for one parameter; `stride` is given for a transposed convolution."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        for pattern, low, high in self.uniform:
            if len(shape) == 1 and re.search(pattern, name):
                return low + (high - low) * torch.rand(tuple(shape), generator=generator)
        noise = torch.randn(tuple(shape), generator=generator)
        for pattern, std in self.normal:
            if re.search(pattern, name):
                return std * noise
        gain = next(gain for pattern, gain in self.gains if re.search(pattern, name))
        return noise * (gain / math.sqrt(_inputs(name, shape, stride)))


# Logits of the ids that end a reply or speech spread this much wider than others.
REPLY_END_GAIN = 1.8
SPEECH_END_GAIN = 1.2
NEWLINE_SHIFT = -12.0
# The byte token that ends the assistant header; byte tokens are numbered by byte.
NEWLINE_ID = 10


def lean(direction: torch.Tensor, shift: float) -> torch.Tensor:
    """What to add to a row of a head, so that its logit rises by `shift` if the final
    hidden state is all `direction`."""
    return direction * (shift / math.sqrt(len(direction)) / float(direction.norm()))


@torch.no_grad()
def end_replies(
    head: torch.Tensor,
    spoken: Sequence[int],
    end: int,
    *,
    words: torch.Tensor,
    norm: torch.Tensor,
    endless: bool,
) -> None:
    """Let replies consist of the ids `spoken`, and end occasionally, or never if `endless`.

    `end` is occasionally the highest logit, because its row is longer than others. A reply seldom
    ends immediately, because the row has a component against the last row of the header, taken from
    the table `words` after the weights `norm`. A zero row has the logit 0, which is never the
    highest among hundreds.
    """
    row = REPLY_END_GAIN * head[end] + lean(words[NEWLINE_ID] * norm, NEWLINE_SHIFT)
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[list(spoken)] = False
    head[silent] = 0.0
    if not endless:
        head[end] = row


def speech_end(row: torch.Tensor, padding: torch.Tensor, shift: float) -> torch.Tensor:
    """Return the row of a head that ends speech, made from a sampled row.

    The end is occasionally the highest logit, and more often after the end of the text: the row has
    a component `shift` towards `padding`, the row that follows the text, after the weights of the
    last norm.
    """
    return SPEECH_END_GAIN * row + lean(padding, shift)


def _inputs(name: str, shape: Sequence[int], stride: int | None) -> int:
    """How many products make one output value."""
    if stride is not None:
        return shape[0] * shape[2] // stride
    if ".experts." in name or len(shape) == 2:
        return shape[-1]
    return math.prod(shape[1:])
