"""Fused kernels for CUDA graphs. Each function below becomes a single kernel instead of two to
eight.

With only a few rows, the cost of a step depends on the number of kernels. `torch.compile` turns
each function into one kernel, and CUDA graphs replay these kernels together with the rest of the
step (`antiphon_services.lm.graphs`). Matrix products, attention and sorting use library kernels.
IDs are drawn by a Triton kernel (`antiphon_services.lm.draw_kernel`), because the compiler doesn't
fuse a sort with the sums that follow.

The functions round in the same places as the operations that they replace, including in bfloat16,
so results only differ because sums are computed in a different order. The unfused operations remain
the reference. This module is only used if `fused` is configured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_services.lm.sampler import choose_each

# Each function is compiled for each number of rows and for each width.
MOST_SHAPES = 1024

COMPILE_OPTIONS: dict[str, Any] = {
    # Without this option, the compiler would keep float32 between operations, and results in
    # bfloat16 would differ.
    "emulate_precision_casts": True,
    # The shares of the experts are only a few numbers, so each kernel computes their softmax again
    # instead of reading it.
    "unroll_reductions_threshold": 17,
    "realize_reads_threshold": 1000,
    "realize_acc_reads_threshold": 1000,
    "realize_opcount_threshold": 10000,
}
"""The Inductor settings for all functions in this module."""

Choose = Callable[..., tuple[Tensor, Tensor]]


def add_norm(rows: Tensor, delta: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return `rows` plus `delta`, both [n, width], and the weighted RMS norm of the sum."""
    total = rows + delta
    return total, weight * rms_norm(total, total.shape[-1:], eps=epsilon)


def turn_heads(
    heads: Tensor,
    weight: Tensor | None,
    turns: Tensor,
    positions: Tensor,
    is_turned: Tensor,
    epsilon: float,
) -> Tensor:
    """Normalize and rotate the `heads` [n, heads, head_dim] that are marked in `is_turned` [heads,
    1].

    `weight` [heads, head_dim] contains the weights of the head norms, or is None if heads aren't
    normalized. `turns` [positions, 1, 2, head_dim] contains cosines and signed sines
    (`antiphon_services.lm.rotary`). `positions` (int64 [n]) contains the position of each row.
    """
    return turned(heads, weight, turns[positions], is_turned, epsilon)


def turn_heads_into(
    out: Tensor,
    heads: Tensor,
    weight: Tensor | None,
    turns: Tensor,
    is_turned: Tensor,
    epsilon: float,
) -> None:
    """Like `turn_heads`, but write the result to a cache. `turns` [..., 1, 2, head_dim] contains
    the values for these rows only.
    """
    out.copy_(turned(heads, weight, turns, is_turned, epsilon))


def gate(both: Tensor) -> Tensor:
    """Return the inner rows [n, width] of a gated MLP, given the outputs of the gate and up
    projections [n, 2 * width].
    """
    gates, up = both.chunk(2, dim=-1)
    return silu(gates) * up


def take_rows(rows: Tensor, order: Tensor, taken: int) -> Tensor:
    """Return the row for each element of `order` (int64 [n * taken]), which contains indices into
    `taken` choices for each of the n rows.
    """
    return rows[order // taken]


def mix_experts(
    made: Tensor,
    shares: Tensor,
    shared: Tensor | None,
    gates: Tensor | None,
    are_logits: bool,
) -> Tensor:
    """Return the weighted sum [n, width] of the expert outputs [n, k, width].

    The weights are `shares` [n, k], or the softmax of `shares` if `are_logits` is true. If there is
    a `shared` expert, its output [n, width] is multiplied by the sigmoid of `gates` [n, 1] and
    added to the sum.
    """
    if are_logits:
        shares = shares.softmax(-1, dtype=torch.float32)
    mixed = (made * shares.to(made.dtype)[:, :, None]).sum(1)
    return mixed if shared is None or gates is None else mixed + gates.sigmoid() * shared


def turned(
    heads: Tensor, weight: Tensor | None, turns: Tensor, is_turned: Tensor, epsilon: float
) -> Tensor:
    """Like `turn_heads`, but the caller has already selected the `turns` for these heads."""
    normed = heads
    if weight is not None:
        normed = weight * rms_norm(heads, heads.shape[-1:], eps=epsilon)
    low, high = normed.chunk(2, dim=-1)
    cosines, sines = turns.unbind(-2)
    crossed = torch.cat((high, low), dim=-1)
    return torch.where(is_turned, normed * cosines + crossed * sines, heads)


class Kernels:
    """The compiled functions of this module, and `choose`, which draws IDs like
    `lm.sampler.choose_each`.
    """

    def __init__(self, choose: Choose = choose_each) -> None:
        self.add_norm = _compiled(add_norm)
        self.turn_heads = _compiled(turn_heads)
        self.turn_heads_into = _compiled(turn_heads_into)
        self.gate = _compiled(gate)
        self.take_rows = _compiled(take_rows)
        self.mix_experts = _compiled(mix_experts)
        self.choose = choose

    def check(self, device: torch.device) -> None:
        """Raise `FailedPrecondition` if the functions can't be compiled for the device."""
        try:
            self.gate(torch.ones(1, 8, device=device))
        except Exception as error:
            raise FailedPrecondition(
                f"torch.fused: torch.compile can't compile a kernel for {device}: "
                f"{type(error).__name__}: {_first_line(error)}; install a C compiler and, for a "
                "GPU, the triton version that matches torch, or set torch.fused to false",
                field="torch.fused",
            ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch's stubs don't contain two of these keywords.
    compile_: Any = torch.compile
    compiled: Callable[..., Any] = compile_(
        function, fullgraph=True, dynamic=False, options=COMPILE_OPTIONS, **_limits()
    )
    return compiled


def _limits() -> dict[str, Any]:
    """Return keyword arguments that allow a function to be compiled `MOST_SHAPES` times.

    `torch.compile` in torch 2.11 doesn't support these arguments. In that case, the process-wide
    limits are raised instead.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": MOST_SHAPES, "isolate_recompiles": True}
    from torch import _dynamo

    limits: Any = _dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MOST_SHAPES)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, MOST_SHAPES)
    return {}


def kernels_of(config: StageConfig) -> Kernels | None:
    """Return the kernels if they are configured.

    Raises `InvalidArgument` if the settings are not compatible, and `FailedPrecondition` if
    compilation fails.
    """
    if not config.torch.fused:
        return None
    device = torch.device(config.device)
    if device.type == "cpu":
        kernels = Kernels()
    else:
        if not config.torch.graphs:
            raise InvalidArgument(
                "torch.fused: without CUDA graphs, launching compiled kernels takes longer than "
                "they save; set torch.graphs to true, or torch.fused to false",
                field="torch.fused",
            )
        kernels = Kernels(_triton_choose())
    kernels.check(device)
    return kernels


def _triton_choose() -> Choose:
    try:
        from antiphon_services.lm.draw_kernel import choose_fused
    except ImportError as error:
        raise FailedPrecondition(
            "torch.fused: sampling uses a Triton kernel, but triton can't be imported: "
            f"{error}; install the triton version that matches torch, or set torch.fused to "
            "false",
            field="torch.fused",
        ) from error
    return choose_fused
