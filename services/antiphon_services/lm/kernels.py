"""Fused kernels for CUDA graphs: each function below becomes one kernel instead of two to eight.

With few rows, a step's cost is its number of kernels. `torch.compile` makes one kernel of each
function, and CUDA graphs replay these with everything else; see `antiphon_services.lm.graphs`.
Matrix products, attention and sorts use their libraries' kernels. A draw is a Triton kernel, see
`antiphon_services.lm.draw_kernel`, because a compiler does not fuse its sort with its sums.

The functions round where the operations that they replace round, also in bfloat16, so results
differ only in the order of sums. The unfused operations remain the reference: without `fused`
nothing in this module runs.
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

# Each function is compiled for each number of rows and each width.
MOST_SHAPES = 1024

COMPILE_OPTIONS: dict[str, Any] = {
    # Otherwise the compiler keeps float32 between operations, and bfloat16 digits differ.
    "emulate_precision_casts": True,
    # Experts' shares are few numbers: each kernel recomputes their softmax instead of reading it.
    "unroll_reductions_threshold": 17,
    "realize_reads_threshold": 1000,
    "realize_acc_reads_threshold": 1000,
    "realize_opcount_threshold": 10000,
}
"""Inductor settings of every function here."""

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
    """Norm and rotate those of the heads [n, heads, head_dim] that `is_turned` [heads, 1].

    `weight` [heads, head_dim] is that of head norms, None without. `turns` [positions, 1, 2,
    head_dim] are cosines and signed sines, see `antiphon_services.lm.rotary`; row n uses those at
    `positions` int64 [n].
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
    """`turn_heads` into a cache, with the rows' own `turns` [..., 1, 2, head_dim]."""
    out.copy_(turned(heads, weight, turns, is_turned, epsilon))


def gate(both: Tensor) -> Tensor:
    """Return the inner rows [n, width] of a gated MLP, from gate and up [n, 2 * width]."""
    gates, up = both.chunk(2, dim=-1)
    return silu(gates) * up


def take_rows(rows: Tensor, order: Tensor, taken: int) -> Tensor:
    """Return the row of each of `order` int64 [n * taken], which indexes `taken` choices of n
    rows."""
    return rows[order // taken]


def mix_experts(
    made: Tensor,
    shares: Tensor,
    shared: Tensor | None,
    gates: Tensor | None,
    are_logits: bool,
) -> Tensor:
    """Return the weighted sum [n, width] of expert outputs [n, k, width].

    Weights are `shares` [n, k], or their softmax if they `are_logits`. A `shared` expert's output
    [n, width] is added with the sigmoid of `gates` [n, 1].
    """
    if are_logits:
        shares = shares.softmax(-1, dtype=torch.float32)
    mixed = (made * shares.to(made.dtype)[:, :, None]).sum(1)
    return mixed if shared is None or gates is None else mixed + gates.sigmoid() * shared


def turned(
    heads: Tensor, weight: Tensor | None, turns: Tensor, is_turned: Tensor, epsilon: float
) -> Tensor:
    """`turn_heads` with the heads' own `turns`."""
    normed = heads
    if weight is not None:
        normed = weight * rms_norm(heads, heads.shape[-1:], eps=epsilon)
    low, high = normed.chunk(2, dim=-1)
    cosines, sines = turns.unbind(-2)
    crossed = torch.cat((high, low), dim=-1)
    return torch.where(is_turned, normed * cosines + crossed * sines, heads)


class Kernels:
    """The functions above, compiled, and `choose`, a draw like `lm.sampler.choose_each`."""

    def __init__(self, choose: Choose = choose_each) -> None:
        self.add_norm = _compiled(add_norm)
        self.turn_heads = _compiled(turn_heads)
        self.turn_heads_into = _compiled(turn_heads_into)
        self.gate = _compiled(gate)
        self.take_rows = _compiled(take_rows)
        self.mix_experts = _compiled(mix_experts)
        self.choose = choose

    def check(self, device: torch.device) -> None:
        """Raise `FailedPrecondition` if compiling fails for the device."""
        try:
            self.gate(torch.ones(1, 8, device=device))
        except Exception as error:
            raise FailedPrecondition(
                f"fused: torch.compile makes no kernel for {device}: {type(error).__name__}: "
                f"{_first_line(error)}; install a C compiler and, for a GPU, the triton of this "
                "torch, or set fused to false",
                field="fused",
            ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch's stubs lack two of these keywords.
    compile_: Any = torch.compile
    compiled: Callable[..., Any] = compile_(
        function, fullgraph=True, dynamic=False, options=COMPILE_OPTIONS, **_limits()
    )
    return compiled


def _limits() -> dict[str, Any]:
    """Return the keywords that allow `MOST_SHAPES` compilations of a function.

    `torch.compile` of torch 2.11 lacks them; there, process-wide limits are raised.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": MOST_SHAPES, "isolate_recompiles": True}
    from torch import _dynamo

    limits: Any = _dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, MOST_SHAPES)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, MOST_SHAPES)
    return {}


def kernels_of(config: StageConfig) -> Kernels | None:
    """Return kernels if configured.

    Raises `InvalidArgument` for incompatible settings, and `FailedPrecondition` if compiling fails.
    """
    if not config.fused:
        return None
    device = torch.device(config.device)
    if device.type == "cpu":
        kernels = Kernels()
    else:
        if not config.graphs:
            raise InvalidArgument(
                "fused: compiled kernels take longer to launch than they save outside CUDA graphs; "
                "set graphs to true, or fused to false",
                field="fused",
            )
        kernels = Kernels(_triton_choose())
    kernels.check(device)
    return kernels


def _triton_choose() -> Choose:
    try:
        from antiphon_services.lm.draw_kernel import choose_fused
    except ImportError as error:
        raise FailedPrecondition(
            f"fused: draws are a kernel in Triton, which cannot be imported: {error}; install the "
            "triton of this torch, or set fused to false",
            field="fused",
        ) from error
    return choose_fused
