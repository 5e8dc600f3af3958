"""What a stream that copies asks of torch, without a device."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from antiphon.transport.device_edge import CudaStream


@dataclass(eq=False)
class PlacedTensor:
    """As much of a tensor as a copy needs; it notes what is asked of it."""

    device: torch.device
    asked: list[tuple[str, object]] = field(default_factory=list)

    def copy_(self, source: PlacedTensor, non_blocking: bool = False) -> None:
        self.asked.append(("copy", non_blocking))

    def record_stream(self, stream: object) -> None:
        self.asked.append(("record", stream))


class SideStream:
    def wait_stream(self, other: object) -> None:
        """In order from the start."""


@pytest.mark.parametrize("configured", ["cuda", "cuda:0"])
@pytest.mark.parametrize("to_host", [True, False])
def test_memory_on_the_device_is_kept_until_the_copy_has_been_made(
    configured: str, to_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SideStream()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SideStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    # Tensors say which device they are on, whatever the stage was configured with.
    there, here = PlacedTensor(torch.device("cuda:0")), PlacedTensor(torch.device("cpu"))
    target, source = (here, there) if to_host else (there, here)
    CudaStream(torch.device(configured)).begin(cast(Any, target), cast(Any, source))
    assert ("copy", True) in target.asked
    assert ("record", side) in there.asked
    assert ("record", side) not in here.asked
