"""How many operations a frame is at the released depths: a bound that only falls."""

from __future__ import annotations

import pytest

from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from benchmarks.operations import families, models

MOST_OPERATIONS = 2396


@pytest.mark.parametrize("sessions", [4, 16])
def test_frame_takes_no_more_operations_than_it_did(sessions: int) -> None:
    shape = models.OMNI3
    with meta_as_a_gpu() as device:
        step = families.omni3_talker_step(models.omni3_talker(device, slots=16))
        with launches_on_meta() as launches:
            step(sessions, 40)
    # Each layer is seen.
    layers = shape.talker_layers + 15 * shape.predictor_layers
    assert launches.total - launches.counts.total() > 2 * layers
    assert launches.waits == launches.on_host == []
    assert launches.total <= MOST_OPERATIONS, launches.counts
