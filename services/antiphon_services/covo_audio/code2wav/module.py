"""The weights of Covo-Audio's token2wav. Tensors have the same names as in `model.pt`.

The modules only store weights. The computations are in `answer_flow.py` and `answer_vocoder.py`.
Because the checkpoint does not contain a configuration for token2wav, all sizes are derived from
the shapes of its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FLOW, VOCODER = "token2latent.", "wavegan."
FLOW_PARTS = (
    "cond_proj",
    "token_proj",
    "transformer_input_proj",
    "time_embedder",
    "conv_embed",
    "blocks",
    "output_layer",
    "token_embedding",
)
VOCODER_PARTS = ("conv_pre", "ups", "resblocks", "activation_post", "conv_post")
DILATIONS = (1, 3, 5)
"""The dilations of the convolutions in a residual block. They cannot be derived from the weights.
"""
FILTER_WIDTH = 12

Shapes = Mapping[str, Sequence[int]]


def is_used(name: str) -> bool:
    """Return whether these modules use the tensor. Tensors of the encoder are not used."""
    parts = {FLOW: FLOW_PARTS, VOCODER: VOCODER_PARTS}
    stem = name.partition(".")[0] + "."
    return name.removeprefix(stem).partition(".")[0] in parts.get(stem, ())


@dataclass(frozen=True, slots=True)
class AnswerFlowSizes:
    """The sizes of the flow.

    `groups` and `reach` are the number of groups and the kernel size of its positional convolution.
    """

    entries: int
    token_width: int
    width: int
    latent: int
    speaker: int
    inner: int
    layers: int
    head_dim: int
    groups: int
    reach: int
    upsampling: int
    time_width: int

    @classmethod
    def of(cls, shapes: Shapes) -> AnswerFlowSizes:
        """Derive the sizes from tensor shapes. Raises `KeyError` if a tensor is missing."""
        entries, token_width = shapes["token_embedding.weight"]
        width, channels, reach = shapes["conv_embed.conv.weight"]
        layers = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
        return cls(
            entries=entries,
            token_width=token_width,
            width=width,
            latent=shapes["output_layer.linear.weight"][0],
            speaker=shapes["cond_proj.weight"][1] - width,
            inner=shapes["blocks.0.ffn.fc1.weight"][0],
            layers=len(layers),
            head_dim=2 * shapes["blocks.0.attn.rotary.inv_freq"][0],
            groups=width // channels,
            reach=reach,
            upsampling=shapes["token_proj.1.weight"][2] // 2,
            time_width=shapes["time_embedder.mlp.0.weight"][1],
        )


@dataclass(frozen=True, slots=True)
class VocoderSizes:
    """The sizes of the vocoder.

    `widths` contains the number of channels before upsampling, followed by the number of channels
    at each level. Each level has one residual block for each entry of `kernels`.
    """

    latent: int
    pre_kernel: int
    post_kernel: int
    widths: tuple[int, ...]
    up_kernels: tuple[int, ...]
    kernels: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Shapes) -> VocoderSizes:
        """Derive the sizes from tensor shapes. Raises `KeyError` if a tensor is missing."""
        width, latent, pre_kernel = shapes["conv_pre.weight_v"]
        levels = len({name.split(".")[1] for name in shapes if name.startswith("ups.")})
        blocks = len({name.split(".")[1] for name in shapes if name.startswith("resblocks.")})
        ups = [shapes[f"ups.{level}.0.weight_v"] for level in range(levels)]
        kernels = [
            shapes[f"resblocks.{number}.convs1.0.weight_v"][2] for number in range(blocks // levels)
        ]
        return cls(
            latent=latent,
            pre_kernel=pre_kernel,
            post_kernel=shapes["conv_post.weight_v"][2],
            widths=(width, *(each[1] for each in ups)),
            up_kernels=tuple(each[2] for each in ups),
            kernels=tuple(kernels),
        )

    @property
    def rates(self) -> tuple[int, ...]:
        """The upsampling factor of each level. A causal kernel spans two inputs."""
        return tuple(kernel // 2 for kernel in self.up_kernels)


class AnswerFlowModule(nn.Module):
    """The tensors whose names start with `token2latent.`."""

    def __init__(self, sizes: AnswerFlowSizes) -> None:
        super().__init__()
        width, factor = sizes.width, sizes.upsampling
        self.sizes = sizes
        self.token_embedding = nn.Embedding(sizes.entries, sizes.token_width)
        self.token_proj = nn.Sequential(
            nn.Linear(sizes.token_width, width),
            nn.ConvTranspose1d(width, width, 2 * factor, factor, factor // 2),
        )
        self.cond_proj = nn.Linear(width + sizes.speaker, width)
        self.transformer_input_proj = nn.Linear(width + 2 * sizes.latent, width)
        self.time_embedder = nn.Module()
        self.time_embedder.mlp = nn.Sequential(
            nn.Linear(sizes.time_width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.conv_embed = nn.Module()
        self.conv_embed.conv = nn.Conv1d(
            width, width, sizes.reach, padding=sizes.reach // 2, groups=sizes.groups
        )
        self.blocks = nn.ModuleList(_ModulatedBlock(sizes) for _ in range(sizes.layers))
        self.output_layer = nn.Module()
        self.output_layer.adaLN_modulation = _changes(width, 2)
        self.output_layer.linear = nn.Linear(width, sizes.latent)


class _ModulatedBlock(nn.Module):
    def __init__(self, sizes: AnswerFlowSizes) -> None:
        super().__init__()
        width = sizes.width
        self.attn = nn.Module()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self.attn, name, nn.Linear(width, width, bias=False))
        self.attn.o_proj = nn.Linear(width, width)
        self.attn.rotary = nn.Module()
        self.attn.rotary.inv_freq = nn.Buffer(torch.zeros(sizes.head_dim // 2))
        self.ffn = nn.Module()
        self.ffn.fc1 = nn.Linear(width, sizes.inner)
        self.ffn.fc2 = nn.Linear(sizes.inner, width)
        self.modulation_layer = _changes(width, 6)


def _changes(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(width, count * width))


class AnswerVocoderModule(nn.Module):
    """The tensors below `wavegan.` that are used to compute samples from latents."""

    def __init__(self, sizes: VocoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        widths = sizes.widths
        self.conv_pre = NormedKernel((widths[0], sizes.latent, sizes.pre_kernel), widths[0])
        self.ups = nn.ModuleList(
            nn.ModuleList([NormedKernel((inputs, outputs, kernel), outputs)])
            for inputs, outputs, kernel in zip(
                widths[:-1], widths[1:], sizes.up_kernels, strict=True
            )
        )
        self.resblocks = nn.ModuleList(
            _FilteredResBlock(width, kernel) for width in widths[1:] for kernel in sizes.kernels
        )
        self.activation_post = FilteredSnake(widths[-1])
        self.conv_post = NormedKernel((1, widths[-1], sizes.post_kernel), 1)


class NormedKernel(nn.Module):
    """The kernel and the bias of a convolution. The kernel is stored as directions and lengths
    (weight normalization).
    """

    def __init__(self, shape: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.empty(shape[0], 1, 1))
        self.weight_v = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(outputs))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return the kernel and the bias, with weight normalization applied to the kernel."""
        kernel: Tensor = torch._weight_norm(self.weight_v, self.weight_g, 0)
        return kernel, self.bias


class FilteredSnake(nn.Module):
    """A SnakeBeta activation at twice the sample rate.

    `alpha` and `beta`, each of shape [channels], are stored as logarithms.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = nn.Module()
        self.act.alpha = nn.Parameter(torch.empty(channels))
        self.act.beta = nn.Parameter(torch.empty(channels))
        self.upsample = nn.Module()
        self.upsample.filter = nn.Buffer(torch.zeros(1, 1, FILTER_WIDTH))
        self.downsample = nn.Module()
        self.downsample.lowpass = nn.Module()
        self.downsample.lowpass.filter = nn.Buffer(torch.zeros(1, 1, FILTER_WIDTH))


class _FilteredResBlock(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        shape = (channels, channels, kernel)
        self.convs1 = nn.ModuleList(NormedKernel(shape, channels) for _ in DILATIONS)
        self.convs2 = nn.ModuleList(NormedKernel(shape, channels) for _ in DILATIONS)
        self.activations = nn.ModuleList(FilteredSnake(channels) for _ in range(2 * len(DILATIONS)))
