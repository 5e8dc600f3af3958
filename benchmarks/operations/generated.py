"""Determines the code that Inductor generates for a CUDA device, on a machine without one.

Inductor lowers and fuses the operations and generates Triton code for tensors that claim to be on
an H100 but contain no data. Only the compilation of the generated code is skipped. This requires
triton.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from antiphon_services.lm.kernels import COMPILE_OPTIONS

H100 = SimpleNamespace(
    type="cuda", name="H100", major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    total_memory=80 << 30, shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
    L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spec:
    """The layout of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        """Return the layout of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self, device: str) -> Tensor:
        """Return an empty tensor with this layout."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Generated:
    """The number of generated kernels, and the number of library calls in addition to them."""

    kernels: int
    library: int
    source: str

    @property
    def launches(self) -> int:
        """The total number of launches."""
        return self.kernels + self.library


class _Written(Exception):
    """Raised when the code has been generated."""


def generated_for_cuda(function: Callable[..., Any], arguments: Sequence[Any]) -> Generated:
    """Compile a function for arguments in which tensors are given as `Spec`.

    The function must not modify its arguments, because copying to an operand requires a device.
    """
    from torch._inductor import metrics
    from torch._inductor.compile_fx import compile_fx

    specs = [each for each in arguments if isinstance(each, Spec)]

    def of_tensors(*tensors: Tensor) -> Any:
        given = iter(tensors)
        return function(*(next(given) if isinstance(each, Spec) else each for each in arguments))

    graph = make_fx(of_tensors, tracing_mode="fake")(*(each.empty("cpu") for each in specs))
    cuda = torch.device("cuda", 0)
    for node in graph.graph.nodes:
        node.kwargs = tree_map(
            lambda each: cuda if each == torch.device("cpu") else each, node.kwargs
        )
    written: list[str] = []
    metrics.reset()  # type: ignore[no-untyped-call]
    with _as_on_an_h100(written), FakeTensorMode():
        there = [each.empty("cuda") for each in specs]
        try:
            compile_fx(graph, there)(*there)
        except Exception:
            if not written:
                raise
    calls = written[0].split("def call(")[-1]
    library = len(re.findall(r"extern_kernels\.\w+\(|torch\.ops\.\S+\(|aten\.\S+\(", calls))
    return Generated(int(metrics.generated_kernel_count), library, written[0])


@contextmanager
def _as_on_an_h100(written: list[str]) -> Iterator[None]:
    from torch._inductor import config, graph, scheduler
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch.utils import _triton

    def write(self: Any) -> None:
        wrapper, _ = self.codegen()
        written.append(wrapper.value)
        raise _Written

    def nothing(*args: object) -> None:
        return None

    answers: list[tuple[Any, str, Any]] = [
        (scheduler, "has_triton", lambda *args: True),
        (_triton, "triton_hash_with_backend", lambda: ""),
        (torch.cuda, "_get_device_properties", lambda *args: H100),
        (torch.cuda, "get_device_properties", lambda *args: H100),
        (torch.cuda, "get_device_capability", lambda *args: (9, 0)),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "_lazy_init", nothing),
        (torch.cuda, "_exchange_device", lambda index: 0),
        (torch.cuda, "_maybe_exchange_device", lambda index: 0),
        (torch.cuda, "get_rng_state", lambda *args: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "set_rng_state", nothing),
        # These functions search for matrix products and attention patterns by running examples.
        (joint_graph, "lazy_init", nothing),
        (post_grad, "lazy_init", nothing),
        (graph.GraphLowering, "compile_to_module", write),
    ]
    with ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(patch.object(owner, name, answer, create=True))
        stack.enter_context(
            config.patch(
                **COMPILE_OPTIONS,
                fx_graph_cache=False,
                compile_threads=1,
                pattern_matcher=False,
            )
        )
        yield
