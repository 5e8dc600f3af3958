"""Which of a GPU's kernels take the calls of attention, by their published terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon_services.lm import attention, attention_calls
from antiphon_services.lm.attention import AttentionPlan, Span, span_order
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_testkit.launches import meta_as_a_gpu
from tests.unit.services.lm.test_lm_attention import by_definition

HEADS, KEY_HEADS, DIM = 6, 2, 16
HALF = (torch.bfloat16, torch.float16)
PROMPT, LATER = Span(0, 0, 9), Span(1, 20, 7)
LONE = Span(2, 40)
COMPANY = [Span(3, 300), Span(4, 310), Span(6, 290)]
FLASH_ITSELF = "aten._scaled_dot_product_flash_attention.default"


class Kernels(TorchFunctionMode):
    """Notes what would take each call: `torch._fused_sdp_choice` tells that on a GPU alone."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []
        self.masks: list[bool] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            self._note(*args, **kwargs)
        return func(*args, **kwargs or {})

    def _note(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor | None,
        is_causal: bool = False, enable_gqa: bool = False, scale: float,
    ) -> None:  # fmt: skip
        assert queries.ndim == keys.ndim == 4
        assert {each.stride(-1) for each in (queries, keys, values)} == {1}
        square = not is_causal or queries.shape[2] == keys.shape[2]
        equal = queries.shape[1] == keys.shape[1]
        self.masks.append(attn_mask is not None)
        if square and attn_mask is None and (equal or enable_gqa) and queries.dtype in HALF:
            self.taken.append("flash")
        elif square and equal and not enable_gqa:
            self.taken.append("efficient")
        else:
            self.taken.append("math")


class FlashItself(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of flash by its own name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) == FLASH_ITSELF
        return func(*args, **kwargs or {})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    with meta_as_a_gpu() as device, torch.no_grad():
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        yield device


def asked(device: torch.device, dtype: torch.dtype, spans: list[Span]) -> tuple[Kernels, int]:
    """What a layer of a forward of these spans asks for, and how often for flash by name."""
    shape = CacheShape(1, KEY_HEADS, DIM, DIM**-0.5, dtype, device)
    cache = KVCache(shape, 8, 512)
    ordered = sorted(spans, key=partial(span_order, batch_invariant=False))
    plan = AttentionPlan(cache, ordered, batch_invariant=False)
    rows = sum(each.count for each in spans)
    queries, memory = (
        torch.zeros(rows, heads, DIM, dtype=dtype, device=device)
        for heads in (HEADS, 2 * KEY_HEADS)
    )
    kernels, flash = Kernels(), FlashItself()
    with flash, kernels:
        mixed = plan.attend(0, queries, memory)
    assert mixed.shape == queries.shape
    return kernels, flash.count


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_no_call_is_left_to_be_computed_in_pieces(gpu: torch.device, dtype: torch.dtype) -> None:
    kernels, itself = asked(gpu, dtype, [PROMPT, LATER, LONE, *COMPANY])
    half = dtype in HALF
    # In half precision the rows behind others of their prompt go to flash by its name.
    assert itself == half
    assert kernels.taken == (["flash", "flash", "efficient"] if half else ["efficient"] * 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lone_row_and_whole_prompt_have_no_mask(gpu: torch.device, dtype: torch.dtype) -> None:
    assert asked(gpu, dtype, [PROMPT])[0].masks == [False]
    assert asked(gpu, dtype, [LONE])[0].masks == [False]
    assert asked(gpu, dtype, COMPANY)[0].masks == [True]
    assert asked(gpu, dtype, [LATER])[0].masks == ([] if dtype in HALF else [True])


def test_where_flash_does_not_run_half_precision_goes_to_the_other_kernel(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    kernels, itself = asked(gpu, torch.bfloat16, [LATER])
    assert (kernels.taken, itself) == (["efficient"], 0)


@pytest.mark.parametrize("span", [PROMPT, LATER])
def test_prompt_sees_the_same_by_views_of_its_key_heads(
    monkeypatch: pytest.MonkeyPatch, span: Span
) -> None:
    torch.manual_seed(1)
    shape = CacheShape(1, KEY_HEADS, DIM, DIM**-0.5, torch.float32, torch.device("cpu"))
    cache = KVCache(shape, 2, 64)
    cache.layer(0).normal_()
    queries, memory = torch.randn(span.count, HEADS, DIM), torch.randn(span.count, 4, DIM)
    monkeypatch.setattr(attention, "flash_takes", lambda shape: False)
    plan = AttentionPlan(cache, [span], batch_invariant=False)
    monkeypatch.setattr(attention_calls.Call, "_grouped", None)
    monkeypatch.setattr(attention_calls, "groups_heads", lambda shape: False)
    seen = plan.attend(0, queries, memory).flatten(1)
    keys, values = cache.layer(0)[span.slot, : span.end].chunk(2, dim=1)
    expected = by_definition(queries, keys, values, span.start)
    torch.testing.assert_close(seen.double(), expected, atol=1e-5, rtol=1e-5)


def test_flash_is_for_heads_and_devices_that_it_has_a_kernel_for(gpu: torch.device) -> None:
    def takes(**changes: Any) -> bool:
        told = {"head_dim": 128, "dtype": torch.bfloat16, "device": gpu, **changes}
        return attention_calls.flash_takes(CacheShape(layers=1, key_heads=2, scale=1.0, **told))

    assert takes()
    assert takes(dtype=torch.float16, head_dim=256)
    assert not takes(dtype=torch.float32)
    assert not takes(head_dim=264)
    assert not takes(head_dim=20)
    assert not takes(device=torch.device("cpu"))
