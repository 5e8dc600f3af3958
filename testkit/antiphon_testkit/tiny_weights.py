"""Random weights that make mistakes detectable in tests.

Hugging Face's own initialization results in an inert model, with tiny logits, layers scaled by 1e-6
and uninitialized expert weights. With the weights in this module, every part affects the greedy
output: attention is sharp, routers are decisive, logits are far from uniform, and audio stays
within [-1, 1]. Each tensor has its own generator, which is seeded by the tensor's name, so that
adding a layer doesn't change any other weights.
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
    """The distributions of a family's parameters, by name pattern. The first pattern that matches
    applies.

    `uniform` contains the lowest and highest value, and is used for vectors that are multiplied.
    `normal` contains a standard deviation. `gains` contains a gain over 1/sqrt(inputs), and its
    last pattern matches all remaining parameters.
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
        """Draw values for parameters with these names and shapes. `strides` contains the strides of
        transposed convolutions.
        """
        return {
            name: self.draw(name, shape, seed, strides.get(name)) for name, shape in shapes.items()
        }

    def draw(
        self, name: str, shape: Sequence[int], seed: int, stride: int | None = None
    ) -> torch.Tensor:
        """Draw values for a single parameter. `stride` is only given for a transposed
        convolution.
        """
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


# The logits of IDs that end a reply or speech have a standard deviation larger than that of others
# by this factor.
REPLY_END_GAIN = 1.8
SPEECH_END_GAIN = 1.2
NEWLINE_SHIFT = -12.0
# The byte token at the end of the assistant header. Byte tokens are numbered by byte.
NEWLINE_ID = 10


def lean(direction: torch.Tensor, shift: float) -> torch.Tensor:
    """Return the values to add to a row of a head, so that its logit rises by `shift` if the final
    hidden state points in `direction`.
    """
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
    """Change the head so that replies consist of the IDs in `spoken` and end occasionally, or never
    if `endless` is true.

    The row of `end` is longer than the others, so its logit is occasionally the highest. A reply
    rarely ends immediately, because this row has a negative component in the direction of the
    header's last row, which is taken from the table `words` and multiplied by the weights of
    `norm`. The logit of a zero row is 0, which is never the highest among hundreds.
    """
    row = REPLY_END_GAIN * head[end] + lean(words[NEWLINE_ID] * norm, NEWLINE_SHIFT)
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[list(spoken)] = False
    head[silent] = 0.0
    if not endless:
        head[end] = row


def speech_end(row: torch.Tensor, padding: torch.Tensor, shift: float) -> torch.Tensor:
    """Return the row that ends speech, based on a sampled row of the head.

    Speech ends occasionally, and more often after the end of the text. To achieve this, the row has
    a component of size `shift` in the direction of `padding`, which is the row that follows the
    text, after applying the weights of the last norm.
    """
    return SPEECH_END_GAIN * row + lean(padding, shift)


def _inputs(name: str, shape: Sequence[int], stride: int | None) -> int:
    """Return the number of products that contribute to one output value."""
    if stride is not None:
        return shape[0] * shape[2] // stride
    if ".experts." in name or len(shape) == 2:
        return shape[-1]
    return math.prod(shape[1:])
