"""Settings of the gateway that have a range."""

from __future__ import annotations

import pytest

from antiphon.deployment.schema import deployment_of
from antiphon.errors import InvalidArgument


@pytest.mark.parametrize("keepalive_s", [0, -1, float("inf")])
def test_the_time_between_comments_has_a_range(keepalive_s: float) -> None:
    assert deployment_of({"gateway": {"keepalive_s": 5}}).gateway.keepalive_s == 5
    with pytest.raises(InvalidArgument, match=r"gateway\.keepalive_s: .*Expected"):
        deployment_of({"gateway": {"keepalive_s": keepalive_s}})
