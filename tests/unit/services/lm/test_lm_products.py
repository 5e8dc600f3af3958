"""Products: what they give, and that a row's digits are the same in any company."""

from __future__ import annotations

import pytest
import torch

from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.products import PACKED_FROM, Product

SHAPES = [(48, 128), (1024, 96), (1024, 4096), (2048, 1024), (3072, 1024), (384, 1024)]
COUNTS = [LEAST_ROWS, 5, 7, 12, 15, 16, 17, 33, 64, 65, 128, 200]


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@torch.inference_mode()
def test_rows_have_the_same_digits_in_any_company(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    product = Product(torch.randn(outputs, inputs) / inputs**0.5)
    rows, other = torch.randn(256, inputs), torch.randn(256, outputs)
    together, total = product(rows), product.plus(rows, other)
    for count in COUNTS:
        given = rows[:count].clone()
        assert torch.equal(product(given), together[:count])
        assert torch.equal(product.plus(given, other[:count].clone()), total[:count])
        put, added = torch.empty(count, outputs), other[:count].clone()
        product.put(given, put)
        assert torch.equal(put, together[:count])
        product.add_to(added, given)
        torch.testing.assert_close(added, total[:count], rtol=0, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("outputs", [40, PACKED_FROM // 256])
@torch.inference_mode()
def test_products_are_those_of_the_layers_one_after_the_other(outputs: int, biased: bool) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, each, bias=biased) for each in (outputs, 24)]
    product = Product.of(*layers)
    rows, other = torch.randn(9, 256), torch.randn(9, outputs + 24)
    expected = torch.cat([layer(rows) for layer in layers], dim=1)
    put, added = torch.empty_like(other), other.clone()
    product.put(rows, put)
    product.add_to(added, rows)
    for mine in (product(rows), put):
        torch.testing.assert_close(mine, expected)
    for mine in (product.plus(rows, other), added):
        torch.testing.assert_close(mine, expected + other)


@torch.inference_mode()
def test_large_weights_of_a_cpu_are_packed_and_others_are_not() -> None:
    packed, plain = (Product(torch.randn(outputs, 256)) for outputs in (PACKED_FROM // 256, 256))
    assert packed.packed
    assert not plain.packed
    assert not Product(torch.randn(PACKED_FROM // 256, 256, dtype=torch.bfloat16)).packed
