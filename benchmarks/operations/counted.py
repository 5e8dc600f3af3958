"""Records the calls of fused kernels on the meta device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon_services.lm import kernels as functions
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.sampler import choose_each
from antiphon_testkit.launches import Launches
from benchmarks.operations.generated import Spec

Call = tuple[str, tuple[Any, ...]]
DRAW = "choose"


class CountedKernels(Kernels):
    """Runs the original functions. If `launches` is set, each call counts as one launch.

    `calls` contains their names and arguments, in which tensors are replaced with `Spec`.
    """

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self.launches: Launches | None = None
        for name in (
            "add_norm",
            "turn_heads",
            "turn_heads_into",
            "gate",
            "take_rows",
            "mix_experts",
        ):
            setattr(self, name, self._counted(name, getattr(functions, name)))
        self.choose = self._counted(DRAW, choose_each)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.launches is None:
                return function(*args, **kwargs)
            told = tuple(Spec.of(each) if isinstance(each, Tensor) else each for each in args)
            self.calls[name, told if name != DRAW else told[:1]] += 1
            with self.launches.one_kernel():
                return function(*args, **kwargs)

        return run


class Decomposed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Decomposes composite operations, which inference mode does not decompose."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            made = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if made is NotImplemented else made
