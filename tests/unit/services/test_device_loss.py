"""Which errors end a stage's process: those after which the device does nothing more."""

from __future__ import annotations

import pytest
import torch

from antiphon.errors import Internal
from antiphon.runtime.engine import EngineEvent, Failed, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.device_loss import device_is_lost
from antiphon_services.thinker.thinker_segment import ThinkerSegment
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

ILLEGAL = "CUDA error: an illegal memory access was encountered"
LOST = [
    torch.AcceleratorError(ILLEGAL),
    RuntimeError(ILLEGAL),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: device-side assert triggered"),
]
HARMLESS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: invalid configuration argument"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("no such voice"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_an_error_that_poisons_the_device_is_fatal(error: Exception) -> None:
    assert device_is_lost(error)


@pytest.mark.parametrize("error", HARMLESS, ids=str)
def test_an_error_that_leaves_the_device_as_it_was_is_not(error: Exception) -> None:
    assert not device_is_lost(error)


def test_a_segment_does_not_keep_the_loss_of_the_device_to_itself() -> None:
    """It would fail alone, and so would each that follows, on a stage that says SERVING."""
    settings = SegmentSettings("", NEUTRAL_SAMPLING, frozenset())
    segment: ThinkerSegment[object] = ThinkerSegment(SegmentKey("s", 0), settings)  # type: ignore[type-var]
    events: list[EngineEvent] = []
    with pytest.raises(RuntimeError, match="illegal"), segment.alone(events, lambda: None):
        raise RuntimeError(ILLEGAL)
    assert not events
    with segment.alone(events, lambda: None):
        raise RuntimeError("the forward failed")
    (failed,) = events
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Internal)
