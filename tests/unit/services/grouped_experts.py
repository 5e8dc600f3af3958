"""Experts computed by a grouped product, as on a GPU; on a CPU they are a loop over what the router
has said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon_services.lm import layer
from antiphon_services.lm.experts import Sparse


@contextmanager
def experts_as_on_a_gpu() -> Iterator[None]:
    """Of the models that are loaded meanwhile."""

    def grouped(module: Any, *, by_loop: bool, exact: bool) -> Sparse:
        return Sparse(module, by_loop=False, exact=exact)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "Sparse", grouped)
        yield
